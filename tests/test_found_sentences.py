"""Sentences that random ones once found to be lowered wrongly, cut down: forward and gradients."""

from dataclasses import replace

import pytest
from sentences import Situation
from support import Shape
from test_random_sentences import assert_plain_right, assert_right

import gnomon as gn
from gnomon.dsl.trace import Declaration

SMALL = Shape(batch=2, time=9, queries=7, heads=4, kv_heads=2, dim=8, entries=3)


@gn.variant
def fixed_query(q: gn.Value, k: gn.Value, probe: gn.Param[gn.Head, gn.Dim]) -> gn.Value:
    "probe_h . k_j: a dot with a vector of parameters"
    return gn.softmax(gn.dot(probe, gn.tanh(k)) * gn.dot(q, k), mask=gn.causal())


@gn.variant
def fixed_key(q: gn.Value, k: gn.Value, probe: gn.Param[gn.KVHead, gn.Dim]) -> gn.Value:
    "q_i . probe_h - q_i . k_j: the other side"
    return gn.weighted_sum(gn.dot(q, probe) - gn.dot(q, k), mask=gn.causal())


@gn.variant
def sink_of_key_heads(q: gn.Value, k: gn.Value, sink: gn.Param[gn.KVHead]) -> gn.Value:
    "e^(q_i . k_j) / (e^sink_g + sum e^(q_i . k_l)): one sink a group of heads"
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal(), sink=sink)


@gn.variant
def sink_of_rows(q: gn.Value, k: gn.Value, sink: gn.Query[gn.KVHead]) -> gn.Value:
    "a sink a query and group of heads"
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal(), sink=sink)


@gn.variant
def sink_in_the_formula(q: gn.Value, k: gn.Value, sink: gn.Param[gn.Head]) -> gn.Value:
    "the sink is also a temperature"
    return gn.softmax(gn.dot(q, k) * sink, mask=gn.causal(), sink=sink)


@gn.variant
def condition_of_a_token(q: gn.Value, k: gn.Value, gate: gn.Token[gn.KVHead]) -> gn.Value:
    "q_i . k_j where log(1 + i) <= 1.5 or gate_j > 0"
    early = gn.log1p(gn.at_query(gn.position())) <= 1.5
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    chosen = gn.where(gn.at_key(gate) > 0.0, score, 0.1)
    return gn.softmax(gn.where(early, score, chosen), mask=gn.causal())


@gn.variant
def ratio_of_blocks(
    q: gn.Value, k: gn.Value, blocks: gn.Query[gn.KVHead, gn.Entry, int]
) -> gn.Value:
    "a ratio of exponentials over chosen blocks"
    e = gn.exp(gn.dot(q, k) * gn.rsqrt_dim(q))
    mask = gn.causal() & gn.selected_blocks(blocks, size=4)
    return gn.ratio(e, e + abs(e - 1), mask=mask, at_least=1e-6)


@gn.variant
def named_like_a_helper(q: gn.Value, k: gn.Value) -> gn.Value:
    "a value of a token that is named like the function that makes it"
    turned = gn.cos_turns(0.25 * gn.log1p(gn.visible_count(gn.causal())))
    score = gn.tanh(gn.dot(q, k) + turned) * (1 + 0.5 * turned)
    return gn.softmax(score, mask=gn.causal())


@gn.variant
def sink_of_nothing(q: gn.Value, k: gn.Value) -> gn.Value:
    "the sink log(1 + i) is NaN in rows before the first key, which see none"
    sink = gn.log1p(gn.at_query(gn.position()))
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal(), sink=sink)


@gn.variant
def weights_of_places(q: gn.Value, k: gn.Value) -> gn.Value:
    "the weight is a function of the distance alone: nothing but v has a gradient"
    return gn.weighted_sum(1 / (1 + gn.distance()), mask=gn.causal())


class Hidden(gn.Axis):
    "The hidden units."


@gn.variant
def sum_that_only_the_forward_needs(
    q: gn.Value, k: gn.Value, w: gn.Param[Hidden], table: gn.Param[gn.KVHead, gn.Entry]
) -> gn.Value:
    "sum_h cos(w_h log t[i - j]): the backward pass does not ask for the weight itself"
    entry = gn.lookup(table, gn.distance())
    safe = gn.where(entry > 0.1, gn.log(entry), 0.0)
    return gn.weighted_sum(gn.channel_sum(gn.cos(safe * w)), mask=gn.causal())


@gn.variant
def phases_twice(
    q: gn.Value, k: gn.Value, probe: gn.Param[gn.Head, gn.Dim], phase: gn.Param[gn.KVHead]
) -> gn.Value:
    "cos_turns of one token and of the pair: two functions of a module"
    turned = gn.cos_turns(0.25 * gn.tanh(phase))
    score = gn.cos_turns(0.25 * gn.dot(q, k) * gn.rsqrt_dim(q) + turned)
    return gn.softmax(score + gn.dot(q, probe), mask=gn.causal())


@gn.variant
def table_of_a_row(q: gn.Value, k: gn.Value, table: gn.Param[gn.Head, gn.Entry]) -> gn.Value:
    "a row's own entries leave the pairs, and keep their gradient"
    length = gn.clip(gn.channel_sum(q * q), 0, 3)
    score = gn.dot(q, k) + gn.interpolate(table, length)
    return gn.softmax(score, mask=gn.causal(), sink=0.0)


@gn.variant
def numbers_chosen(q: gn.Value, k: gn.Value) -> gn.Value:
    "two numbers to choose from are float64 where all is; no head has a logit of its own"
    return gn.softmax(gn.where(gn.distance() < 3, 0.3, 0.7), mask=gn.causal())


@gn.variant
def vector_of_a_branch(q: gn.Value, k: gn.Value, gate: gn.Token[gn.KVHead]) -> gn.Value:
    "the vector of a dot has a root, and the dot counts in some pairs alone"
    score = gn.dot(q * gn.sqrt(gn.channel_sum(q * q) + 0.1), k) * gn.rsqrt_dim(q)
    chosen = gn.where(score > 0.3, gn.log(score), score)
    return gn.softmax(chosen + abs(gn.at_query(gate) - gn.at_key(gate)), mask=gn.causal())


FOUND = (
    numbers_chosen,
    phases_twice,
    table_of_a_row,
    vector_of_a_branch,
    sum_that_only_the_forward_needs,
    weights_of_places,
    fixed_query,
    fixed_key,
    sink_of_key_heads,
    sink_of_rows,
    sink_in_the_formula,
    condition_of_a_token,
    ratio_of_blocks,
    named_like_a_helper,
)


@pytest.mark.parametrize("declaration", FOUND, ids=lambda x: x.name)
def test_found_sentences_agree_with_the_oracle(declaration: Declaration) -> None:
    assert_right(declaration, Situation(SMALL))


@pytest.mark.parametrize("declaration", FOUND, ids=lambda x: x.name)
def test_plain_torch_agrees_with_the_oracle(declaration: Declaration) -> None:
    assert_plain_right(declaration, Situation(SMALL))


def test_a_row_without_keys_is_zero_whatever_its_sink_is() -> None:
    assert_right(sink_of_nothing, Situation(replace(SMALL, queries=12)))

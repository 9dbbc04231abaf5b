"""What runs once a token leaves the pair: each rule, and the whole catalogue in float64."""

from typing import Any

import pytest
import torch
from pair_formulas import evaluate
from support import assert_close, small_tensors
from tile_calls import evaluate_streams, evaluators_of, wide_leaves
from torch import Tensor

import gnomon as gn
from gnomon import Entry, Head, KVHead, Param, Query, Token
from gnomon.dsl.canonical import canonical
from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.evaluate_formula import Evaluator
from gnomon.dsl.nodes import (
    ATTENTIONS,
    Apply,
    At,
    Expr,
    Lookup,
    Mask,
    PrefixSum,
    Ratio,
    Softmax,
    WeightedSum,
    walk,
)
from gnomon.lowering.core import (
    Anchored,
    Attention,
    Index,
    Output,
    PairDot,
    Program,
    Read,
    Stream,
    TransportDot,
)
from gnomon.lowering.passes.split_prologue import split_prologue
from gnomon.lowering.show import formula_text


def program(declaration: Any, *, positions: bool = False) -> Program:
    return split_prologue(canonical(declaration.node), positions=positions)


def attention(declaration: Any, *, positions: bool = False) -> Attention:
    (only,) = program(declaration, positions=positions).attentions
    return only


def streams(declaration: Any) -> dict[str, Stream]:
    return {stream.name: stream for stream in attention(declaration).streams}


def biased(bias: Any) -> Any:
    """A variant whose logit is q . k plus a bias."""

    def biased(q: Any, k: Any, a: Token[Head], b: Token[KVHead], slope: Param[Head]) -> Any:
        used = 0.0 * gn.at_key(a) * gn.at_key(b) * slope
        return gn.softmax(gn.dot(q, k) + bias(a, b, slope) + used, mask=gn.causal())

    return gn.variant(biased)


# ---- rules


def test_a_dot_reads_two_streams_in_the_dtype_of_the_call() -> None:
    made = attention(gn.catalogue.nope)
    q, k = made.streams[:2]
    assert isinstance(made.weight, Apply)
    assert made.weight.args[0] == PairDot(q, k)
    assert [(s.place, s.heads, s.role, s.dtype) for s in (q, k)] == [
        ("row", "Head", "dot", "io"),
        ("column", "KVHead", "dot", "io"),
    ]


def test_a_decay_is_a_difference_of_one_prefix_sum_read_from_the_query_tile() -> None:
    made = attention(gn.catalogue.fox)
    found = {s.name: s for s in made.streams if s.role == "prefix"}
    row, column = found["log_f_sum_q"], found["log_f_sum_k"]
    decay = Apply("-", (Anchored(row, row), Anchored(column, row)))
    assert decay in list(walk(made.weight))
    assert {s.dtype for s in found.values()} == {"f32"}
    low = {s.name: s for s in made.streams if s.role == "low"}
    assert list(low) == ["log_f_sum_q_low", "log_f_sum_k_low"]
    assert [s.value for s in low.values()] == [s.value for s in found.values()]
    assert not any(s.differentiable for s in low.values())
    for stream in found.values():
        assert isinstance(stream.value, At)
        assert isinstance(stream.value.x, PrefixSum)
        assert stream.differentiable


def test_a_subexpression_of_one_token_is_one_stream() -> None:
    """exp(tanh(a_i)) is a single number of the query: the pair reads it and forms nothing."""
    made = streams(biased(lambda a, b, s: gn.exp(gn.tanh(gn.at_query(a))) * gn.at_key(b)))
    assert isinstance(made["a_term_q"].value, Expr)
    assert [n.fn for n in walk(made["a_term_q"].value) if isinstance(n, Apply)] == ["tanh", "exp"]


def test_row_times_column_meets_in_the_pair() -> None:
    weight = attention(biased(lambda a, b, s: gn.at_query(a) * gn.at_key(b))).weight
    assert "a_q[i] * b_k[j]" in formula_text(weight)


def test_positions_are_counted_unless_the_call_gives_them() -> None:
    declaration = biased(lambda a, b, s: s * gn.distance())
    leaves = set(walk(attention(declaration).weight))
    assert {Index("row"), Index("column")} <= leaves
    given = attention(declaration, positions=True)
    assert not any(isinstance(n, Index) for n in walk(given.weight))
    assert {"position_q", "position_k"} <= {s.name for s in given.streams}


def test_numbers_stay_numbers_and_what_the_launch_knows_is_one() -> None:
    made = streams(gn.catalogue.nope)
    assert (made["scale"].role, made["scale"].differentiable) == ("host", False)
    text = formula_text(attention(biased(lambda a, b, s: 2 * 3 * gn.distance())).weight)
    assert "6" in text


def test_a_parameter_is_a_tensor_of_heads() -> None:
    made = streams(biased(lambda a, b, s: s * gn.distance()))["slope"]
    assert (made.place, made.heads, made.role, made.differentiable) == (
        "constant",
        "Head",
        "scalar",
        True,
    )


def test_a_table_is_looked_up_in_the_pair() -> None:
    made = attention(gn.catalogue.t5)
    (entry,) = [n for n in walk(made.weight) if isinstance(n, Lookup)]
    assert isinstance(entry.table, Read)
    assert entry.table.stream.role == "table"


def test_what_is_detached_has_no_gradient() -> None:
    made = streams(biased(lambda a, b, s: gn.at_query(gn.detach(a)) * gn.at_key(b)))
    names = {name: stream.differentiable for name, stream in made.items()}
    assert names["a_term_q"] is False
    assert names["b_k"] is True


def test_a_mask_reads_documents_on_both_sides() -> None:
    def by_document(q: Any, k: Any, ids: Token[int]) -> Any:
        return gn.softmax(gn.dot(q, k), mask=gn.causal() & gn.same_document(ids))

    made = attention(gn.variant(by_document))
    rules = [part for part in made.mask.operands if isinstance(part, Mask)]
    (documents,) = [rule for rule in rules if rule.rule == "same_document"]
    assert [formula_text(x) for x in documents.operands if isinstance(x, Expr)] == [
        "document_q[i]",
        "document_k[j]",
    ]
    assert {s.dtype for s in made.streams if s.name.startswith("document")} == {"i32"}


def test_a_sink_is_a_stream_of_its_own() -> None:
    def sunk(q: Any, k: Any, sink: Param[Head]) -> Any:
        return gn.softmax(gn.dot(q, k), mask=gn.causal(), sink=sink)

    made = attention(gn.variant(sunk)).sink
    assert made is not None
    assert (made.name, made.place, made.differentiable) == ("sink", "constant", True)


def test_each_attention_is_split_once_and_the_epilogue_joins_them() -> None:
    def twice(q: Any, k: Any, gate: Query[Head]) -> Any:
        (q1, q2), (k1, k2) = gn.split(q), gn.split(k)
        first = gn.softmax(gn.dot(q1, k1), mask=gn.causal())
        second = gn.softmax(gn.dot(q2, k2), mask=gn.causal())
        return first - gate * second + first

    made = program(gn.variant(twice))
    assert [a.name for a in made.attentions] == ["twice_1", "twice_2"]
    outputs = [n for n in walk(made.epilogue) if isinstance(n, Output)]
    assert {n.k for n in outputs} == {0, 1}
    assert not any(isinstance(n, ATTENTIONS) for n in walk(made.epilogue))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ordered_rotations", "its steps are no diagonal minus a product of two vectors"),
        ("stick_breaking", "stick-breaking carries a row's remaining stick"),
        ("cope", "a sum over the keys in between is carried along the row"),
    ],
)
def test_what_has_no_schedule_yet_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        program(gn.catalogue.find(name))


def test_a_table_of_vectors_is_refused() -> None:
    def vectors(q: Any, k: Any, a: Param[Entry, Entry]) -> Any:
        row = gn.lookup(a, gn.distance())
        return gn.softmax(gn.dot(q, k) + gn.channel_sum(row), mask=gn.causal())

    with pytest.raises(UnsupportedError, match="a look-up of the pair gives a vector"):
        program(gn.variant(vectors))


# ---- the meaning


def lowered() -> list[str]:
    names = []
    for entry in gn.catalogue.ENTRIES:
        if entry.declaration is not None:
            try:
                program(entry.declaration)
            except UnsupportedError:
                continue
            names.append(entry.name)
    return names


def formulas(node: Expr) -> list[Expr]:
    match node:
        case Softmax(logit, _, _):
            return [logit]
        case WeightedSum(weight, _):
            return [weight]
        case Ratio(numerator, denominator, _, _):
            return [numerator, denominator]
    raise TypeError(f"{node!r}")


def spread(x: Tensor, stream: Stream, sizes: dict[str, int]) -> Tensor:
    """A stream's tensor for every pair: [batch * head * time_q * time_k, *axes]."""
    own = x.shape[1:] if stream.place == "constant" else x.shape[3:]
    if stream.place == "constant":
        x = x[None, None]  # [batch, time, head, *axes]
    x = x.repeat_interleave(sizes["Head"] // x.shape[2], 2).transpose(1, 2)
    x = x.unsqueeze(2) if stream.place == "column" else x.unsqueeze(3)
    pairs = (sizes["batch"], sizes["Head"], sizes["time_q"], sizes["time_k"])
    return x.expand(*pairs, *own).reshape(-1, *own)


def leaf_values(
    made: Attention,
    tensors: dict[str, Tensor],
    numbers: dict[str, float],
    sizes: dict[str, int],
    oracle: Evaluator,
) -> dict[Expr, Tensor]:
    pairs = (sizes["batch"], sizes["Head"], sizes["time_q"], sizes["time_k"])
    i = torch.arange(sizes["time_q"])[:, None] + sizes["time_k"] - sizes["time_q"]
    j = torch.arange(sizes["time_k"])[None, :]
    values: dict[Expr, Tensor] = {
        Index("row"): i.expand(pairs).reshape(-1).double(),
        Index("column"): j.expand(pairs).reshape(-1).double(),
    }
    wide = {s: spread(tensors[s.name], s, sizes) for s in made.streams if s.name in tensors}
    for stream in made.streams:
        if stream.role in ("version", "near"):
            continue  # of the whole dot, below
        if stream.role == "host":
            values[Read(stream)] = torch.tensor(numbers[stream.name], dtype=torch.float64)
        elif stream.role == "prefix":
            anchors = [s for s in made.streams if s.role == "prefix" and s.place == "row"]
            values |= {Anchored(stream, anchor): wide[stream] for anchor in anchors}
        else:
            values[Read(stream)] = wide[stream]
    for dot in made.dots():
        if isinstance(dot, TransportDot):
            values[dot] = oracle(dot.row.value).expand(pairs).reshape(-1)
        else:
            values[dot] = (wide[dot.row] * wide[dot.column]).sum(-1)
    return values


@pytest.mark.parametrize("name", lowered())
def test_the_pair_formulas_mean_the_variant(name: str) -> None:
    """Over the values of its streams each formula is the oracle's, to float64."""
    declaration = gn.catalogue.find(name)
    given = small_tensors(declaration, time=9, queries=7, dim=8, entries=9)
    positions = given.pop("positions", None)
    variant = canonical(declaration.node)
    made = split_prologue(variant, positions=positions is not None)
    leaves = {n: x.detach() for n, x in wide_leaves(given).items()}
    (oracle,), sizes = evaluators_of(variant, leaves, positions)
    nodes = [node for node in walk(variant.output) if isinstance(node, ATTENTIONS)]
    for node, split in zip(dict.fromkeys(nodes), made.attentions, strict=True):
        assert isinstance(node, (Softmax, WeightedSum, Ratio))
        seen = oracle.under(node.mask)
        values = leaf_values(split, *evaluate_streams(split, [oracle], sizes), sizes, seen)
        shape = (sizes["batch"], sizes["Head"], sizes["time_q"], sizes["time_k"])
        shown = seen.visible().expand(shape)
        parts = [split.weight] if split.denominator is None else [split.weight, split.denominator]
        for formula, part in zip(formulas(node), parts, strict=True):
            expected = seen(formula).double().expand(shape)
            found = evaluate(part, values).expand(shown.numel()).reshape(shape)
            assert_close(name, expected[shown], found[shown], 1e-11)

"""Logit terms without a key leave the pairs of a softmax, and of nothing else."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from pair_formulas import (
    AT_KEY,
    AT_QUERY,
    COLUMN,
    DOT,
    FORMULAS,
    FROM,
    NUMBER,
    P_K,
    P_Q,
    ROW,
    SCALE,
    TABLE,
    TO,
    K,
    evaluate,
    leaves_of,
    random_leaves,
    ratio,
    softmax,
)

from gnomon.dsl.nodes import Constant, Expr, Lookup
from gnomon.lowering.core import Read
from gnomon.lowering.passes.differentiate import apply
from gnomon.lowering.passes.drop_row_constants import drop_row_constants

SCORE = apply("*", DOT, SCALE)
READS_KEY = {DOT, COLUMN, TO, AT_KEY, Read(K)}


def split(logit: Expr) -> tuple[Expr, Expr | None]:
    made = drop_row_constants(softmax(logit))
    return made.weight, made.row_term


def test_the_gate_of_fox_leaves_its_query_side() -> None:
    """s + (P_i - P_j) -> weight s - P_j, row term P_i: no pair reads the query's prefix sum."""
    logit = apply("+", SCORE, apply("-", FROM, TO))
    assert split(logit) == (apply("-", SCORE, TO), FROM)


def test_a_parameter_of_the_head_is_constant_in_a_row() -> None:
    assert split(apply("+", apply("+", SCORE, NUMBER), apply("neg", ROW))) == (
        SCORE,
        apply("-", NUMBER, ROW),
    )


def test_a_negative_term_alone_keeps_its_sign() -> None:
    assert split(apply("-", SCORE, ROW)) == (SCORE, apply("neg", ROW))


def test_a_positive_term_stands_first() -> None:
    logit = apply("-", apply("-", SCORE, TO), apply("-", ROW, NUMBER))
    assert split(logit) == (apply("-", SCORE, TO), apply("-", NUMBER, ROW))


def test_untouched_attentions_stay_the_same_object() -> None:
    for logit in (SCORE, apply("+", SCORE, TO), apply("*", SCORE, ROW), ROW):
        attention = softmax(logit)
        assert drop_row_constants(attention) is attention
    other = ratio(apply("+", SCORE, ROW), apply("exp", SCORE))
    assert drop_row_constants(other) is other


def test_numbers_alone_stay() -> None:
    """A literal costs nothing and may belong to what is beside it."""
    attention = softmax(apply("+", SCORE, Constant(1.0)))
    assert drop_row_constants(attention) is attention


def test_a_look_up_by_position_reads_the_key() -> None:
    bias = Lookup(Read(TABLE), (apply("-", AT_QUERY, AT_KEY),))
    by_row = Lookup(Read(TABLE), (AT_QUERY,))
    assert split(apply("+", apply("+", SCORE, bias), by_row)) == (apply("+", SCORE, bias), by_row)


def test_streams_stay_although_only_the_row_term_reads_them() -> None:
    attention = softmax(apply("+", SCORE, apply("-", FROM, TO)))
    made = drop_row_constants(attention)
    assert made.streams == attention.streams
    assert {P_Q, P_K} <= set(made.streams)


@given(FORMULAS, st.integers(0, 1000))
def test_the_logit_is_the_sum_of_both_and_the_row_term_reads_no_key(
    formula: Expr, seed: int
) -> None:
    weight, row_term = split(formula)
    if row_term is None:
        assert weight is formula
        return
    assert not READS_KEY & set(leaves_of(row_term))
    leaves = random_leaves(formula, seed)
    total = evaluate(weight, leaves) + evaluate(row_term, leaves)
    expected = evaluate(formula, leaves)
    torch.testing.assert_close(total.expand_as(expected), expected, rtol=1e-12, atol=1e-12)


@given(FORMULAS)
def test_what_is_left_has_no_such_term(formula: Expr) -> None:
    attention = softmax(split(formula)[0])
    assert drop_row_constants(attention) is attention

"""Both sums of a ratio over exp(x - row_max): homogeneous formulas only, and the same quotient."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pair_formulas import (
    COLUMN,
    DOT,
    FROM,
    PAIRS,
    ROW,
    SCALE,
    TO,
    evaluate,
    random_leaves,
    ratio,
    softmax,
)

from gnomon.dsl.nodes import Constant, Expr
from gnomon.lowering.core import Given
from gnomon.lowering.passes.differentiate import apply
from gnomon.lowering.passes.rescale_ratio import ROW_MAX, rescale_ratio

X = apply("*", DOT, SCALE)
E = apply("exp", X)
SHIFTED = apply("exp", apply("-", X, ROW_MAX))
DECAYED = apply("exp", apply("neg", ROW_MAX))


def scaled(weight: Expr, denominator: Expr = E) -> tuple[Expr, Expr | None]:
    made = rescale_ratio(ratio(weight, denominator))
    return made.weight, made.exponent


def test_softpick() -> None:
    """relu(e^x - 1) / sum |e^x - 1| with every exponential at most 1."""
    less = apply("-", E, 1.0)
    made = rescale_ratio(ratio(apply("relu", less), apply("abs", less)))
    shifted = apply("-", SHIFTED, apply("*", Constant(1.0), DECAYED))
    assert made.exponent == X
    assert (made.weight, made.denominator) == (apply("relu", shifted), apply("abs", shifted))


def test_every_rule() -> None:
    one = apply("*", Constant(1.0), DECAYED)
    assert scaled(apply("+", E, 1.0)) == (apply("+", SHIFTED, one), X)
    assert scaled(apply("neg", E)) == (apply("neg", SHIFTED), X)
    assert scaled(apply("*", E, COLUMN)) == (apply("*", SHIFTED, COLUMN), X)
    assert scaled(apply("*", COLUMN, E)) == (apply("*", SHIFTED, COLUMN), X)
    condition = apply("<", DOT, ROW)
    assert scaled(apply("where", condition, E, 1.0)) == (
        apply("where", condition, SHIFTED, one),
        X,
    )
    assert scaled(ROW) == (apply("*", ROW, DECAYED), X)


@pytest.mark.parametrize(
    "weight",
    [
        apply("tanh", E),  # not homogeneous
        apply("*", E, E),  # of degree 2
        apply("where", apply("<", E, 1.0), E, 1.0),  # decides by the exponential itself
        apply("+", E, apply("exp", DOT)),  # a second exponent
    ],
    ids=["tanh", "square", "condition", "two exponents"],
)
def test_other_formulas_leave_the_attention_the_same_object(weight: Expr) -> None:
    attention = ratio(weight, E)
    assert rescale_ratio(attention) is attention
    attention = ratio(E, weight)
    assert rescale_ratio(attention) is attention


def test_a_decay_alone_cannot_overflow() -> None:
    decay = apply("exp", apply("-", FROM, TO))
    attention = ratio(apply("*", decay, DOT), apply("*", decay, DOT))
    assert rescale_ratio(attention) is attention


def test_a_softmax_carries_its_own_maximum() -> None:
    attention = softmax(E)
    assert rescale_ratio(attention) is attention
    without = replace(ratio(E, E), denominator=None)
    assert rescale_ratio(without) is without


_LEAVES = st.sampled_from([E, Constant(1.0), Constant(0.5), COLUMN])
HOMOGENEOUS: st.SearchStrategy[Expr] = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["+", "-"]), inner, inner).map(lambda t: apply(*t)),
        st.tuples(st.sampled_from(["relu", "abs", "neg"]), inner).map(lambda t: apply(*t)),
        inner.map(lambda x: apply("*", ROW, x) if x is not ROW else x),
        st.tuples(inner, inner).map(lambda t: apply("where", apply("<", DOT, 0.0), *t)),
    ),
    max_leaves=6,
)


@given(HOMOGENEOUS, st.integers(0, 1000))
def test_the_formula_divided_by_exp_of_the_maximum(formula: Expr, seed: int) -> None:
    """n(e^x, 1) e^-m, whatever the number m is."""
    weight = apply("+", E, formula)
    leaves = random_leaves(apply("+", weight, ROW), seed)
    m = torch.randn(PAIRS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    made = rescale_ratio(ratio(weight, E))
    assert made.exponent == X
    found = evaluate(made.weight, {**leaves, Given("row_max", "row"): m})
    expected = evaluate(weight, leaves) * torch.exp(-m)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)

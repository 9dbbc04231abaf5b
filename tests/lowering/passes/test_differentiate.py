"""Derivatives of pair formulas against torch's autograd, function by function."""

import pytest
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
    HIDDEN,
    NUMBER,
    PAIRS,
    ROW,
    SCALE,
    TABLE,
    TO,
    evaluate,
    random_leaves,
    stream,
)
from torch import Tensor

from gnomon.dsl.nodes import Apply, Constant, Expr, Lookup, Sum
from gnomon.lowering.core import Given, Read
from gnomon.lowering.passes.differentiate import ADJOINTS, apply, axes_of, differentiate

G = Given("g", "pair")
ARITY = {"+": 2, "-": 2, "*": 2, "/": 2, "**": 2, "minimum": 2, "maximum": 2, "clip": 3}
POSITIVE = {"log", "log1p", "sqrt", "rsqrt", "**", "/"}


def compare(formula: Expr, leaves: dict[Expr, Tensor], *, seed: int = 1) -> None:
    """Every adjoint of a formula against autograd of sum(g * formula)."""
    g = torch.randn(PAIRS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    adjoints = differentiate(formula, G)
    wanted = {leaf: leaves[leaf].clone().requires_grad_() for leaf in adjoints}
    if not wanted:  # numbers of the launch alone
        return
    loss = (g * evaluate(formula, {**leaves, **wanted})).sum()
    expected = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    for (leaf, adjoint), gradient in zip(adjoints.items(), expected, strict=True):
        made = evaluate(adjoint, {**leaves, G: g})
        assert gradient is not None, f"{leaf} has no gradient in autograd"
        torch.testing.assert_close(made.expand_as(gradient), gradient, rtol=1e-10, atol=1e-12)


def of_leaves(formula: Expr, *values: float) -> dict[Expr, Tensor]:
    """The adjoints of ROW and COLUMN at one point, for cotangent 1."""
    one = torch.ones(1, dtype=torch.float64)
    leaves: dict[Expr, Tensor] = {
        leaf: one * value for leaf, value in zip((ROW, COLUMN, NUMBER), values, strict=False)
    }
    leaves[G] = one
    return {leaf: evaluate(x, leaves) for leaf, x in differentiate(formula, G).items()}


@pytest.mark.parametrize("fn", [fn for fn in ADJOINTS if fn != "where"])
def test_every_function_of_the_table(fn: str) -> None:
    args = (ROW, COLUMN, NUMBER)[: ARITY.get(fn, 1)]
    formula = Apply(fn, args)
    adjoints = differentiate(formula, G)
    assert set(adjoints) == set(args)
    for seed in range(4):
        compare(formula, random_leaves(formula, seed, positive=fn in POSITIVE))


def test_where_sends_the_cotangent_to_the_branch_taken() -> None:
    formula = apply("where", apply("<", DOT, 0.2), apply("*", ROW, DOT), apply("exp", COLUMN))
    for seed in range(4):
        compare(formula, random_leaves(formula, seed))


def test_functions_without_a_slope_stop_the_search() -> None:
    formula = apply("+", apply("floor", ROW), apply("+", apply("detach", COLUMN), DOT))
    assert differentiate(formula, G) == {DOT: G}
    assert differentiate(apply("<", ROW, COLUMN), G) == {}


def test_what_nobody_asked_for_is_not_formed() -> None:
    given = Read(stream("x", "row", differentiable=False))
    assert differentiate(apply("*", apply("exp", given), DOT), G) == {
        DOT: apply("*", G, apply("exp", given))
    }
    assert differentiate(apply("*", SCALE, given), G) == {}


def test_a_formula_that_is_a_leaf_has_the_cotangent_itself() -> None:
    assert differentiate(DOT, G)[DOT] is G


def test_what_is_used_twice_collects_both() -> None:
    formula = apply("*", DOT, apply("+", DOT, ROW))
    compare(formula, random_leaves(formula))
    assert list(differentiate(formula, G)) == [DOT, ROW]


def test_a_shared_value_is_visited_once() -> None:
    """2^40 paths lead to the leaf; the graph has 41 nodes."""
    x: Expr = ROW
    for _ in range(40):
        x = apply("+", x, x)
    (adjoint,) = differentiate(x, Given("g", "pair")).values()
    assert isinstance(adjoint, Expr)


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -1.0])
def test_powers_by_a_number(exponent: float) -> None:
    formula = apply("**", ROW, exponent)
    compare(formula, random_leaves(formula, positive=True))


def test_squares_of_negative_numbers() -> None:
    formula = apply("**", ROW, 2)
    compare(formula, random_leaves(formula))


@pytest.mark.parametrize(
    ("exponent", "slope"), [(0.5, float("inf")), (1.0, 1.0), (2.0, 0.0), (3.5, 0.0)]
)
def test_zero_to_a_power(exponent: float, slope: float) -> None:
    """0 ** p = 0 for every p > 0: no slope in p, and that of p x ** (p - 1) in x."""
    found = of_leaves(Apply("**", (ROW, COLUMN)), 0.0, exponent)
    assert found[ROW].item() == slope
    assert found[COLUMN].item() == 0.0


def test_corners_take_one_side() -> None:
    """abs and relu are flat at 0; clip is open at its bounds; ties go to the first operand."""
    assert of_leaves(Apply("abs", (ROW,)), 0.0)[ROW].item() == 0.0
    assert of_leaves(Apply("relu", (ROW,)), 0.0)[ROW].item() == 0.0
    for at in (1.0, 2.0):
        found = of_leaves(Apply("clip", (ROW, COLUMN, NUMBER)), at, 1.0, 2.0)
        assert [found[x].item() for x in (ROW, COLUMN, NUMBER)] == [1.0, 0.0, 0.0]
    for fn in ("minimum", "maximum"):
        found = of_leaves(Apply(fn, (ROW, COLUMN)), 1.5, 1.5)
        assert [found[x].item() for x in (ROW, COLUMN)] == [1.0, 0.0]


def test_clip_beyond_its_bounds() -> None:
    formula = Apply("clip", (ROW, COLUMN, NUMBER))
    assert [x.item() for x in of_leaves(formula, 0.5, 1.0, 2.0).values()] == [0.0, 1.0, 0.0]
    assert [x.item() for x in of_leaves(formula, 2.5, 1.0, 2.0).values()] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("fn", ["log", "sqrt", "rsqrt"])
def test_a_branch_not_taken_gives_no_nan(fn: str) -> None:
    """where(x > 0, f(x), 0) at 0 and below: 0 times infinity must not come out."""
    formula = apply("where", apply(">", ROW, 0.0), apply(fn, ROW), 0.0)
    for value in (0.0, -1.0):
        assert of_leaves(formula, value)[ROW].item() == 0.0
    assert of_leaves(formula, 4.0)[ROW].item() == {"log": 0.25, "sqrt": 0.25, "rsqrt": -1 / 16}[fn]


def test_a_guarded_quotient() -> None:
    formula = apply("where", apply(">", COLUMN, 0.0), apply("/", ROW, COLUMN), 0.0)
    assert [x.item() for x in of_leaves(formula, 0.0, 0.0).values()] == [0.0, 0.0]


def test_a_sum_over_channels() -> None:
    """FIRE's small network: vectors collect by channel, numbers of the pair over the channels."""
    hidden = apply("relu", apply("+", apply("*", DOT, HIDDEN), ROW))
    weights = Read(stream("w2", "constant", "vector"))
    formula = Sum(apply("*", hidden, weights))
    adjoints = differentiate(formula, G)
    assert {leaf: axes_of(leaf) for leaf in adjoints} == {DOT: 0, HIDDEN: 1, ROW: 0, weights: 1}
    assert isinstance(adjoints[DOT], Sum)
    for seed in range(4):
        compare(formula, random_leaves(formula, seed))


def test_a_look_up_is_a_leaf_of_its_own() -> None:
    """The adjoint of a look-up is what its entry gets; positions have none."""
    entry = Lookup(Read(TABLE), (apply("-", AT_QUERY, AT_KEY),))
    formula = apply("*", apply("tanh", entry), DOT)
    assert list(differentiate(formula, G)) == [entry, DOT]
    leaves = random_leaves(formula)
    compare(formula, {**leaves, entry: evaluate(entry, leaves)})


def test_prefix_sums_have_opposite_signs() -> None:
    assert differentiate(apply("-", FROM, TO), G) == {FROM: G, TO: apply("neg", G)}


@given(FORMULAS, st.integers(0, 1000))
def test_random_formulas(formula: Expr, seed: int) -> None:
    compare(formula, random_leaves(formula, seed))


def test_numbers_need_no_derivative() -> None:
    assert differentiate(Constant(1.0), G) == {}

"""log2(e) in a logit's cheapest factors: the same value, formed less often."""

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
    ROW,
    SCALE,
    TO,
    evaluate,
    random_leaves,
)

from gnomon.dsl.nodes import Constant, Expr, Sum
from gnomon.lowering.passes.differentiate import apply
from gnomon.lowering.passes.fold_log2e import LOG2E, fold_log2e

FACTOR = Constant(LOG2E)


def test_a_scaled_dot_scales_the_scale() -> None:
    assert fold_log2e(apply("*", DOT, SCALE)) == apply("*", DOT, apply("*", SCALE, FACTOR))


def test_the_factor_goes_to_what_varies_least() -> None:
    """A number before a row or column, those before a pair, in either order of writing."""
    for cheap, dear in ((NUMBER, ROW), (SCALE, COLUMN), (ROW, DOT), (COLUMN, DOT), (NUMBER, DOT)):
        folded = apply("*", cheap, FACTOR)
        assert fold_log2e(apply("*", cheap, dear)) == apply("*", folded, dear)
        assert fold_log2e(apply("*", dear, cheap)) == apply("*", dear, folded)


def test_what_joins_row_and_column_is_a_pair() -> None:
    distance = apply("-", AT_QUERY, AT_KEY)
    folded = fold_log2e(apply("*", distance, ROW))
    assert folded == apply("*", distance, apply("*", ROW, FACTOR))


def test_sums_take_it_term_by_term() -> None:
    logit = apply("-", apply("*", DOT, SCALE), TO)
    expected = apply("-", apply("*", DOT, apply("*", SCALE, FACTOR)), apply("*", TO, FACTOR))
    assert fold_log2e(logit) == expected
    assert fold_log2e(apply("neg", FROM)) == apply("neg", apply("*", FROM, FACTOR))


def test_both_branches_of_a_choice() -> None:
    condition = apply("<", DOT, 1.0)
    assert fold_log2e(apply("where", condition, DOT, 2.0)) == apply(
        "where", condition, apply("*", DOT, FACTOR), Constant(2.0 * LOG2E)
    )


def test_everything_else_is_multiplied() -> None:
    for logit in (DOT, apply("tanh", DOT), Sum(apply("*", DOT, HIDDEN))):
        assert fold_log2e(logit) == apply("*", logit, FACTOR)


@given(FORMULAS, st.integers(0, 1000))
def test_the_value_is_log2_e_times_as_large(formula: Expr, seed: int) -> None:
    leaves = random_leaves(formula, seed)
    expected = LOG2E * evaluate(formula, leaves)
    torch.testing.assert_close(
        evaluate(fold_log2e(formula), leaves), expected, rtol=1e-12, atol=1e-13
    )

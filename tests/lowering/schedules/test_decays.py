"""Decays in edge tiles: which terms move, and that behind a closed gate no digit is lost."""

import pytest
import torch
from pair_formulas import DOT, FROM, ROW, SCALE, TO, softmax
from support import assert_close, small_tensors
from tile_calls import Tiles, attend

import gnomon as gn
from gnomon import KVHead, Token
from gnomon.dsl.nodes import Apply, Constant, Expr
from gnomon.dsl.reference import reference
from gnomon.dsl.trace import Declaration
from gnomon.lowering.passes.drop_row_constants import drop_row_constants, terms
from gnomon.lowering.passes.fold_log2e import LOG2E, fold_log2e
from gnomon.lowering.schedules.decays import decays_of


def plus(a: Expr, b: Expr) -> Expr:
    return Apply("+", (a, b))


def minus(a: Expr, b: Expr) -> Expr:
    return Apply("-", (a, b))


SCORE = Apply("*", (DOT, SCALE))
DECAY = minus(FROM, TO)


def test_the_difference_takes_the_place_of_the_column() -> None:
    attention = drop_row_constants(softmax(plus(SCORE, DECAY)))
    decays = decays_of(attention)
    assert decays is not None
    (score, added), (decay, added_too) = terms(decays.weight)[0], (decays.weight, True)
    assert (score, added, added_too) == (SCORE, True, True)
    assert isinstance(decay, Apply)
    assert decay.args[1] == DECAY
    assert (decays.moved, decays.rest) == (FROM, None)


def test_other_row_terms_stay_outside() -> None:
    attention = drop_row_constants(softmax(plus(plus(SCORE, DECAY), ROW)))
    decays = decays_of(attention)
    assert decays is not None
    assert (decays.moved, decays.rest) == (FROM, ROW)


@pytest.mark.parametrize(
    "weight",
    [SCORE, plus(SCORE, ROW), minus(plus(SCORE, ROW), TO), plus(SCORE, Apply("tanh", (DECAY,)))],
    ids=["none", "a row term", "a column alone", "inside a function"],
)
def test_where_nothing_was_dropped_nothing_moves(weight: Expr) -> None:
    assert decays_of(drop_row_constants(softmax(weight))) is None


def test_the_difference_comes_before_the_unit() -> None:
    assert fold_log2e(DECAY) == Apply("*", (DECAY, Constant(LOG2E)))
    folded = fold_log2e(plus(SCORE, TO))
    assert isinstance(folded, Apply)
    assert folded.args[1] == Apply("*", (TO, Constant(LOG2E)))


# ---- the numbers, in the tile interpreter


@gn.variant
def bounded(q, k, log_f: Token[KVHead]):  # type: ignore[no-untyped-def]
    "q_i . k_j / sqrt(d) + 2 tanh(sum_{s=j+1..i} log f_s / 2) + (sum of the same) / sqrt(d)"
    forget = gn.decay(log_f)
    score = gn.dot(q, k) + forget
    return gn.softmax(score * gn.rsqrt_dim(q) + 2 * gn.tanh(forget / 2), mask=gn.causal())


@gn.variant
def windowed(q, k, log_f: Token[KVHead]):  # type: ignore[no-untyped-def]
    "q_i . k_j / sqrt(d) + sum_{s=j+1..i} log f_s,  i - j < 13"
    score = gn.dot(q, k) * gn.rsqrt_dim(q) + gn.decay(log_f)
    return gn.softmax(score, mask=gn.causal() & gn.window(13))


@gn.variant
def summed(q, k, log_f: Token[KVHead]):  # type: ignore[no-untyped-def]
    "sum_j exp(sum_{s=j+1..i} log f_s) q_i . k_j v_j"
    return gn.weighted_sum(gn.exp(gn.decay(log_f)) * gn.dot(q, k), mask=gn.causal())


@pytest.mark.parametrize("tiles", [(8, 8), (16, 4), (4, 16)], ids=str)
@pytest.mark.parametrize("variant", [gn.catalogue.fox, windowed, bounded, summed])
def test_behind_closed_gates_no_digit_is_lost(variant: Declaration, tiles: tuple[int, int]) -> None:
    tensors = small_tensors(variant, time=45, batch=1)
    tensors["log_f"][:, [3, 9, 10, 11, 20, 33, 40]] = -3e4
    do = torch.randn(1, 45, 4, 16, generator=torch.Generator().manual_seed(1))
    made = attend(variant.node, tensors, do, tiles=Tiles(*tiles))
    leaves = {n: x.double().requires_grad_() for n, x in tensors.items()}
    out = reference(variant, **leaves)
    assert_close("out", out, made.out, 5e-7)
    for name, expected in zip(
        leaves, torch.autograd.grad(out, [*leaves.values()], do), strict=True
    ):
        assert_close(f"d{name}", expected, made.grads[name], 1e-5)

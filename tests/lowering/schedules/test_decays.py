"""Edge tiles hold the difference of two prefix sums; what leaves the logit is split accordingly."""

import torch
from pair_formulas import (
    COLUMN,
    DOT,
    FROM,
    NUMBER,
    ROW,
    SCALE,
    TO,
    evaluate,
    random_leaves,
    ratio,
    softmax,
)

from gnomon.lowering.passes.differentiate import apply
from gnomon.lowering.passes.drop_row_constants import drop_row_constants
from gnomon.lowering.schedules.decays import decays_of

SCORE = apply("*", DOT, SCALE)
DECAY = apply("-", FROM, TO)


def test_the_row_side_comes_back_beside_the_key_side() -> None:
    made = decays_of(drop_row_constants(softmax(apply("+", SCORE, DECAY))))
    assert made is not None
    assert (made.weight, made.moved, made.rest) == (apply("+", SCORE, DECAY), FROM, None)


def test_other_row_terms_stay_outside() -> None:
    logit = apply("+", apply("+", SCORE, DECAY), apply("-", NUMBER, ROW))
    made = decays_of(drop_row_constants(softmax(logit)))
    assert made is not None
    assert (made.moved, made.rest) == (FROM, apply("-", NUMBER, ROW))
    assert made.rest is not None
    leaves = random_leaves(logit)
    parts = [evaluate(part, leaves) for part in (made.weight, made.rest)]
    torch.testing.assert_close(parts[0] + parts[1], evaluate(logit, leaves))


def test_without_a_decay_there_is_nothing_to_split() -> None:
    for logit in (SCORE, apply("+", SCORE, ROW), apply("+", SCORE, apply("-", COLUMN, ROW))):
        assert decays_of(drop_row_constants(softmax(logit))) is None
    assert decays_of(softmax(apply("+", SCORE, DECAY))) is None  # nothing has left the logit
    assert decays_of(ratio(apply("exp", DECAY), apply("exp", DECAY))) is None

"""The shapes that are timed."""

import pytest

from gnomon.benchmarks.shapes import Problem, problem_of
from gnomon.dsl.errors import InputError


@pytest.mark.parametrize(
    ("length", "dim", "batch", "heads"),
    [
        (2048, 128, 8, 16),
        (8192, 128, 2, 16),
        (8192, 64, 2, 32),
        (16384, 128, 1, 16),
        (32768, 128, 1, 8),
        (32768, 64, 1, 16),
    ],
)
def test_tokens_and_channels_stay(length: int, dim: int, batch: int, heads: int) -> None:
    problem = problem_of(length, dim)
    assert (batch, heads) == (problem.B, problem.H)
    assert batch * length * heads * dim == 16384 * 2048


def test_key_heads_are_shared_by_groups() -> None:
    problem = problem_of(8192, 128, 4)
    assert (problem.H, problem.key_heads) == (16, 4)
    assert problem.fields() == {"B": 2, "T": 8192, "H": 16, "groups": 4, "D": 128}
    assert str(problem) == "T=8192 D=128 B=2 H=16 (4 to a key head)"


def test_other_sizes_for_a_trial() -> None:
    assert problem_of(64, 16, tokens=256, channels=64) == Problem(4, 64, 4, 1, 16)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="--groups: expected a divisor of the 16 heads"):
        problem_of(8192, 128, 3)
    with pytest.raises(InputError, match="--lengths: expected at most 1024 at D = 16; got 2048"):
        problem_of(2048, 16, tokens=256, channels=64)

"""The same bits on every run: deterministic gradients, also beside other work on the GPU."""

import pytest
import torch
from compiled_calls import assert_bitwise
from kernel_calls import (
    CORE,
    DEVICE,
    HALF,
    compiled,
    gpu_only,
    group,
    kernel_test,
    pick,
    row,
    shape,
)
from torch import Tensor

from gnomon.runtime.check import problem_of, results
from gnomon.runtime.grid import Case

pytestmark = kernel_test


def run(name: str, time: int, packed: tuple[int, ...] | None = None) -> dict[str, Tensor]:
    """Output, log-sum-exp and gradients of a call that is the same each time."""
    both = (packed, packed) if packed else None
    sizes = shape(time, batch=1 if packed else 2)
    case = Case("again", sizes, HALF, packed=both, lse=True)
    problem = problem_of(row(name), case, DEVICE, 0, {})
    found = results(compiled(row(name)), problem.leaves, problem)
    return {key: x.detach() for key, x in found.items() if x is not None}


@pytest.mark.parametrize("name", [pytest.param(n, marks=group(n, HALF)) for n in CORE])
def test_the_same_bits_every_time(name: str) -> None:
    """Four query heads add into one key head; learned parameters sum over all pairs."""
    first = run(name, pick(1000, 20))
    assert first["dk"].any()
    for _ in range(pick(9, 1)):
        assert_bitwise(run(name, pick(1000, 20)), first)


@pytest.mark.parametrize("name", [pytest.param(n, marks=group(n, "packed")) for n in ("fox", "t5")])
def test_the_same_bits_of_packed_sequences(name: str) -> None:
    lengths = pick((300, 0, 17, 200), (5, 0, 18))
    first = run(name, sum(lengths), lengths)
    for _ in range(pick(9, 1)):
        assert_bitwise(run(name, sum(lengths), lengths), first)


@gpu_only
@pytest.mark.parametrize("name", [pytest.param(n, marks=group(n, HALF)) for n in ("fox", "fire")])
def test_the_same_bits_beside_other_work(name: str) -> None:
    """Products on another stream keep part of the GPU busy, so programs run in other orders."""
    first = run(name, 1000)
    side, a = torch.cuda.Stream(), torch.randn(2048, 2048, device=DEVICE)
    for _ in range(9):
        with torch.cuda.stream(side):
            for _ in range(4):
                a = torch.tanh(a @ a)
        assert_bitwise(run(name, 1000), first)
    side.synchronize()

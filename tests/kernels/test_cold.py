"""A first call gives what every later one gives, and one of another shape between changes nothing.

Tuners that try candidates on the caller's tensors break this: a sum is taken several times, an
output is not zeroed for the real launch, options of the last shape stay.
"""

import pytest
import torch
from compiled_calls import assert_bitwise
from kernel_calls import CORE, DEVICE, HALF, ON, group, kernel_test, pick, row, shape
from torch import Tensor

from gnomon.runtime.check import function_under_test, problem_of, results
from gnomon.runtime.compile import Attention
from gnomon.runtime.grid import Case

pytestmark = kernel_test
NAMES = ("fox", "t5", "learned_sink")
"""A gate, a table whose gradient is summed, a learned scalar."""


def run(function: Attention, name: str, time: int) -> dict[str, Tensor]:
    problem = problem_of(row(name), Case("again", shape(time), HALF, lse=True), DEVICE, 0, {})
    before = {key: x.clone() for key, x in problem.leaves.items()}
    found = results(function, problem.leaves, problem)
    assert_bitwise(problem.leaves, before)
    return {key: x.detach() for key, x in found.items() if x is not None}


@pytest.mark.parametrize("name", [pytest.param(n, marks=group(n, HALF)) for n in NAMES])
def test_a_first_call_gives_what_a_second_one_gives(name: str) -> None:
    """Inputs are as they were before."""
    assert name in CORE
    function = function_under_test(row(name), ON)
    cold = run(function, name, pick(300, 20))
    assert cold["dk"].any()
    assert_bitwise(run(function, name, pick(300, 20)), cold)


@pytest.mark.parametrize("name", [pytest.param(n, marks=group(n, HALF)) for n in NAMES])
def test_another_shape_in_between_changes_nothing(name: str) -> None:
    """Lengths of two buckets, whose tiles may differ: A, B, A."""
    function = function_under_test(row(name), ON)
    first = run(function, name, pick(500, 20))
    run(function, name, pick(5000, 33))
    assert_bitwise(run(function, name, pick(500, 20)), first)
    assert torch.isfinite(first["out"]).all()

"""The current stream is respected, and padded calls can be captured into a CUDA graph.

Packed calls read their offsets on the host, so they cannot.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_calls import DEVICE, HALF, compiled, gpu_only, group, kernel_test, row, shape
from torch import Tensor

from gnomon.runtime.check import Problem, problem_of
from gnomon.runtime.grid import Case

pytestmark = [*kernel_test, gpu_only]
NAMES = [pytest.param(n, marks=group(n, HALF)) for n in ("fox", "tapa", "t5", "softpick")]


def call(name: str, seed: int = 0) -> Problem:
    return problem_of(row(name), Case("streams", shape(257), HALF), DEVICE, seed, {})


def forward_and_backward(name: str) -> Callable[[dict[str, Tensor], Tensor], list[Tensor]]:
    """Leaves and the gradient of the output -> output and all gradients."""
    function = compiled(row(name))

    def run(leaves: dict[str, Tensor], do: Tensor) -> list[Tensor]:
        wanted = [x for x in leaves.values() if x.requires_grad]
        out = function(**leaves)
        return [out.detach(), *torch.autograd.grad(out, wanted, do)]

    return run


def leaves_of(problem: Problem) -> dict[str, Tensor]:
    return {n: x.detach().clone().requires_grad_() for n, x in problem.leaves.items()}


@pytest.mark.parametrize("name", NAMES)
def test_kernels_run_on_the_current_stream(name: str) -> None:
    """The inputs come late, on a side stream: kernels of another stream would see zeros."""
    problem, run = call(name), forward_and_backward(name)
    expected = run(leaves_of(problem), problem.do)
    late = {n: torch.zeros_like(x) for n, x in problem.leaves.items()}
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)  # half a second
        for n, x in problem.leaves.items():
            late[n].copy_(x)
        made = run({n: x.requires_grad_() for n, x in late.items()}, problem.do)
    side.synchronize()
    for actual, wanted in zip(made, expected, strict=True):
        assert torch.equal(actual, wanted)


def captured(work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of some work, which has run before on a side stream as torch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = work()
    return graph, made


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_forward_takes_new_inputs(name: str) -> None:
    function, first, second = compiled(row(name)), call(name), call(name, seed=7)
    static = {n: x.clone() for n, x in first.leaves.items()}
    with torch.no_grad():
        graph, out = captured(lambda: function(**static))
        for problem in (second, first):
            for n, x in problem.leaves.items():
                static[n].copy_(x)
            graph.replay()
            assert torch.equal(out, function(**problem.leaves))


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_step_takes_new_inputs(name: str) -> None:
    run, first, second = forward_and_backward(name), call(name), call(name, seed=7)
    static, do = leaves_of(first), first.do.clone()
    graph, made = captured(lambda: run(static, do))
    for problem in (second, first):
        with torch.no_grad():
            for n, x in problem.leaves.items():
                static[n].copy_(x)
            do.copy_(problem.do)
        graph.replay()
        for actual, wanted in zip(made, run(leaves_of(problem), problem.do), strict=True):
            assert torch.equal(actual, wanted)

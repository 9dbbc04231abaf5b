"""The stages of a transport as CPU kernels: plain Python here, the text that Numba compiles."""

import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import printed_numba
import pytest
import torch
from transport_data import random_call
from transport_oracle import expected
from transport_stages import Stages, kernels

from gnomon.lowering.emit import numba
from gnomon.lowering.schedules.transport.precision import DEFAULT, EXACT
from gnomon.lowering.schedules.transport.stage import Plan
from gnomon.lowering.tile import Kernel

modules: dict[Kernel, ModuleType] = {}


def run(kernel: Kernel, tensors: dict[str, Any], numbers: Mapping[str, int]) -> None:
    if kernel not in modules:
        text = numba.print_module([kernel], "f32", jit=False)
        modules[kernel] = printed_numba.load(text, kernel.name)
    printed_numba.launch(modules[kernel], kernel, tensors, numbers)


@pytest.mark.parametrize("precision", [DEFAULT, EXACT])
def test_stages_on_a_cpu_are_fp32_in_any_form(precision: Any) -> None:
    call = random_call((2, 37, 2, 1, 24))
    plan = Plan(block=8, whole=False, precision=precision)
    inputs = {name: x.float().numpy() for name, x in call.items() if name != "u"}
    stages = Stages(plan, run, inputs, narrow=np.float32)
    stages.forward()
    leaves = {name: call[name].clone().requires_grad_() for name in ("q", "k", "w", "beta")}
    q, k, w, beta = (leaves[name] for name in ("q", "k", "w", "beta"))
    wanted = expected(q, k, w, w, beta, 16)
    total = torch.zeros(())
    for name, x in zip(("qv", "kv", "loc"), wanted, strict=True):
        found = torch.from_numpy(np.where(x.detach() != 0, stages.memory[name], 0))
        assert (found - x).norm() < 1e-6 * x.norm(), name
        d = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)) * (x != 0)
        stages.memory[f"d_{name}"] = d.float().numpy()
        total = total + (x * d).sum()
    stages.backward()
    grads = torch.autograd.grad(total, list(leaves.values()))
    for name, grad in zip(leaves, grads, strict=True):
        found = torch.from_numpy(stages.memory[f"d{name}"])
        assert (found - grad).norm() < 1e-6 * grad.norm(), name


@pytest.mark.parametrize("precision", [DEFAULT, EXACT])
@pytest.mark.parametrize("shared", [True, False])
def test_no_product_writes_over_its_own_operand(precision: Any, shared: bool) -> None:
    """BLAS does not copy what overlaps, though numpy in plain Python does."""
    count = 0
    for kernel in kernels(Plan(block=8, shared=shared, precision=precision)):
        text = numba.print_kernel(kernel, "f32")
        owner = dict(re.findall(r"^ +(b_\w+) = (b_\w+)$", text, re.MULTILINE))
        pattern = r"np\.dot\(\s*(\w+)(?:\.T)?,\s*(\w+)(?:\.T)?,\s*out=(\w+)"
        for a, b, out in re.findall(pattern, text):
            count += 1
            home, *operands = (owner.get(name, name) for name in (out, a, b))
            assert home not in operands, (kernel.name, a, b, out)
    assert count > 60

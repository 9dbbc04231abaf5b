"""Helpers in an NVIDIA GPU's own instructions beside their portable twins, within what they add."""

import kernel_calls
import pytest
import torch
from torch import Tensor

from gnomon.lowering.emit import triton_helpers
from gnomon.runtime.modules import load

pytestmark = [*kernel_calls.kernel_test, kernel_calls.gpu_only]
APPLY = """

@triton.jit
def apply(x, y, N, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, FUNCTION(tl.load(x + o, mask=o < N)), mask=o < N)
"""


def applied(name: str, x: Tensor) -> Tensor:
    """What a helper gives on the GPU."""
    helpers = "\n\n".join(triton_helpers.source(n) for n in triton_helpers.closure({name}))
    head = "import triton\nimport triton.language as tl\n\n\n"
    module = load(f"twin_{name}", head + helpers + APPLY.replace("FUNCTION", name))
    y = torch.empty_like(x)
    module.apply[(-(-x.numel() // 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


@pytest.mark.parametrize("fn", ["cos", "sin"])
def test_turns(fn: str) -> None:
    """Up to 20 turns, phases of any model: 2^-20.9 and the rounding of the angle, 2^-22 of it."""
    x = torch.linspace(-20, 20, 200_001, device="cuda")
    exact = getattr(torch, fn)(2 * torch.pi * x.double())
    near, far = applied(f"{fn}_turns", x), applied(f"{fn}_turns_approx", x)
    assert (near - exact).abs().max() <= 2e-7
    bound = 2**-20.9 + 2**-22 * (2 * torch.pi * x.double()).abs()
    assert ((far - exact).abs() <= bound).all()


def test_logarithms() -> None:
    """Distances from 1 to 2^20: 2^-22 of the logarithm, or beside 1."""
    x = torch.arange(1, 2**20, device="cuda").float()
    exact = x.double().log2()
    assert ((applied("log2_approx", x) - exact).abs() <= 2**-21.5 * exact.clamp(min=1)).all()

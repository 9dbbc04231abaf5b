"""The kernels that sum along the sequence, beside float64 sums written out step by step."""

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace

import pytest
import torch
from kernel_calls import DEVICE, kernel_test, pick
from torch import Tensor

from gnomon.lowering.emit.torch_library import closure, functions
from gnomon.runtime.modules import load

pytestmark = kernel_test
HEAD = """from contextlib import nullcontext

import torch
import triton
import triton.language as tl"""
DIGITS = 2.0**-46
"""Two digits of fp32 hold 48 bits of a sum; half a step of the lower one, and a bit to spare."""


@pytest.fixture(scope="module")
def module() -> ModuleType:
    names = closure({"prefix_digits_on_gpu", "row_statistics_on_gpu"})
    return load("sums", "\n\n\n".join([HEAD, *functions(names)]) + "\n")


def summed(x: Tensor, ends: Sequence[int]) -> Tensor:
    """The sums by a loop over tokens, in float64; a step below -1e30 counts as -1e5."""
    x = x.double().cpu()
    x = torch.where(x < -1e30, -1e5, x)
    found, starts = torch.empty_like(x), (0, *ends)
    for t in range(x.shape[1]):
        before = 0.0 if t in starts else found[:, t - 1]
        found[:, t] = before + x[:, t]
    return found


def steps(batch: int, time: int, heads: int) -> Tensor:
    """Steps of gates [batch, time, heads], strided, some of them closed."""
    random = torch.Generator().manual_seed(time)
    x = -torch.rand(batch, heads, time, 2, generator=random)[..., 0].exp()
    x[:, :, 3::97] = -torch.inf
    return x.transpose(1, 2).to(DEVICE)


def call(offsets: Sequence[int] | None = None) -> SimpleNamespace:
    given = None if offsets is None else torch.tensor(offsets, dtype=torch.int32, device=DEVICE)
    return SimpleNamespace(cu_seqlens_k=given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("time", [1, 16, 1023, 1025, pick(8192, 2500)])
def test_prefix_sums(module: ModuleType, time: int, dtype: torch.dtype) -> None:
    x = steps(2, time, 3).to(dtype)
    high, low = module.prefix_digits(x, call())
    expected = summed(x, [])
    found = high.double().cpu() + low.double().cpu()
    assert ((found - expected).abs() <= DIGITS * expected.abs()).all()
    assert high.stride() == low.stride()
    assert high.stride(1) == 1
    assert high.stride(2) % 16 == 0


def test_packed_sequences_do_not_touch(module: ModuleType) -> None:
    """Each starts anew, whatever stands in its neighbours; an empty one is none."""
    offsets = (0, 5, 5, 40, 1100, 2300)
    x = steps(1, 2300, 2)
    x[0, 5:40] = torch.nan
    high, low = module.prefix_digits(x, call(offsets))
    expected = summed(x, offsets)
    found = high.double().cpu() + low.double().cpu()
    torch.testing.assert_close(found, expected, rtol=DIGITS, atol=0.0, equal_nan=True)
    assert found[0, 40:].isfinite().all()


@pytest.mark.parametrize("offsets", [None, (0, 5, 5, 40, 1100)])
def test_gradients(module: ModuleType, offsets: tuple[int, ...] | None) -> None:
    """Each step has the gradients of all later sums of its sequence; a closed one has none."""
    x = steps(1 if offsets else 2, 1100, 2).requires_grad_()
    high, low = module.prefix_digits(x, call(offsets))
    assert not low.requires_grad
    d = torch.randn(high.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    (found,) = torch.autograd.grad(high, x, d)
    backwards = [1100 - end for end in reversed(offsets or ())][1:]
    expected = summed(d.flip(1), backwards).flip(1).masked_fill(x.detach().cpu() < -1e30, 0.0)
    assert (found.double().cpu() - expected).abs().max() <= 2.0**-23 * expected.abs().max()


def test_nothing_to_sum(module: ModuleType) -> None:
    x = torch.empty(2, 0, 3, device=DEVICE, requires_grad=True)
    high, _ = module.prefix_digits(x, call())
    (found,) = torch.autograd.grad(high.sum(), x)
    assert found.shape == x.shape


@pytest.mark.parametrize("width", [8, 64, 96])
def test_row_statistics(module: ModuleType, width: int) -> None:
    """Of strided rows, with a row that has no key."""
    random = torch.Generator().manual_seed(width)
    do, o = (torch.randn(2, 3, 37, width, generator=random).to(DEVICE) for _ in range(2))
    do, o = do.transpose(1, 2), o.transpose(1, 2)
    lse, dlse = (torch.randn(2, 37, 3, generator=random).to(DEVICE) for _ in range(2))
    lse[0, 5] = -torch.inf
    delta, lse_log2, kept = module.row_statistics(do, o, lse, dlse)
    assert (kept[0, 5] == 0).all()
    dlse[0, 5] = 0.0
    assert torch.equal(kept, dlse)
    expected = (do.double() * o.double()).sum(-1) - dlse
    torch.testing.assert_close(delta.double(), expected, rtol=1e-5, atol=1e-5)
    assert (lse_log2[0, 5] == torch.inf).all()
    lse[0, 5] = torch.inf
    torch.testing.assert_close(lse_log2, lse / torch.log(torch.tensor(2.0)).to(lse))

"""The kernels that find which tiles are skipped, beside the bounds found pair by pair."""

import math
from types import ModuleType

import pytest
import torch
from kernel_calls import DEVICE, kernel_test
from torch import Tensor

from gnomon.lowering.emit.torch_library import closure, functions
from gnomon.runtime.modules import load

pytestmark = kernel_test
HEAD = """import math
from contextlib import nullcontext

import torch
import triton
import triton.language as tl"""


@pytest.fixture(scope="module")
def module() -> ModuleType:
    names = closure({"margin_of_norms_on_gpu", "staircases_on_gpu"})
    return load("reach", "\n\n\n".join([HEAD, *functions(names)]) + "\n")


def sums(time: int, heads: int, *, falls: bool) -> Tensor:
    """Sums of a decay [batch 2, time, heads], laid along time; of any steps unless it `falls`."""
    random = torch.Generator().manual_seed(time)
    steps = torch.randn(2, heads, time, generator=random)
    return (-steps.abs() if falls else steps).cumsum(-1).transpose(1, 2).to(DEVICE)


def weighs(margin: Tensor, rows: Tensor, columns: Tensor, row_tile: int, key_tile: int) -> Tensor:
    """[batch, head, query tile, key tile]: no key of this tile or one before is too far below."""
    rows, columns = (x.cpu().transpose(1, 2) for x in (rows, columns))
    groups = rows.shape[1] // columns.shape[1]
    highest = torch.stack([t.amax(-1) for t in rows.split(row_tile, -1)], -1)
    lowest = torch.stack([t.amin(-1) for t in columns.split(key_tile, -1)], -1)
    lowest = lowest.cummin(-1).values.repeat_interleave(groups, 1)
    return lowest[:, :, None, :] < (margin.cpu()[..., None] + highest)[..., None]


@pytest.mark.parametrize("falls", [True, False])
@pytest.mark.parametrize(("row_tile", "key_tile"), [(16, 32), (64, 16)])
@pytest.mark.parametrize("time", [1, 64, 333, 1200])
def test_staircases(
    module: ModuleType, time: int, row_tile: int, key_tile: int, *, falls: bool
) -> None:
    """Both sides of the same staircase, for query heads that share the sums of keys."""
    rows, columns = sums(max(time - 7, 1), 4, falls=falls), sums(time, 2, falls=falls)
    margin = torch.tensor([[9.0, 40.0, 0.5, 1e4]] * 2, device=DEVICE)
    near = weighs(margin, rows, columns, row_tile, key_tile)
    first = module.first_keys(margin, rows, columns, row_tile, key_tile, 4).cpu()
    count = near.shape[-1]
    places = torch.arange(count)
    assert torch.equal(first // key_tile, torch.where(near, places, count).amin(-1).int())
    last = module.last_queries(margin, rows, columns, row_tile, key_tile, 4).cpu()
    places = torch.arange(1, near.shape[-2] + 1)[:, None]
    assert torch.equal(last // row_tile, torch.where(near, places, 0).amax(-2).int())


def test_a_margin_for_all_heads(module: ModuleType) -> None:
    rows = sums(100, 2, falls=True)
    one, each = torch.full((1, 1), 20.0, device=DEVICE), torch.full((2, 2), 20.0, device=DEVICE)
    found = (module.first_keys(m, rows, rows, 16, 16, 2) for m in (one, each))
    assert torch.equal(*found)


@pytest.mark.parametrize("time", [1, 63, 200])
def test_margin_of_norms(module: ModuleType, time: int) -> None:
    """Of strided vectors in 16 bits; a query head for each key head, and two."""
    random = torch.Generator().manual_seed(time)
    q, k = (torch.randn(2, time, h, 48, generator=random)[..., ::2] for h in (4, 2))
    q, k = (x.to(DEVICE, torch.float16) for x in (q, k))
    found = module.margin_of_norms(q, k, -0.3, 500, -10.0)
    norms = [x.double().norm(dim=-1).amax(1) for x in (q, k)]
    expected = 2 * 0.3 * norms[0] * norms[1].repeat_interleave(2, 1) + math.log(500) + 10
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0.0)


def test_no_tokens(module: ModuleType) -> None:
    q = torch.empty(2, 0, 4, 8, device=DEVICE)
    assert module.margin_of_norms(q, q, 1.0, 0, -10.0).shape == (2, 4)
    rows = torch.empty(2, 0, 4, device=DEVICE)
    margin = torch.zeros(2, 4, device=DEVICE)
    assert module.first_keys(margin, rows, rows, 16, 16, 4).shape == (2, 4, 0)

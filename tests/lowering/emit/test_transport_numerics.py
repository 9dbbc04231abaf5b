"""How far the versions of 8192 tokens are from the products of the definition, by distance.

With vectors of 16 bits the bound is one rounding of a version, the same near and far (4e-3, as the
precision plan has it). With vectors of fp32 what is left is the rounding of beta u, 2^-24 a step:
where the same few directions come again and again these add up, to distance 2^-24 at most.
"""

from itertools import pairwise

import pytest
import torch
from support import rms
from torch import Tensor
from transport_steps import call_of, directions, stages, swap_tokens

TIME, ROWS, D, LEAF = 8192, 64, 64, 64
BANDS = (0, 64, 512, 1024, 2048, 4096, 8192)


def exact(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """q_i H_i ... H_{j+1} k_j of the last rows, [row, time]; 0 for later keys."""
    found = torch.zeros(ROWS, TIME, dtype=torch.float64)
    x = q.clone()
    waiting = torch.arange(TIME - ROWS, TIME)
    for token in reversed(range(TIME)):
        sees = waiting >= token
        found[sees, token] = x[sees] @ k[token]
        moved = x - beta[token] * (x @ w[token])[:, None] * w[token]
        x = torch.where(sees[:, None], moved, x)
    return found


def by_versions(q: Tensor, k: Tensor, near: Tensor) -> Tensor:
    """The same from the stages: the last leaf's queries meet each level's sibling."""
    found = torch.zeros(ROWS, TIME, dtype=torch.float64)
    leaf, rows = TIME // LEAF - 1, TIME // 2
    found[:, -LEAF:] = near[0, :, 0].double()
    for level in range((TIME // LEAF - 1).bit_length()):
        span = LEAF << level
        pair = (leaf >> level) // 2
        base = level * rows + pair * span
        own = base + (leaf & ((1 << level) - 1)) * LEAF
        lines, keys = q[0, own : own + ROWS, 0].double(), k[0, base : base + span, 0].double()
        found[:, 2 * pair * span : (2 * pair + 1) * span] = lines @ keys.T
    return found


def errors(expected: Tensor, actual: Tensor) -> list[float]:
    """Relative RMS errors by distance."""
    far = torch.arange(TIME - ROWS, TIME)[:, None] - torch.arange(TIME)
    bands = [(far >= a) & (far < b) for a, b in pairwise(BANDS)]
    return [rms((actual - expected)[band]) / rms(expected[band]) for band in bands]


@pytest.mark.parametrize("data", ["swaps of 5 slots", "dense reflections", "one w again and again"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_no_error_grows_with_the_distance(data: str, dtype: torch.dtype) -> None:
    w = {
        "swaps of 5 slots": lambda: swap_tokens(TIME, 1, D),
        "dense reflections": lambda: directions(1, TIME, 1, D, seed=2),
        "one w again and again": lambda: directions(1, 1, 1, D).expand(1, TIME, 1, D),
    }[data]()
    w = w.float()
    # beta |w|^2 = 2: of w as rounded, so that the steps are reflections
    beta = (2 / w.double().square().sum(-1)).float()
    random = torch.Generator().manual_seed(4)
    q = torch.randn(1, ROWS, 1, D, generator=random).to(dtype)
    k = torch.randn(1, TIME, 1, D, generator=random).to(dtype)
    module = stages("low_rank", LEAF)
    call = call_of(module, [(ROWS, TIME)], 1, 1)
    made = module.LowRankVersions.apply(call, q, k, w, w, beta)
    wanted = exact(*(x.double() for x in (q[0, :, 0], k[0, :, 0], w[0, :, 0], beta[0, :, 0])))
    found = errors(wanted, by_versions(*made))
    print(data, dtype, *(f"{error:.1e}" for error in found))
    for far, error in zip(BANDS[1:], found, strict=True):
        assert error <= (4e-3 if dtype == torch.bfloat16 else far * 2**-24), far

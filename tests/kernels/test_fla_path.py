"""The published test cases of flash-linear-attention's PaTH attention, at its own tolerances.

Shapes, values and bounds of its tests/ops/test_path_attn.py (0.6.0), the disabled dense case too;
the reference is the float64 oracle. In its formula the gate is scaled with the score, which is
`path_fox_fla` here.
An error counts as rms(difference) / rms(expected), or if no element is off by more than 1e-6.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from kernel_calls import INTERPRETED, ON, compiled, gpu_only, kernel_test
from torch import Tensor
from torch.nn.functional import normalize

import gnomon as gn
from gnomon.dsl.reference import reference
from gnomon.runtime.check import rms

pytestmark = kernel_test


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    """The oracle takes 0.3 to 6 GiB a case, mostly maps of pairs: other workers shall have them."""
    yield
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


DENSE = {
    "out": 5e-3,
    "dq": 8e-3,
    "dk": 8e-3,
    "dv": 8e-3,
    "dw": 15e-3,
    "dbeta": 2e-2,
    "dlog_f": 2e-2,
}
PACKED = dict.fromkeys(DENSE, 5e-3)


def tensors(
    batch: int, time: int, kv: int, heads: int, d: int, *, gate: bool, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Normal q, k, v; unit w and beta in fp32."""
    random = torch.Generator().manual_seed(42)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    made = {"q": normal(batch, time, heads, d), "k": normal(batch, time, kv, d)}
    made["v"] = normal(batch, time, kv, d)
    made = {name: x.to(dtype) for name, x in made.items()}
    made["w"] = normalize(normal(batch, time, kv, d), dim=-1)
    beta = torch.rand(batch, time, kv, generator=random)
    made["beta"] = beta / 2 + 1.5 if dtype == torch.bfloat16 else beta.sigmoid()
    if gate:
        made["log_f"] = torch.rand(batch, time, heads, generator=random).mul(0.05).add(0.95).log()
    return {name: x.to("cpu" if INTERPRETED else "cuda") for name, x in made.items()}


def results(function: Any, given: Mapping[str, Tensor], do: Tensor, **options: Any) -> Any:
    leaves = {n: x.detach().requires_grad_() for n, x in given.items()}
    out = function(**leaves, **options)
    found = torch.autograd.grad(out, list(leaves.values()), do.to(out.dtype))
    return {"out": out.detach(), **{f"d{n}": g for n, g in zip(leaves, found, strict=True)}}


def assert_within(given: Mapping[str, Tensor], bounds: Mapping[str, float], **options: Any) -> None:
    """Output and every gradient, beside the oracle's of the same rounded inputs."""
    variant = (gn.catalogue.path_fox_fla if "log_f" in given else gn.catalogue.path).node
    do = torch.rand(given["q"].shape, generator=torch.Generator().manual_seed(1)).to(given["q"])
    wide = {n: x.double() for n, x in given.items()}
    expected = results(partial(reference, variant), wide, do, **options)
    actual = results(compiled(variant), given, do, **options)
    for name, wanted in expected.items():
        off = actual[name].double() - wanted
        error = rms(off) / rms(wanted)
        print(f"{name} {error:.1e} of {bounds[name]}")
        assert error < bounds[name] or off.abs().max() <= 1e-6, name


@pytest.mark.parametrize(
    ("batch", "time", "kv", "heads", "d", "gate"),
    [
        (5, 512, 2, 8, 128, True),
        (3, 1024, 2, 8, 64, True),
        (2, 2000, 1, 4, 64, False),
        (1, 4000, 1, 2, 128, False),
        (10, 62, 2, 8, 128, True),  # there disabled: "core dump on Hopper"
    ],
)
@gpu_only
def test_dense(batch: int, time: int, kv: int, heads: int, d: int, gate: bool) -> None:
    given = tensors(batch, time, kv, heads, d, gate=gate, dtype=torch.bfloat16)
    assert_within(given, DENSE)


@pytest.mark.parametrize(
    ("kv", "heads", "d", "gate", "offsets"),
    [
        (2, 4, 128, False, (0, 15, 333, 2048)),
        (2, 4, 128, True, (0, 15, 333, 2048)),
        (2, 4, 64, True, (0, 841, 889, 4096)),
        (2, 4, 64, False, (0, 841, 889, 2000, 3000, 4096)),
        (2, 16, 128, True, (0, 500, 1023, 2000, 3000, 4096)),
    ],
)
@gpu_only
def test_packed(kv: int, heads: int, d: int, gate: bool, offsets: tuple[int, ...]) -> None:
    given = tensors(1, offsets[-1], kv, heads, d, gate=gate, dtype=torch.float16)
    cu = torch.tensor(offsets, dtype=torch.int32, device=given["q"].device)
    assert_within(given, PACKED, cu_seqlens=cu)


@pytest.mark.skipif(ON == "cuda", reason="the whole cases run there")
@pytest.mark.parametrize("gate", [False, True])
def test_packed_in_small(gate: bool) -> None:
    """The same values over a few tokens, for machines without a GPU."""
    given = tensors(1, 50, 1, 2, 16, gate=gate, dtype=torch.float16)
    cu = torch.tensor((0, 3, 30, 50), dtype=torch.int32)
    assert_within(given, PACKED, cu_seqlens=cu)

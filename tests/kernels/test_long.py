"""Long sequences: the far field beside an oracle of a few rows, and memory that grows with T d."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from compiled_calls import qkv
from kernel_calls import (
    DEVICE,
    HALF,
    HALF_DTYPE,
    NOTHING,
    Judge,
    compiled,
    gpu_only,
    group,
    kernel_test,
    pick,
    row,
    shape,
)
from torch import Tensor

import gnomon as gn
from gnomon.dsl.nodes import Variant
from gnomon.dsl.reference import reference
from gnomon.runtime.check import Record, bound, difference, rms
from gnomon.runtime.grid import DTYPES
from gnomon.runtime.sample import Sampler

pytestmark = kernel_test
TIME = pick(8192, 150)
ROWS = pick((0, 1, 777, 4095, 4096, 6001, 8000, 8190, 8191), (0, 1, 77, 149))
"""The queries that have a gradient: each is the last query of a shorter sequence."""
NAMES = ("fox", "tapa", "rope", "alibi_learned", "t5", "fire", "softpick", "streaming", "sandwich")


def inputs(variant: Variant, dtype: str) -> dict[str, Tensor]:
    """Tensors of a long call; gates near 1 with a few near 0, slopes that reach far."""
    sizes = shape(TIME, batch=1, heads=2, kv_heads=1)
    ranges = {"slope": (1e-4, 1e-2)}
    made = Sampler(sizes, 0, far=True, ranges=ranges).tensors(variant, DTYPES[dtype])
    if "log_f" in made:
        made["log_f"] = torch.where(made["log_f"] < -1, -40.0, made["log_f"] / 50)
        made["log_f"][:, TIME // 3 : -1] = made["log_f"][:, TIME // 3 : -1].clamp(min=-1e-3)
    return {name: x.to(DEVICE) for name, x in made.items()}


def of_rows(variant: Variant, tensors: dict[str, Tensor], do: Tensor) -> dict[str, Tensor]:
    """The oracle's rows, and every gradient of the sum of them: rows of T keys, never T x T."""
    wide = {n: x.double().detach().requires_grad_() for n, x in tensors.items()}
    constants = {x.name for x in variant.inputs if x.place == "constant"}
    loss, outs = torch.zeros((), dtype=torch.float64, device=do.device), []
    oracle: Callable[..., Tensor] = partial(reference, variant)
    for i in ROWS:
        own = {n: x if n in constants else x[:, : i + 1] for n, x in wide.items()}
        own["q"] = wide["q"][:, i : i + 1]
        out = oracle(**own)
        outs.append(out)
        loss = loss + (out * do[:, i : i + 1].double()).sum()
    found = torch.autograd.grad(loss, list(wide.values()), materialize_grads=True)
    return {"out": torch.cat(outs, 1), **{f"d{n}": x for n, x in zip(wide, found, strict=True)}}


def of_kernels(variant: Variant, tensors: dict[str, Tensor], do: Tensor) -> dict[str, Tensor]:
    leaves = {n: x.detach().requires_grad_() for n, x in tensors.items()}
    out = compiled(variant)(**leaves)
    found = torch.autograd.grad(out, list(leaves.values()), do, materialize_grads=True)
    made = {f"d{n}": x for n, x in zip(leaves, found, strict=True)}
    assert all(x.isfinite().all() for x in (out, *made.values()))
    return {"out": out[:, list(ROWS)].detach(), **made}


@pytest.mark.parametrize("dtype", [HALF, "fp32"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=group(n, "long")) for n in NAMES])
def test_the_far_field(name: str, dtype: str, judge: Judge) -> None:
    """Keys that are thousands of tokens away have weight; all their gradients are checked."""
    variant = row(name)
    tensors = inputs(variant, dtype)
    do = torch.zeros(1, TIME, 2, tensors["v"].shape[3], dtype=DTYPES[dtype], device=DEVICE)
    random = torch.Generator().manual_seed(5)
    some = torch.randn(1, len(ROWS), *do.shape[2:], generator=random)
    do[:, list(ROWS)] = some.to(do)
    expected, made = of_rows(variant, tensors, do), of_kernels(variant, tensors, do)
    judge(measured(variant, dtype, expected, made))


SPREAD = 5.0
"""The factor on the bounds of gradients: a few rows of thousands of keys leave them tiny, and each
is measured against its own size, however small."""


def measured(
    variant: Variant, dtype: str, expected: dict[str, Tensor], made: dict[str, Tensor]
) -> list[Record]:
    """Records whose errors are shares of what is expected.

    What is 0 by nature is a share of the largest gradient of a parameter.
    """
    given = {x.name: x for x in variant.inputs}
    sizes = {key: rms(x.detach()) for key, x in expected.items()}
    learned = [sizes[f"d{x.name}"] for x in variant.inputs if x.place == "constant"]
    found = []
    for key, value in expected.items():
        size = sizes[key] if sizes[key] > NOTHING else max([NOTHING, *learned])
        error, note = difference(value / size, made[key].double() / size)
        limit = bound(key, dtype, given) * (1.0 if key == "out" else SPREAD)
        found.append(Record(f"{TIME} tokens", dtype, key, error, limit, note))
    return found


@gpu_only
@pytest.mark.parametrize("name", [pytest.param(n, marks=group(n, HALF)) for n in ("fox", "tapa")])
def test_memory_grows_with_the_length_not_with_its_square(name: str) -> None:
    """T = 32768: one T x T of bits would be 128 MiB a head, T x T / 64 numbers of fp32 64 MiB."""
    time, heads = 32768, 8
    made = qkv(time, heads=heads, kv_heads=2, dim=64, dtype=HALF_DTYPE)
    leaves = {n: x.to(DEVICE).requires_grad_() for n, x in made.items()}
    if name == "fox":
        log_f = torch.full((1, time, heads), -1e-3, device=DEVICE)
        leaves["log_f"] = log_f.requires_grad_()
    do = torch.ones_like(leaves["q"])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = compiled(row(name))(**leaves)
    torch.autograd.grad(out, list(leaves.values()), do)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    one = time * heads * 64 * 4 / 2**20  # 64 MiB: an output in fp32
    print(f"peak {peak:.0f} MiB, an output in fp32 {one:.0f} MiB")
    assert peak < 8 * one
    assert out.isfinite().all()


@gpu_only
def test_a_sequence_of_43884_gates() -> None:
    """One head of many tokens: finite, and the last row is that of a call of its own."""
    time = 43884
    made = {n: x.to(DEVICE) for n, x in qkv(time, heads=1, dim=64, dtype=HALF_DTYPE).items()}
    made["log_f"] = torch.full((1, time, 1), -1e-2, device=DEVICE)
    leaves = {n: x.requires_grad_() for n, x in made.items()}
    out = compiled(gn.catalogue.fox.node)(**leaves)
    gradients = torch.autograd.grad(out.float().square().sum(), list(leaves.values()))
    assert all(x.isfinite().all() for x in (out, *gradients))
    last = {n: x.detach() if n != "q" else x.detach()[:, -1:] for n, x in leaves.items()}
    oracle: Callable[..., Tensor] = partial(reference, gn.catalogue.fox)
    alone = oracle(**{n: x.double() for n, x in last.items()})
    assert math.isclose(float((out[:, -1:] - alone).norm() / alone.norm()), 0, abs_tol=1e-2)

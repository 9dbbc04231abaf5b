"""Tensors whose offsets do not fit 32 bits: a wrapped one lands in NaN, not beyond the memory."""

import math
from collections.abc import Iterator

import pytest
import torch
from compiled_calls import fox_call, normal, offsets, qkv
from kernel_calls import (
    DEVICE,
    HALF_DTYPE,
    INTERPRETED,
    Judge,
    compiled,
    figures,
    gpu_only,
    group,
    kernel_test,
    on_device,
    oracle,
    pick,
    results,
    width,
)
from torch import Tensor

import gnomon as gn

pytestmark = kernel_test
large = group("offsets")  # one after another: each holds gigabytes
FOX = gn.catalogue.fox
LIMIT = 2**31
TILE = pick(128, 32)
"""A multiple of every tile: a tile of rows begins here."""
TIME = TILE + 2


@gn.variant
def near(q, k):  # type: ignore[no-untyped-def]
    "q_i . k_j / sqrt(d),  i - 100 < j <= i"
    mask = gn.causal() & gn.window(100)
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=mask)


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    """Skips where memory lacks, and gives back what was taken."""
    if not INTERPRETED and torch.cuda.mem_get_info()[0] < 45 << 30:
        pytest.skip("needs 45 GiB of free memory on the GPU")
    yield
    if not INTERPRETED:
        torch.cuda.empty_cache()


def memory() -> Tensor:
    """2^32 numbers of 16 bits and some: what stands in their middle has 2^31 on either side.

    Outside the interpreter they are NaN, so that a wrapped offset is seen.
    """
    size = 2 * LIMIT + 2**27
    made = torch.empty(size, dtype=HALF_DTYPE, device=DEVICE)
    return made if INTERPRETED else made.fill_(math.nan)


def spread(x: Tensor, axis: int) -> Tensor:
    """The same values; of an axis the last one, or the last tile, is 2^31 numbers off the first."""
    shape = list(x.shape)
    last = shape[axis] - 1
    if last >= TILE:
        last -= last % TILE
    step = (LIMIT // last + 64) & ~63  # of 64: as rows of a large tensor are
    others = [n for n in range(x.ndim) if n != axis]
    strides, inner = [0] * x.ndim, 1
    for n in reversed(others):
        strides[n], inner = inner, inner * shape[n]
    strides[axis] = step
    assert step * last >= LIMIT > inner
    return memory()[LIMIT:].as_strided(shape, strides).copy_(x)


AXES = {
    "batch": (0, TIME),
    "time": (1, TIME),
    "time inside of a tile": (1, 12),
    "head": (2, TIME),
    "channel": (3, TIME),
}
"""Axis, and the number of tokens."""


def call(time: int) -> dict[str, Tensor]:
    made = fox_call(time, batch=2, heads=2, dim=width(), dtype=torch.float32)
    return {n: x if n == "log_f" else x.to(HALF_DTYPE) for n, x in on_device(made).items()}


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", [pytest.param(n, marks=group("offsets", n)) for n in "qkv"])
def test_inputs_beyond_the_32nd_bit(name: str, axis: str, judge: Judge) -> None:
    which, time = AXES[axis]
    tensors = call(time)
    expected = oracle(FOX, tensors)
    far = {**tensors, name: spread(tensors[name], which)}
    made = results(FOX, far)
    bounds = {"dlog_f": 8e-2}
    judge(figures(f"{name}: {axis}", FOX, expected, made, bounds))


@group("offsets", "do")
@pytest.mark.parametrize("axis", AXES)
def test_output_gradients_beyond_the_32nd_bit(axis: str, judge: Judge) -> None:
    """A slice of a wide gradient, as behind a concatenation."""
    which, time = AXES[axis]
    tensors = call(time)
    do = normal(*tensors["q"].shape, seed=5, dtype=HALF_DTYPE).to(DEVICE)
    expected = oracle(FOX, tensors, do=do)
    made = results(FOX, tensors, do=spread(do, which))
    judge(figures(f"do: {axis}", FOX, expected, made, {"dlog_f": 8e-2}))


def heads_of(x: Tensor, heads: int) -> Tensor:
    """One head expanded to many: no memory."""
    return x.expand(*x.shape[:2], heads, x.shape[3])


@gpu_only
@large
def test_outputs_and_query_gradients_of_more_than_two_billion_numbers() -> None:
    """[1, 2^18 + 64, 64, 128] in 16 bits; rows of a window need no others."""
    time, heads, dim, tail = 2**18 + 64, 64, 128, 256
    made = on_device(qkv(time, heads=1, kv_heads=1, dim=dim, dtype=HALF_DTYPE))
    q = heads_of(made["q"], heads).requires_grad_()
    assert time * heads * dim > LIMIT
    out = compiled(near.node)(q, made["k"], made["v"])
    do = heads_of(normal(1, time, 1, dim, seed=5, dtype=HALF_DTYPE).to(DEVICE), heads)
    last = {name: x[:, -tail:].clone() for name, x in made.items()}
    small = results(near, last, do=do[:, -tail:, :1])
    (dq,) = torch.autograd.grad(out, q, do)
    for head in (0, 31, 63):
        for name, found in (("out", out), ("dq", dq)):
            # rows of the window's length further on have all their keys
            actual, expected = found[:, -tail + 100 :, head], small[name][:, 100:, 0]
            assert torch.allclose(actual, expected, rtol=2e-2, atol=5e-3), (name, head)
    first = results(near, {n: x[:, :tail].clone() for n, x in made.items()}, wanted=())
    assert torch.allclose(out[:, :tail, 63], first["out"][:, :, 0], rtol=2e-2, atol=5e-3)


@gpu_only
@large
def test_key_and_value_gradients_of_more_than_two_billion_numbers() -> None:
    """[1, 2^18 + 64, 64, 128], seen by a few queries."""
    time, heads, dim, queries = 2**18 + 64, 64, 128, 64
    made = on_device(qkv(time, queries=queries, heads=1, dim=dim, dtype=HALF_DTYPE))
    do = normal(1, queries, 1, dim, seed=5, dtype=HALF_DTYPE).to(DEVICE)
    small = results(gn.catalogue.nope, made, do=do)
    wide = {name: heads_of(x, heads).requires_grad_() for name, x in made.items()}
    out = compiled(gn.catalogue.nope.node)(**wide)
    found = torch.autograd.grad(out, [wide["k"], wide["v"]], heads_of(do, heads))
    for name, gradient in zip(("dk", "dv"), found, strict=True):
        size = float(small[name].abs().max())
        for head in (0, 31, 63):
            for part in (slice(0, 1000), slice(-1000, None)):
                actual, expected = gradient[:, part, head], small[name][:, part, 0]
                assert torch.allclose(actual, expected, rtol=2e-2, atol=size / 100), (name, head)


@gpu_only
@large
def test_a_large_batch_of_short_sequences(judge: Judge) -> None:
    """More programs than the second axis of a grid may have."""
    tensors = on_device(fox_call(3, batch=70000, heads=1, dim=16))
    do = normal(70000, 3, 1, 16, seed=5).to(DEVICE)
    made = results(FOX, tensors, do=do)
    few = {name: x[-50:].clone() for name, x in tensors.items()}
    expected = oracle(FOX, few, do=do[-50:])
    judge(figures("the last of 70000", FOX, expected, {n: x[-50:] for n, x in made.items()}))


@gpu_only
@large
def test_a_pack_of_two_hundred_thousand_tokens(judge: Judge) -> None:
    """A number for each token, in many sequences."""
    lengths = (700, 1, 0, 299) * 200
    tensors = on_device(fox_call(sum(lengths), heads=4, kv_heads=2, dim=16))
    do = normal(1, sum(lengths), 4, 16, seed=5).to(DEVICE)
    made = results(FOX, tensors, do=do, cu_seqlens=offsets(*lengths))
    last = {name: x[:, -299:].clone() for name, x in tensors.items()}
    expected = oracle(FOX, last, do=do[:, -299:])
    judge(figures("the last of 800", FOX, expected, {n: x[:, -299:] for n, x in made.items()}))


@gpu_only
@large
@pytest.mark.parametrize("time", [65537, 131072])
def test_more_than_65536_tokens(time: int) -> None:
    tensors = on_device(qkv(time, heads=1, dim=64, dtype=HALF_DTYPE))
    made = results(near, tensors)
    small = results(near, {name: x[:, -300:].clone() for name, x in tensors.items()}, wanted=())
    assert torch.allclose(made["out"][:, -200:], small["out"][:, 100:], rtol=2e-2, atol=5e-3)
    assert all(x.isfinite().all() for x in made.values())

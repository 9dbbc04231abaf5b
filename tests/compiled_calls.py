"""Calls of compiled variants beside the oracle: what the tests of contracts share."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

import torch
from support import assert_close
from torch import Tensor

import gnomon as gn
from gnomon import Entry, Head, Param
from gnomon.dsl.reference import reference
from gnomon.dsl.trace import Declaration

OUT, GRAD = 1e-6, 1e-5
"""Relative RMS errors in fp32: measured are about 1e-7 of the output and 4e-7 of a gradient."""
FLOOR = 5e-2
"""A gradient that is 0 by nature is measured against this: what cancels in it has size 1."""


@gn.variant
def windowed(q, k):  # type: ignore[no-untyped-def]
    "q_i . k_j / sqrt(d),  i - 80 < j < i: the first row of a sequence sees nothing"
    mask = gn.causal(strict=True) & gn.window(80)
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=mask)


class Hidden(gn.Axis):
    "The hidden units of a small MLP."


@gn.variant
def learned(  # type: ignore[no-untyped-def]
    q,
    k,
    gain: Param,
    slope: Param[Head],
    table: Param[Head, Entry],
    w1: Param[Hidden],
    w2: Param[Head, Hidden],
):
    "g q_i . k_j / sqrt(d) - m_h (i - j) + b_h[min(i - j, 15)] + w2_h . relu(w1 log(1 + i - j))"
    score = gain * gn.dot(q, k) * gn.rsqrt_dim(q)
    bias = gn.lookup(table, gn.minimum(gn.distance(), 15)) - slope * gn.distance()
    hidden = gn.channel_sum(w2 * gn.relu(w1 * gn.log1p(gn.distance())))
    return gn.softmax(score + bias + hidden, mask=gn.causal())


@cache
def compiled(variant: Declaration) -> Any:
    """One `Attention` for all tests, so that each form is lowered once."""
    return gn.compile(variant)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype)


def qkv(
    time: int,
    *,
    queries: int | None = None,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int | None = None,
    dim: int = 16,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Normal q, k, v [batch, time, head, dim]."""
    kv = heads if kv_heads is None else kv_heads
    rows = time if queries is None else queries
    width = dim if value_dim is None else value_dim
    shapes = {"q": (rows, heads, dim), "k": (time, kv, dim), "v": (time, kv, width)}
    return {
        name: normal(batch, *shape, seed=seed, dtype=dtype)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def gates(batch: int, time: int, heads: int, *, seed: int = 9) -> Tensor:
    """log f [batch, time, head] of gates that keep some ten tokens."""
    return torch.nn.functional.logsigmoid(normal(batch, time, heads, seed=seed) + 2)


def fox_call(time: int, **sizes: Any) -> dict[str, Tensor]:
    """q, k, v and log_f."""
    made = qkv(time, **sizes)
    return {**made, "log_f": gates(made["q"].shape[0], time, made["q"].shape[2])}


def learned_call(time: int, *, batch: int = 2, heads: int = 4) -> dict[str, Tensor]:
    made = qkv(time, batch=batch, heads=heads, kv_heads=2)
    made["gain"] = torch.tensor(1.5)
    made["slope"] = 0.1 * normal(heads, seed=11)
    made["table"] = normal(heads, 16, seed=12)
    made["w1"] = normal(6, seed=13)
    made["w2"] = 0.3 * normal(heads, 6, seed=14)
    return made


def results(
    function: Callable[..., Any],
    tensors: Mapping[str, Tensor],
    *,
    do: Tensor | None = None,
    dlse: Tensor | None = None,
    wanted: Iterable[str] | None = None,
    unused_is_zero: bool = False,
    **options: Any,
) -> dict[str, Tensor]:
    """out, lse, and d<name> of each real tensor (or of those wanted) for a random cotangent."""
    leaves = {name: x.detach() for name, x in tensors.items()}
    names = [n for n, x in leaves.items() if x.is_floating_point()] if wanted is None else wanted
    real = {name: leaves[name].requires_grad_() for name in names}
    out, lse = function(**leaves, **options, return_lse=True)
    made = {"out": out.detach(), "lse": lse.detach()}
    if not real:
        return made
    asked = [(out, normal(*out.shape, seed=5) if do is None else do)]
    asked += [] if dlse is None else [(lse, dlse)]
    outputs, cotangents = zip(*((y, d.to(y.dtype)) for y, d in asked), strict=True)
    found = torch.autograd.grad(
        outputs,
        list(real.values()),
        cotangents,
        allow_unused=unused_is_zero,
        materialize_grads=unused_is_zero,
    )
    return made | {f"d{name}": x for name, x in zip(real, found, strict=True)}


def oracle(
    variant: Declaration, tensors: Mapping[str, Tensor], **options: Any
) -> dict[str, Tensor]:
    """The same by the float64 oracle, of the same rounded inputs."""
    wide = {n: x.detach().double() if x.is_floating_point() else x for n, x in tensors.items()}
    # without keys no number of the oracle depends on q
    return results(partial(reference, variant), wide, unused_is_zero=True, **options)


def assert_same_numbers(
    actual: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    *,
    out: float = OUT,
    grad: float = GRAD,
) -> None:
    """Every result within its bound, by relative RMS error."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        ratio = out if name in ("out", "lse") else grad
        assert_close(name, value, actual[name], ratio, floor=FLOOR)


def assert_right(
    variant: Declaration,
    tensors: Mapping[str, Tensor],
    *,
    out: float = OUT,
    grad: float = GRAD,
    **options: Any,
) -> dict[str, Tensor]:
    """Output, log-sum-exp and gradients of a compiled call are those of the oracle."""
    actual = results(compiled(variant), tensors, **options)
    assert_same_numbers(actual, oracle(variant, tensors, **options), out=out, grad=grad)
    return actual


def assert_bitwise(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Every result has the same bits."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


def offsets(*lengths: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """The offsets of packed sequences of these lengths."""
    return torch.tensor((0, *lengths), dtype=dtype).cumsum(0, dtype=dtype)

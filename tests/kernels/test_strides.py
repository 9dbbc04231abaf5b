"""Any strides: transposed, sliced, shifted, expanded inputs and gradients of the output."""

import math
from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from compiled_calls import fox_call, normal
from kernel_calls import (
    DEVICE,
    HALF_DTYPE,
    Judge,
    compiled,
    figures,
    kernel_test,
    on_device,
    oracle,
    pick,
    results,
    width,
)
from torch import Tensor

import gnomon as gn

pytestmark = kernel_test  # each layout has kernels of its own: no two tests need one process
FOX = gn.catalogue.fox
Layout = Callable[[Tensor], Tensor]
TIME = pick(130, 40)
GATE = {"dlog_f": 8e-2}


def heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def every_second(x: Tensor) -> Tensor:
    around = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), math.nan)
    return around[..., ::2].copy_(x)


def odd_offset(x: Tensor) -> Tensor:
    """A view that starts at the second number of its memory: aligned to 2 bytes, not to 16."""
    made = x.new_full((x.numel() + 1,), math.nan)
    return made[1:].view(x.shape).copy_(x)


def odd_rows(x: Tensor) -> Tensor:
    """Rows of an odd number of elements."""
    around = x.new_full((*x.shape[:-1], x.shape[-1] + 3), math.nan)
    return around[..., : x.shape[-1]].copy_(x)


def part_of_a_projection(x: Tensor) -> Tensor:
    """A slice of [batch, time, 3, head, dim], as q, k and v of one product are."""
    around = x.new_full((*x.shape[:2], 3, *x.shape[2:]), math.nan)
    return around[:, :, 1].copy_(x)


def every_second_token(x: Tensor) -> Tensor:
    """Every second token of a longer sequence."""
    around = x.new_full((x.shape[0], 2 * x.shape[1], *x.shape[2:]), math.nan)
    return around[:, ::2].copy_(x)


LAYOUTS = [
    heads_first,
    every_second,
    odd_offset,
    odd_rows,
    part_of_a_projection,
    every_second_token,
]


def call() -> dict[str, Tensor]:
    made = fox_call(TIME, batch=2, heads=4, kv_heads=2, dim=width())
    return {n: x if n == "log_f" else x.to(HALF_DTYPE) for n, x in on_device(made).items()}


INPUTS = [("q k v", layout) for layout in LAYOUTS]
INPUTS += [(name, layout) for name in ("q", "k", "v", "log_f") for layout in LAYOUTS[::2]]


@pytest.mark.parametrize(("names", "layout"), INPUTS, ids=lambda x: getattr(x, "__name__", x))
def test_inputs_of_any_strides(names: str, layout: Layout, judge: Judge) -> None:
    tensors = call()
    expected = oracle(FOX, tensors)
    strided = {name: layout(tensors[name]) for name in names.split()}
    made = results(FOX, {**tensors, **strided})
    judge(figures(f"{names}: {layout.__name__}", FOX, expected, made, GATE))


@pytest.mark.parametrize("order", pick(list(permutations(range(4)))[::4], [(3, 1, 0, 2)]), ids=str)
def test_orders_of_axes_in_memory(order: tuple[int, ...], judge: Judge) -> None:
    tensors = call()
    expected = oracle(FOX, tensors)
    inverse = [order.index(axis) for axis in range(4)]
    for name in ("q", "k", "v"):
        tensors[name] = tensors[name].permute(order).contiguous().permute(inverse)
    judge(figures(f"order {order}", FOX, expected, results(FOX, tensors), GATE))


@pytest.mark.parametrize(
    ("name", "axis"), [("q", 2), ("k", 0), ("k", 2), ("v", 1), ("v", 3), ("log_f", 2)]
)
def test_expanded_inputs(name: str, axis: int, judge: Judge) -> None:
    """Stride 0: the gradient of what was expanded is the sum."""
    tensors = call()
    base, shape = tensors[name].narrow(axis, 0, 1).contiguous(), tensors[name].shape
    expected = oracle(FOX, {**tensors, name: base.expand(shape)})
    leaf = base.clone().requires_grad_()
    out = compiled(FOX.node)(**{**tensors, name: leaf.expand(shape)})
    do = normal(*out.shape, seed=5, dtype=HALF_DTYPE).to(DEVICE)
    (found,) = torch.autograd.grad(out, leaf, do)
    wanted = {"out": expected["out"], f"d{name}": expected[f"d{name}"].sum(axis, keepdim=True)}
    made = {"out": out.detach(), f"d{name}": found}
    # torch adds the parts in 16 bits
    bounds = {**GATE, f"d{name}": 8e-2 if name == "log_f" else 2e-2}
    judge(figures(f"{name} expanded over axis {axis}", FOX, wanted, made, bounds))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_output_gradients_of_any_strides(layout: Layout, judge: Judge) -> None:
    tensors = call()
    do = normal(2, TIME, 4, width(), seed=5, dtype=HALF_DTYPE).to(DEVICE)
    expected = oracle(FOX, tensors, do=do)
    made = results(FOX, tensors, do=layout(do))
    judge(figures(f"do: {layout.__name__}", FOX, expected, made, GATE))


def weights(*shape: int) -> Tensor:
    return normal(*shape, seed=6, dtype=torch.float32).to(DEVICE)


CONSUMERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda out: out.sum(),
    "heads first": lambda out: (out.transpose(1, 2) * weights(2, 4, TIME, 1)).sum(),
    "every second channel": lambda out: (out[..., ::2] * weights(2, TIME, 4, 1)).sum(),
    "last token": lambda out: (out[:, -1] * weights(2, 4, 1)).sum(),
    "beside others": lambda out: (torch.cat((out, 2 * out), -1) * weights(2, TIME, 4, 1)).sum(),
    "one head": lambda out: out[:, :, 1].square().sum(),
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_gradients_behind_views_of_the_output(name: str, judge: Judge) -> None:
    tensors = {key: x.requires_grad_() for key, x in call().items()}
    out = compiled(FOX.node)(**tensors)
    found = torch.autograd.grad(CONSUMERS[name](out), list(tensors.values()))
    leaf = out.detach().requires_grad_()
    (do,) = torch.autograd.grad(CONSUMERS[name](leaf), leaf)
    expected = oracle(FOX, {key: x.detach() for key, x in tensors.items()}, do=do.contiguous())
    made = {f"d{key}": x for key, x in zip(tensors, found, strict=True)}
    made |= {"out": out.detach(), "lse": expected["lse"]}
    judge(figures(f"behind {name}", FOX, expected, made, GATE))

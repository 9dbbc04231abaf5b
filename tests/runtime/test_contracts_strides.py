"""Any strides: transposed, sliced, shifted, expanded inputs and gradients of the output."""

from collections.abc import Callable
from itertools import permutations
from types import ModuleType

import pytest
import torch
from compiled_calls import (
    assert_bitwise,
    assert_same_numbers,
    compiled,
    fox_call,
    normal,
    results,
)
from torch import Tensor

import gnomon as gn

FOX = gn.catalogue.fox
Layout = Callable[[Tensor], Tensor]


def heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def reversed_axes(x: Tensor) -> Tensor:
    order = list(range(x.ndim))[::-1]
    return x.permute(order).contiguous().permute(order)


def every_second(x: Tensor) -> Tensor:
    around = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan)
    return around[..., ::2].copy_(x)


def odd_offset(x: Tensor) -> Tensor:
    """A view that starts at the second number of its memory, as x[1:] does."""
    memory = x.new_full((x.numel() + 1,), torch.nan)
    return memory[1:].view(x.shape).copy_(x)


def odd_rows(x: Tensor) -> Tensor:
    """Rows of an odd number of elements."""
    around = x.new_full((*x.shape[:-1], x.shape[-1] + 3), torch.nan)
    return around[..., : x.shape[-1]].copy_(x)


def part_of_a_projection(x: Tensor) -> Tensor:
    """A slice of the time axis of a larger tensor, as q, k and v of one product are."""
    around = x.new_full((x.shape[0], 3 * x.shape[1], *x.shape[2:]), torch.nan)
    return around[:, x.shape[1] : 2 * x.shape[1]].copy_(x)


LAYOUTS = [
    heads_first,
    reversed_axes,
    every_second,
    odd_offset,
    odd_rows,
    part_of_a_projection,
]


def call() -> dict[str, Tensor]:
    return fox_call(70, batch=2, heads=4, kv_heads=2, value_dim=24)


def spy_on_arrays(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tensors whose memory goes to a kernel of FoX."""
    seen: list[Tensor] = []
    for module in compiled(FOX)._modules.values():
        watch(monkeypatch, module, seen)
    return seen


def watch(monkeypatch: pytest.MonkeyPatch, module: ModuleType, seen: list[Tensor]) -> None:
    array = module.array

    def spy(x: Tensor) -> object:
        seen.append(x)
        return array(x)

    monkeypatch.setattr(module, "array", spy)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["q", "k", "v", "log_f"])
def test_inputs_of_any_strides_without_a_copy(
    name: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = call()
    plain = results(compiled(FOX), tensors)
    strided = layout(tensors[name])
    assert not strided.is_contiguous() or strided.storage_offset() == 1
    seen = spy_on_arrays(monkeypatch)
    assert_bitwise(results(compiled(FOX), {**tensors, name: strided}), plain)
    places = {(x.data_ptr(), x.stride()) for x in seen}
    # the gate is summed along the sequence before any kernel reads it
    assert name == "log_f" or (strided.data_ptr(), strided.stride()) in places


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_every_order_of_axes_in_memory(order: tuple[int, ...]) -> None:
    tensors = call()
    plain = results(compiled(FOX), tensors)
    for name in ("q", "k", "v"):
        inverse = [order.index(axis) for axis in range(4)]
        tensors[name] = tensors[name].permute(order).contiguous().permute(inverse)
    assert_bitwise(results(compiled(FOX), tensors), plain)


@pytest.mark.parametrize("name", ["q", "k", "v", "log_f"])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_expanded_inputs(name: str, axis: int) -> None:
    """Stride 0: the gradient of what was expanded is the sum."""
    tensors = call()
    if axis >= tensors[name].ndim:
        axis = 0
    base = tensors[name].narrow(axis, 0, 1)
    shape = tensors[name].shape
    copied = {**tensors, name: base.expand(shape).contiguous()}
    plain = results(compiled(FOX), copied)
    leaf = base.clone().requires_grad_()
    out = compiled(FOX)(**{**tensors, name: leaf.expand(shape)})
    assert torch.equal(out, plain["out"])
    (found,) = torch.autograd.grad(out, leaf, normal(*out.shape, seed=5))
    assert torch.allclose(found, plain[f"d{name}"].sum(axis, keepdim=True), rtol=1e-4, atol=1e-5)


def test_one_tensor_for_everything() -> None:
    tensors = fox_call(70)
    x = tensors["q"]
    plain = results(compiled(FOX), {**tensors, "k": x.clone(), "v": x.clone()})
    leaf = x.clone().requires_grad_()
    out = compiled(FOX)(leaf, leaf, leaf, log_f=tensors["log_f"])
    assert torch.equal(out, plain["out"])
    (found,) = torch.autograd.grad(out, leaf, normal(*out.shape, seed=5))
    total = plain["dq"] + plain["dk"] + plain["dv"]
    assert torch.allclose(found, total, rtol=1e-5, atol=1e-6)


# ---- gradients of the output


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_output_gradients_of_any_strides(layout: Layout) -> None:
    tensors = call()
    do = layout(normal(2, 70, 4, 24, seed=5))
    # torch sums do . o in the order of its memory
    plain = results(compiled(FOX), tensors)
    assert_same_numbers(results(compiled(FOX), tensors, do=do), plain, grad=1e-6)


def test_expanded_output_gradients() -> None:
    """out.sum() hands one number down."""
    tensors = call()
    one = torch.ones(()).expand(2, 70, 4, 24)
    expected = results(compiled(FOX), tensors, do=one.contiguous())
    assert_bitwise(results(compiled(FOX), tensors, do=one), expected)


CONSUMERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda out: out.sum(),
    "heads first": lambda out: (out.transpose(1, 2) * normal(2, 4, 70, 24)).sum(),
    "every second channel": lambda out: (out[..., ::2] * normal(2, 70, 4, 12)).sum(),
    "last token": lambda out: (out[:, -1] * normal(2, 4, 24)).sum(),
    "beside others": lambda out: (torch.cat((out, 2 * out), -1) * normal(2, 70, 4, 48)).sum(),
    "one head": lambda out: out[:, :, 1].square().sum(),
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_gradients_behind_views_of_the_output(name: str) -> None:
    tensors = {key: x.requires_grad_() for key, x in call().items()}
    out = compiled(FOX)(**tensors)
    found = torch.autograd.grad(CONSUMERS[name](out), list(tensors.values()))
    leaf = out.detach().requires_grad_()
    (do,) = torch.autograd.grad(CONSUMERS[name](leaf), leaf)
    expected = results(compiled(FOX), tensors, do=do.contiguous())
    for key, gradient in zip(tensors, found, strict=True):
        assert torch.equal(gradient, expected[f"d{key}"]), key

"""The pointwise functions of the score IR on float64 and int64 tensors.

Gradients follow one rule that plain autograd lacks: what no weight reaches gives back exactly 0,
also where the function has no finite derivative. So `where(x > 0, log(x), 0)` and a power of a
distance that the mask hides leave no NaN.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def apply(fn: str, args: list[Tensor]) -> Tensor:
    """The function `fn` of tensors of equal or broadcast shapes; integers stay exact."""
    if fn in ON_NUMBERS:
        return _guarded(ON_NUMBERS[fn], args)
    return _guarded(ON_REALS[fn], [x.double() for x in args])


def _guarded(fn: Callable[..., Tensor], args: list[Tensor]) -> Tensor:
    if not any(x.requires_grad for x in args):
        return fn(*args)
    result: Tensor = _ZeroStaysZero.apply(fn, *torch.broadcast_tensors(*args))  # type: ignore[no-untyped-call]
    return result


class _ZeroStaysZero(torch.autograd.Function):
    """A pointwise function whose gradient is 0 wherever the gradient that comes is 0."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Tensor], *args: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.args = [x.detach().requires_grad_(x.is_floating_point()) for x in args]
            ctx.result = fn(*ctx.args)
        result: Tensor = ctx.result.detach().clone()
        if not result.is_floating_point():
            ctx.mark_non_differentiable(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        real = [x for x in ctx.args if x.requires_grad]
        if not ctx.result.requires_grad:
            return (None, *(None for _ in ctx.args))
        coming = gradients[0]
        leaving = iter(
            torch.autograd.grad(ctx.result, real, coming, retain_graph=True, allow_unused=True)
        )
        given = [next(leaving) if x.requires_grad else None for x in ctx.args]
        zero = torch.zeros_like(coming)
        return (None, *(None if g is None else torch.where(coming == 0, zero, g) for g in given))


def minimum(x: Tensor, y: Tensor) -> Tensor:
    """The smaller one; at a tie the first one takes the gradient."""
    return torch.where(x <= y, x, y)


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """The larger one; at a tie the first one takes the gradient."""
    return torch.where(x >= y, x, y)


def clip(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """`x` between the bounds; at a bound `x` takes the gradient."""
    return minimum(maximum(x, low), high)


def log_sigmoid(x: Tensor) -> Tensor:
    """log(1 / (1 + e^-x)) without overflow; softplus(x) is -log_sigmoid(-x)."""
    return torch.nn.functional.logsigmoid(x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) to full precision (torch's own turns linear at 20)."""
    return -log_sigmoid(-x)


def cos_turns(x: Tensor) -> Tensor:
    """cos(2 pi x), the whole turns taken off first."""
    return torch.cos(2 * math.pi * (x - x.detach().round()))


ON_NUMBERS: dict[str, Callable[..., Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "//": torch.floor_divide,
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "neg": torch.neg,
    "abs": torch.abs,
    "minimum": minimum,
    "maximum": maximum,
    "clip": clip,
    "floor": lambda x: torch.floor(x).long(),
    "where": torch.where,
    "detach": lambda x: x.detach().clone(),
}

ON_REALS: dict[str, Callable[..., Tensor]] = {
    "/": torch.div,
    "**": torch.pow,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "cos_turns": cos_turns,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "log_sigmoid": log_sigmoid,
    "softplus": softplus,
    "relu": torch.relu,
}

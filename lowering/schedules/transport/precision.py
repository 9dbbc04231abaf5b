"""How exactly the products of a transport are made, class by class of their operands.

    path       w, u, A, T, Y and the nodes: what is wrong in them grows with the distance of a pair
    log        a row and the node it crosses: one rounding a level of the tree
    once       k, M, X, loc, gradients inside a leaf: one rounding a pair
    versions   query and key versions in memory

A form says how an fp32 value goes into a product: f16 rounds it, f16x2 takes two f16 digits (22
bits; products of digits below the last are left out), f32 multiplies exactly. The chains of the
backward pass and the vjp of a leaf scale each tile to the range of f16 first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gnomon.lowering import tile
from gnomon.lowering.build import Block
from gnomon.lowering.tile import Cast, DType, Expr, Ref, Relabel

Form = Literal["f16", "f16x2", "f32"]
Single = Literal["f16", "f32"]
Digits = tuple[Ref, ...]
"""A value as the sum of numbers of one type, the most significant first."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The form of each class of operands."""

    path: Form = "f16x2"
    log: Single = "f16"
    once: Single = "f16"
    versions: Literal["io", "f16"] = "io"


DEFAULT = Precision()
"""Logits to 2e-3 at any distance, with versions in fp32."""

EXACT = Precision(path="f32", log="f32", once="f32")
"""fp32 throughout; versions in the dtype of the call."""


def memory(form: Form) -> DType:
    """The type in which the digits of a form stand in memory."""
    return "f32" if form == "f32" else "f16"


def names(name: str, form: Form) -> tuple[str, ...]:
    """The tensors that hold a value of a form."""
    return (name, f"{name}_low") if form == "f16x2" else (name,)


def digits(b: Block, name: str, x: Expr, form: Form) -> Digits:
    """An fp32 value in a form, under a name."""
    if form == "f32":
        return (x if isinstance(x, Ref) else b.let(name, x),)
    if form == "f16":
        return (b.let(name, Cast(x, "f16")),)
    x = x if isinstance(x, Ref) else b.let(f"{name}_exact", x)
    high = b.let(name, Cast(x, "f16"))
    return high, b.let(f"{name}_low", Cast(b.op("-", x, high), "f16"))


def given(b: Block, name: str, load: tile.Load, form: Form) -> Digits:
    """A tensor of the call in a form, under a name."""
    if load.tensor.dtype == memory(form):
        return digits(b, name, b.let(f"{name}_given", load), form)
    raw = b.let(f"{name}_given", load)
    return digits(b, name, raw if form == "f16" else Cast(raw, "f32"), form)


def whole(b: Block, x: Digits) -> Expr:
    """The value of some digits."""
    return x[0] if len(x) == 1 else b.op("+", x[0], x[1])


def narrowed(b: Block, x: Digits, form: Form) -> Digits:
    """Digits in a form of no more digits."""
    if form == "f32" or x[0].type.dtype == "f16":
        return x[: len(names("", form))]
    return digits(b, f"{x[0].name}_narrow", x[0], form)


def relabel(x: Digits, *shape: str) -> tuple[Relabel, ...]:
    """The same digits with other names for their axes."""
    return tuple(Relabel(digit, shape) for digit in x)


def product(b: Block, x: Sequence[Expr], y: Sequence[Expr], start: Expr | None = None) -> Expr:
    """The matrix product of two values by their digits, added to `start`."""
    count = max(len(x), len(y))
    total = start
    for i, left in enumerate(x):
        for right in y[: count - i]:
            part = tile.Dot(left, right)
            total = part if total is None else b.op("+", total, part)
    assert total is not None
    return total

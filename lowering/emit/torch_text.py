"""Torch code for values: what an expression is (its axes, its dtype) beside its text.

The layout of a value in the generated code is

    constant   [heads, *axes]              a shared one [*axes], a number a Python number
    row        [batch, time_q, heads, *axes]
    token      [batch, time_k, heads, *axes]        column values too
    pair       [batch, time_q, time_k, heads, *axes]

with 1 for a batch, time or head axis that it does not depend on. Axes missing on the left are
added by torch's broadcasting, so an index is needed only where a scalar meets a vector.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gnomon.dsl.nodes import Heads, Width
from gnomon.lowering.emit.text import (
    ATOM,
    LEVELS,
    Code,
    atom,
    call,
    grouped,
    infix,
    prefix,
)

DType = Literal["int", "float", "io", "f32", "f64", "i64", "bool"]
"""int and float are Python numbers; io is the dtype of the caller's tensor, whatever it is."""

Place = Literal["constant", "token", "row", "pair"]


PLACES: Mapping[str, Place] = {
    "constant": "constant",
    "row": "row",
    "column": "token",
    "token": "token",
    "pair": "pair",
}
"""Where a value of the score IR lies: a column has a row for every token."""


@dataclass(frozen=True, slots=True)
class Value:
    """An expression of the generated code."""

    code: Code
    dtype: DType
    place: Place = "constant"
    heads: Heads = None
    axes: int = 0
    batched: bool = False

    @property
    def is_number(self) -> bool:
        """Whether it is a Python number, without a tensor in it."""
        return self.dtype in ("int", "float")

    @property
    def is_atomic(self) -> bool:
        """Whether naming it would not shorten anything."""
        return self.code.text.replace("_", "a").isalnum()

    def with_code(self, code: Code, dtype: DType | None = None) -> "Value":
        """The same place and axes, another text."""
        return replace(self, code=code, dtype=dtype or self.dtype)


def method(x: Code, name: str, *args: Code) -> Code:
    """x.name(*args)."""
    return call(f"{grouped(x, ATOM)}.{name}", *args)


def subscript(x: Code, index: str) -> Code:
    """x[index]."""
    return Code(f"{grouped(x, ATOM)}[{index}]")


def power(a: Code, b: Code) -> Code:
    """A**b: without spaces between names and numbers, as the formatter has it."""
    is_signed = b.text.startswith("-") and _is_simple(b.text[1:])
    code = infix("**", a, atom(b.text) if is_signed else b)
    if _is_simple(a.text) and (is_signed or _is_simple(b.text)):
        return Code(f"{a}**{b}", code.level)
    return code


def _is_simple(text: str) -> bool:
    """A name or a number."""
    return text.replace(".", "").replace("_", "").isalnum()


def negative(x: Code) -> Code:
    """-x, and x where that is -x already."""
    return (
        Code(x.text[1:], x.level)
        if x.text[0] == "-" and x.level == LEVELS["neg"]
        else prefix("-", x)
    )


def span(start: str, stop: str) -> str:
    """start:stop inside a subscript, spaced as the formatter has it."""
    simple = all(part.isidentifier() or part.isdigit() or not part for part in (start, stop))
    if simple:
        return f"{start}:{stop}"
    return f"{start} :" + (f" {stop}" if stop else "") if start else f": {stop}"


def width_text(width: Width, names: Callable[[str], str]) -> Code:
    """A symbolic width as an integer expression."""
    parts = [
        _share(names(s) if s != "1" else "", c.numerator, c.denominator) for s, c in width.parts
    ]
    if not parts:
        return atom("0")
    total = parts[0]
    for part in parts[1:]:
        total = infix("+", total, part)
    return total


def _share(name: str, times: int, over: int) -> Code:
    if not name:
        return atom(str(times // over))
    code = atom(name) if times == 1 else infix("*", atom(str(times)), atom(name))
    return code if over == 1 else infix("//", code, atom(str(over)))


def lifted(x: Value, axes: int) -> Code:
    """A scalar beside vectors: axes of size 1 at its end."""
    has_axes = not x.is_number and (x.place != "constant" or x.heads is not None or x.axes > 0)
    missing = axes - x.axes
    if not has_axes or missing <= 0:
        return x.code
    return subscript(x.code, ", ".join(["...", *["None"] * missing]))

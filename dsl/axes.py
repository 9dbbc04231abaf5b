"""Axis words and place words: what the annotations of a variant's arguments are made of."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, get_args, get_origin

from typing_extensions import TypeVarTuple, Unpack

from gnomon.dsl.errors import VariantError
from gnomon.dsl.nodes import Element, Expr, Heads, Input, Place, Where, Width

Axes = TypeVarTuple("Axes", default=Unpack[tuple[()]])


class Axis:
    """A named axis; equal names have equal sizes in a call. `class Hidden(gn.Axis)` makes one."""


class Head(Axis):
    """The heads of q."""


class KVHead(Axis):
    """The heads of k and v; each is shared by a group of query heads (GQA)."""


class Dim(Axis):
    """The head dimension d of q and k."""


class ValueDim(Axis):
    """The head dimension d_v of v."""


class Plane(Axis):
    """The d / 2 planes of a rotation."""


class Entry(Axis):
    """The rows of a table; each occurrence is a size of its own."""


class Repeat(Axis):
    """Several vectors a token (DeltaProduct); index 0 acts first."""


class Token(Expr, Generic[*Axes]):
    """One value for each token of the key sequence, [batch, time_k, heads, ...]."""


class Query(Expr, Generic[*Axes]):
    """One value for each query, [batch, time_q, heads, ...]."""


class Param(Expr, Generic[*Axes]):
    """No batch and no time: a number per head, a table, a matrix, a global scalar."""


_PLACES: dict[object, Place] = {Token: "token", Query: "row", Param: "constant"}
_D, _D_V = Width.of("d"), Width.of("d_v")
_WIDTHS = {Dim: _D, ValueDim: _D_V, Plane: Width.of("d", Fraction(1, 2))}
_FIX = "write e.g. gn.Token[gn.KVHead, gn.Dim], gn.Query[gn.Head], gn.Param[gn.Head, gn.Entry]"


def width_of_axis(axis: type[Axis]) -> Width:
    """The width of an axis word: d for Dim, 1/2 d for Plane, else its own name."""
    return _WIDTHS.get(axis, Width.of(axis.__name__))


@dataclass(frozen=True, slots=True)
class Annotation:
    """What an annotation says, before the argument has its name."""

    place: Place
    heads: Heads
    axes: tuple[type[Axis], ...]
    element: Element

    def input(self, name: str, where: Where) -> Input:
        """The input `name`; each Entry axis gets a size of its own."""
        widths = tuple(
            Width.of(f"{name}.{number}") if axis is Entry else width_of_axis(axis)
            for number, axis in enumerate(self.axes)
        )
        return Input(name, self.place, self.heads, widths, self.element, where=where)


def is_annotation(note: object) -> bool:
    """Whether `note` is Token, Query or Param, with or without axes."""
    return note in _PLACES if isinstance(note, type) else get_origin(note) in _PLACES


def read_annotation(name: str, note: object, where: Where) -> Annotation:
    """Token[KVHead, Dim, int] taken apart: heads first, further axes, then int.

    Raises:
        VariantError: an item is no axis word, or stands in the wrong place.
    """

    def refuse(what: str) -> VariantError:
        return VariantError(f"the annotation of {name!r} {what}", _FIX, where)

    items = list(get_args(note))
    element: Element = "real"
    if int in items:
        if items.index(int) != len(items) - 1:
            raise refuse("has something behind int")
        items.pop()
        element = "int"
    heads: Heads = None
    if items and items[0] in (Head, KVHead):
        heads = "Head" if items.pop(0) is Head else "KVHead"
    for item in items:
        if item in (Head, KVHead):
            raise refuse("has a head axis that is not the first one")
        if not (isinstance(item, type) and issubclass(item, Axis)):
            raise refuse(f"holds {item!r}, which is no axis word")
    if len(items) > 3:
        raise refuse(f"has {len(items)} axes behind the heads; there are scalars to block matrices")
    return Annotation(
        _PLACES[note if isinstance(note, type) else get_origin(note)], heads, tuple(items), element
    )

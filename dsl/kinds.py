"""The kind of a value: where it is read, whose heads it has, its channels, its element.

    place    constant | row (read at query i) | column (read at key j) | token (not yet read) | pair
    heads    None (shared) < KVHead < Head
    axes     () scalar, (n,) vector, (n, m) matrix, (block, n, n) blocks, (repeat, n) vectors
    element  real | int | bool

Kinds are computed from the nodes, bottom-up, and kept on them; `gnomon.dsl.build` has refused
whatever does not fit before a node is made.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

from gnomon.dsl.errors import CompilerBug
from gnomon.dsl.nodes import (
    Apply,
    At,
    Builtin,
    Concat,
    Constant,
    Contract,
    Decay,
    Diagonal,
    Dot,
    Element,
    Expr,
    Heads,
    Input,
    Lookup,
    Mask,
    MatrixExp,
    Outer,
    Place,
    PrefixSum,
    Ratio,
    Rotation,
    ScoreScan,
    Slice,
    Softmax,
    StickBreaking,
    Sum,
    WeightedSum,
    Width,
    walk,
)

COMPARISONS = frozenset({"<", "<=", ">", ">="})
KEEP_INTEGERS = frozenset(
    {
        "+",
        "-",
        "*",
        "//",
        "neg",
        "abs",
        "minimum",
        "maximum",
        "clip",
        "where",
        "detach",
        "transpose",
    }
)
_HEAD_ORDER: dict[Heads, int] = {None: 0, "KVHead": 1, "Head": 2}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value is, apart from its number."""

    place: Place
    heads: Heads = None
    axes: tuple[Width, ...] = ()
    element: Element = "real"
    is_output: bool = False


def kind(node: Expr) -> Kind:
    """The kind of a value, kept on the node."""
    known = getattr(node, "_kind", None)
    if known is None:
        for below in walk(node):
            if isinstance(below, Expr) and getattr(below, "_kind", None) is None:
                object.__setattr__(below, "_kind", _RULES[type(below)](below))
        known = getattr(node, "_kind", None)
    return cast(Kind, known)


def join_heads(kinds: Iterable[Kind]) -> Heads:
    """The finer head axis: shared < KVHead < Head."""
    return max((k.heads for k in kinds), key=_HEAD_ORDER.__getitem__, default=None)


def join_places(kinds: Iterable[Kind]) -> Place:
    """Constant with anything is the other; row with column, or anything with pair, is pair."""
    places = {k.place for k in kinds} - {"constant"}
    if not places:
        return "constant"
    if len(places) == 1:
        return places.pop()
    if "token" not in places:
        return "pair"
    if places == {"token", "column"}:  # what runs along the sequence may be made of keys
        return "token"
    raise CompilerBug(f"a token value met {sorted(places)} and was not read anywhere")


def join_elements(kinds: Iterable[Kind]) -> Element:
    """Real beside any real, else int (the condition of a `where` is neither)."""
    return "real" if any(k.element == "real" for k in kinds) else "int"


def mask_operands(mask: Mask) -> list[Expr]:
    """The values that a mask depends on."""
    found: list[Expr] = []
    for part in mask.operands:
        if isinstance(part, Mask):
            found.extend(mask_operands(part))
        elif isinstance(part, Expr):
            found.append(part)
    return found


def _builtin(node: Builtin) -> Kind:
    if node.which == "position":
        return Kind("token", element="int")
    if node.which == "visible_count":
        heads = join_heads(kind(x) for x in mask_operands(cast(Mask, node.of)))
        return Kind("row", heads, element="int")
    heads = "Head" if node.which == "head" else None
    axes: tuple[Width, ...] = ()
    if node.which == "channel":
        axes = (cast(Width, node.of),)
    elif node.which == "plane":
        axes = (cast(Width, node.of).scaled(Fraction(1, 2)),)
    return Kind("constant", heads, axes, "int")


def _apply(node: Apply) -> Kind:
    kinds = [kind(x) for x in node.args]
    axes = max((k.axes for k in kinds), key=len)
    if node.fn == "transpose":
        axes = (*axes[:-2], axes[-1], axes[-2])
    element: Element = "real"
    if node.fn in COMPARISONS:
        element = "bool"
    elif node.fn == "floor":
        element = "int"
    elif node.fn in KEEP_INTEGERS:
        element = join_elements(kinds)
    is_output = any(k.is_output for k in kinds)
    return Kind(join_places(kinds), join_heads(kinds), axes, element, is_output)


def _concat(node: Concat) -> Kind:
    kinds = [kind(x) for x in node.parts]
    width = kinds[0].axes[0]
    for k in kinds[1:]:
        width = width + k.axes[0]
    return Kind(join_places(kinds), join_heads(kinds), (width,), join_elements(kinds))


def _contract(node: Contract) -> Kind:
    x, m = kind(node.x), kind(node.m)
    axes = x.axes if len(m.axes) == 3 else (*x.axes[:-1], m.axes[1])
    return Kind(join_places((x, m)), join_heads((x, m)), axes)


def _lookup(node: Lookup) -> Kind:
    table = kind(node.table)
    kinds = [table, *(kind(i) for i in node.index)]
    axes = table.axes[len(node.index) :]
    return Kind(join_places(kinds), join_heads(kinds), axes, table.element)


def _rotation(node: Rotation) -> Kind:
    angle = kind(node.angle)
    return Kind(angle.place, angle.heads, (angle.axes[0].scaled(Fraction(2)),) * 2)


def _diagonal(node: Diagonal) -> Kind:
    log = kind(node.log)
    return Kind(_along(log.place), log.heads, (node.width, node.width))


def _outer(node: Outer) -> Kind:
    w, u, scale = kind(node.w), kind(node.u), kind(node.scale)
    place = _along(join_places((w, u, scale)))
    return Kind(place, join_heads((w, u, scale)), (w.axes[-1], u.axes[-1]))


def _along(place: Place) -> Place:
    """A matrix made of keys is one for every token."""
    return "token" if place == "column" else place


def _slice(node: Slice) -> Kind:
    return replace(kind(node.x), axes=(node.stop + node.start.scaled(Fraction(-1)),))


def _sum(node: Sum) -> Kind:
    x = kind(node.x)
    return replace(x, axes=x.axes[:-1])


def _dot(node: Dot) -> Kind:
    parts = [node.a, node.b] if node.through is None else [node.a, node.b, node.through]
    return Kind("pair", join_heads(kind(x) for x in parts))


def _output(_: Expr) -> Kind:
    return Kind("row", "Head", (Width.of("d_v"),), is_output=True)


_RULES: dict[type, Callable[[Any], Kind]] = {
    Input: lambda n: Kind(n.place, n.heads, n.axes, n.element),
    Constant: lambda n: Kind("constant", element="int" if isinstance(n.value, int) else "real"),
    Builtin: _builtin,
    Apply: _apply,
    Slice: _slice,
    Concat: _concat,
    Sum: _sum,
    Contract: _contract,
    Lookup: _lookup,
    PrefixSum: lambda n: replace(kind(n.x), place="token"),
    At: lambda n: replace(kind(n.x), place=n.place),
    Rotation: _rotation,
    Diagonal: _diagonal,
    Outer: _outer,
    MatrixExp: lambda n: replace(kind(n.x), element="real"),
    Dot: _dot,
    Decay: lambda n: replace(kind(n.x), place="pair"),
    ScoreScan: lambda n: kind(n.x),
    Softmax: _output,
    WeightedSum: _output,
    Ratio: _output,
    StickBreaking: _output,
}


def spell(width: Width) -> str:
    """The width as a reader says it: `Entry(bias)` for the entries of the table `bias`."""
    parts = ((f"Entry({s.split('.')[0]})" if "." in s else s, c) for s, c in width.parts)
    return str(Width(tuple(parts)))


def spell_axes(axes: tuple[Width, ...]) -> str:
    """Widths side by side: `d x d`."""
    return " x ".join(spell(width) for width in axes)


def describe(x: object) -> str:
    """What `x` is, in the words of the error messages: "a token vector of width d"."""
    if isinstance(x, Mask):
        return "a mask"
    if not isinstance(x, Expr):
        return f"{x!r}" if isinstance(x, (str, int, float)) else f"a {type(x).__name__}"
    if isinstance(x, Constant):
        return f"the number {x.value}"
    k = kind(x)
    if k.is_output:
        return "an attention output"
    shape = ("scalar", "vector", "matrix", "block matrix")[min(len(k.axes), 3)]
    if len(k.axes) == 2 and k.axes[0] == Width.of("Repeat"):
        shape = "list of vectors"
    place = "parameter" if isinstance(x, Input) and k.place == "constant" else k.place
    element = {"bool": " of booleans", "int": " of integers"}.get(k.element, "")
    if len(k.axes) == 1:
        return f"a {place} {shape} of width {spell(k.axes[0])}{element}"
    return f"a {place} {shape}{f' [{spell_axes(k.axes)}]' if k.axes else ''}{element}"

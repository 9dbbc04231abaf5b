"""The score IR: what a variant is, as a graph of frozen values.

    variant  ::= Variant(name, input*, hyperparameter*, output)

    output   ::= Softmax(pair, sink: value?, mask) | WeightedSum(pair, mask)
               | Ratio(pair, pair, mask, at_least) | StickBreaking(pair, mask, order)
               | Apply(fn, (output | row | token | constant)*)   gate, difference, scale
               | Sum(output)                                     inside rms_norm only

    pair     ::= Dot(vector@row, vector@column, matrix?) | ScoreScan(pair, inclusive)
               | Decay(scalar@token) | Apply(fn, (pair | row | column | constant)*)
               | Lookup(table, (pair of int)*) | Sum(pair vector)

    value    ::= Input(name, place, heads, axes, element) | Constant(number) | Builtin(which, of?)
               | Apply(fn, value*) | Slice(vector, start, stop) | Concat(vector*) | Sum(vector)
               | Contract(vector | matrix, matrix) | Lookup(value, (value of int)*)
               | PrefixSum(value@token, inclusive) | At(value@token, row | column)

    matrix   ::= Input | Rotation(angle, layout) | Diagonal(log, width) | Outer(w, u, scale)
               | MatrixExp(matrix) | Apply(+ | - | * | transpose, ...) | Contract(matrix, matrix)

    mask     ::= Mask(rule, operand*)    causal(strict) window(n) everything() first_keys(n)
                                         same_document(ids) selected_blocks(list, n)
                                         negligible(decay, log_eps) and(mask, mask) or(mask, mask)

Every node carries the user's line (`where`, no part of equality). Kinds (place, heads, axes,
element) are computed by `gnomon.dsl.kinds`, not stored.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import partial
from typing import Any, Literal, Self

from gnomon.dsl.operators import Arithmetic, MaskAlgebra, refuse_equality
from gnomon.dsl.source import Where as Where
from gnomon.dsl.source import origin as origin
from gnomon.dsl.source import rewriting as rewriting

Place = Literal["constant", "row", "column", "token", "pair"]
Heads = Literal["KVHead", "Head"] | None
Element = Literal["real", "int", "bool"]


@dataclass(frozen=True, slots=True)
class Width:
    """A symbolic number of channels: a sum of (symbol, count); the symbol "1" is a plain number."""

    parts: tuple[tuple[str, Fraction], ...] = ()

    @staticmethod
    def of(symbol: str, times: Fraction | int = 1) -> "Width":
        """`times` of one symbol."""
        return Width(((symbol, Fraction(times)),))

    def scaled(self, share: Fraction) -> "Width":
        """A share of it, or a multiple."""
        return Width(tuple((symbol, count * share) for symbol, count in self.parts))

    def __add__(self, other: "Width") -> "Width":
        total = dict(self.parts)
        for symbol, count in other.parts:
            total[symbol] = total.get(symbol, Fraction(0)) + count
        return Width(tuple(sorted((s, c) for s, c in total.items() if c)))

    def size(self, sizes: dict[str, int]) -> int:
        """The number of channels for given sizes; ValueError where it is no whole number."""
        total = sum((count * sizes.get(s, 1) for s, count in self.parts), Fraction(0))
        if total.denominator != 1:
            raise ValueError(f"{self} is no whole number of channels for {sizes}")
        return int(total)

    def __str__(self) -> str:
        def show(symbol: str, count: Fraction) -> str:
            number = "" if count == 1 else f"{count} "
            return str(count) if symbol == "1" else f"{number}{symbol}"

        return " + ".join(show(s, c) for s, c in self.parts) or "0"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value: equal where its fields are equal, wherever it was made."""

    where: Where = field(default_factory=origin, repr=False, kw_only=True)
    _hash: int = field(init=False, repr=False, default=0, kw_only=True)

    def key(self) -> tuple[object, ...]:
        """What decides equality: the class and every field but the place in the source."""
        return (type(self).__name__, *(getattr(self, name) for name in self._names()))

    def _names(self) -> list[str]:
        return [f.name for f in fields(self) if f.name not in ("where", "_hash")]

    def __post_init__(self) -> None:
        # hashed once: a graph with shared nodes would be hashed exponentially often otherwise.
        # 1 and 1.0 are equal in Python and different programs here (int or real element).
        typed = tuple((type(x).__name__, x) for x in self.key())
        object.__setattr__(self, "_hash", hash(typed))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Node) or self._hash != other._hash:
            return self is other
        mine, its = self.key(), other.key()
        return mine == its and all(type(a) is type(b) for a, b in zip(mine, its, strict=True))

    def __reduce__(self) -> tuple[object, ...]:
        # hashes of strings differ between processes: a node is made anew, never restored
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "_hash"}
        return partial(type(self), **given), ()

    def children(self) -> tuple["Node", ...]:
        """The nodes it is made of, in the order of its fields."""
        items = (item if isinstance(item, tuple) else (item,) for item in self.key()[1:])
        return tuple(part for parts in items for part in parts if isinstance(part, Node))

    def with_children(self, change: Callable[["Node"], "Node"]) -> Self:
        """The same node over changed children; itself where nothing changed."""

        def visit(item: object) -> object:
            if isinstance(item, Node):
                return change(item)
            if isinstance(item, tuple):
                parts = tuple(visit(part) for part in item)
                return item if all(a is b for a, b in zip(parts, item, strict=True)) else parts
            return item

        old = {name: getattr(self, name) for name in self._names()}
        new: dict[str, Any] = {name: visit(item) for name, item in old.items()}
        return self if all(new[name] is old[name] for name in old) else replace(self, **new)


class Expr(Arithmetic, Node):
    """A node that is a value; the slot keeps what `gnomon.dsl.kinds` found out about it."""

    __slots__ = ("_kind",)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, float)):
            refuse_equality()
        return Node.__eq__(self, other)

    __hash__ = Node.__hash__


@dataclass(frozen=True, slots=True, eq=False)
class Input(Expr):
    """A tensor of the call: q, k, or a declared one."""

    name: str
    place: Place
    heads: Heads
    axes: tuple[Width, ...]
    element: Element


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Expr):
    """A Python number; an int is of element int, a float real."""

    value: int | float


@dataclass(frozen=True, slots=True, eq=False)
class Builtin(Expr):
    """A value that the call knows.

    position (of: coordinate or None), length, head, head_count, dim (of: Width), channel (Width),
    plane (Width of the vector), visible_count (of: Mask).
    """

    which: str
    of: "str | Width | Mask | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class Apply(Expr):
    """A pointwise function.

    + - * / // ** < <= > >= neg abs exp expm1 log log1p sqrt rsqrt sin cos cos_turns
    tanh sigmoid log_sigmoid softplus relu minimum maximum clip floor where detach transpose.
    """

    fn: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Slice(Expr):
    """Channels [start, stop) of a vector."""

    x: Expr
    start: Width
    stop: Width


@dataclass(frozen=True, slots=True, eq=False)
class Concat(Expr):
    """Vectors one after another."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Sum(Expr):
    """The sum over the channels of a vector."""

    x: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Contract(Expr):
    """x @ m: a row vector or a matrix times a matrix; blocks act on their own channels."""

    x: Expr
    m: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Lookup(Expr):
    """Entry `index` of a table (its first axes); indices are clamped to the table."""

    table: Expr
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PrefixSum(Expr):
    """The sum over s <= t (inclusive) or s < t of a token value."""

    x: Expr
    inclusive: bool


@dataclass(frozen=True, slots=True, eq=False)
class At(Expr):
    """A token value read at the query (row) or at the key (column)."""

    x: Expr
    place: Place


@dataclass(frozen=True, slots=True, eq=False)
class Rotation(Expr):
    """x @ rotation(a) = rotate(x, a); layout 'half' (c, c + d/2) or 'pairs' (2c, 2c + 1)."""

    angle: Expr
    layout: str


@dataclass(frozen=True, slots=True, eq=False)
class Diagonal(Expr):
    """Diag(exp(log)); Diagonal(Constant(0.0), width) is the identity."""

    log: Expr
    width: Width


@dataclass(frozen=True, slots=True, eq=False)
class Outer(Expr):
    """scale * w u^T; with a leading Repeat axis, one for each repeat (index 0 acts first)."""

    w: Expr
    u: Expr
    scale: Expr


@dataclass(frozen=True, slots=True, eq=False)
class MatrixExp(Expr):
    """The matrix exponential, of blocks or of one constant matrix."""

    x: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Dot(Expr):
    """a_i T_i T_{i-1} ... T_{j+1} . b_j; without a transport a_i . b_j."""

    a: Expr
    b: Expr
    through: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Decay(Expr):
    """The sum of x_s over s in (j, i]: the query's own step in, the key's out."""

    x: Expr


@dataclass(frozen=True, slots=True, eq=False)
class ScoreScan(Expr):
    """The sum of x_il over visible keys l > j (or l >= j) up to the last visible key."""

    x: Expr
    inclusive: bool


@dataclass(frozen=True, slots=True, eq=False)
class Mask(MaskAlgebra, Node):
    """Which pairs exist; operands are numbers, values or masks, by rule."""

    rule: str
    operands: "tuple[int | float | bool | Node, ...]" = ()


@dataclass(frozen=True, slots=True, eq=False)
class Softmax(Expr):
    """e^s / (e^sink + sum e^s)."""

    logit: Expr
    sink: Expr | None
    mask: Mask


@dataclass(frozen=True, slots=True, eq=False)
class WeightedSum(Expr):
    """sum_j weight_ij v_j."""

    weight: Expr
    mask: Mask


@dataclass(frozen=True, slots=True, eq=False)
class Ratio(Expr):
    """sum_j n_ij v_j / max(abs(sum_l d_il), at_least)."""

    numerator: Expr
    denominator: Expr
    mask: Mask
    at_least: float


@dataclass(frozen=True, slots=True, eq=False)
class StickBreaking(Expr):
    """sigmoid(s_ij) times the product of 1 - sigmoid(s_il) over visible l nearer than j."""

    logit: Expr
    mask: Mask
    order: str


@dataclass(frozen=True, slots=True, eq=False)
class Variant(Node):
    """A declared variant: its inputs (q and k among them, never v), its numbers, its output."""

    name: str
    formula: str
    inputs: tuple[Input, ...]
    hyperparameters: tuple[tuple[str, object], ...]
    output: Expr


ATTENTIONS = (Softmax, WeightedSum, Ratio, StickBreaking)


def walk(root: Node) -> Iterator[Node]:
    """Every node below and at `root`, once each, children before parents."""
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children()))

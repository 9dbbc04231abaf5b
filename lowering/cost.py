"""A model of the work of a kernel: operations for one pair of a query and a key, in one head.

Counted from the statements of one turn of a loop over tiles, divided by the pairs of the tile. A
value of a row or a column counts once a tile, so that a wider tile makes it cheaper; a product that
meets a sum directly is one operation with it. What stands outside the loops is not counted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import prod

from gnomon.lowering.config import Tiles
from gnomon.lowering.tile import (
    Dot,
    Expr,
    For,
    Kernel,
    Load,
    Op,
    Reduce,
    Ref,
    Scatter,
    Stmt,
    expressions,
    operands,
    type_of,
    walk,
)

SPECIAL = frozenset(
    {
        *("/", "**", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin"),
        *("cos", "sin_turns", "cos_turns", "tanh", "sigmoid", "log_sigmoid", "softplus"),
    }
)
BYTES = {"io": 2, "f16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8, "bool": 1}
"""io counts as a 16-bit type."""
WIDTH = 64
"""A width, or a number of entries or of hidden channels, that nobody gave."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Work for one pair.

    flops    of matrix products, two for each product and sum
    special  exponentials, logarithms, powers, quotients, trigonometric and like functions
    simple   sums, products, comparisons and choices
    bytes    read from memory
    gathers  entries of tables that are read, or added to, at an index of the pair
    """

    flops: float = 0.0
    special: float = 0.0
    simple: float = 0.0
    bytes: float = 0.0
    gathers: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, factor: float) -> "Cost":
        """The cost of doing it `factor` times."""
        return Cost(*(getattr(self, f.name) * factor for f in fields(self)))

    def __str__(self) -> str:
        words = ((f.name, getattr(self, f.name)) for f in fields(self))
        return ", ".join(f"{value:.4g} {name}" for name, value in words if value) or "nothing"


@dataclass(frozen=True, slots=True)
class Costs:
    """The work for a pair of an interior tile, and for one of an edge tile, where masks count."""

    interior: Cost
    edge: Cost


def costs(kernel: Kernel, tiles: Tiles, sizes: Mapping[str, int]) -> Costs:
    """The costs of a kernel's loops over tiles; `sizes` has widths by name (D0, DV, E0, N_bias)."""
    known = {**sizes, "BM": tiles.BM, "BN": tiles.BN}
    for padded, width in kernel.widths:
        known[padded] = sizes.get(width, WIDTH)
    pairs = tiles.BM * tiles.BN
    turns = [
        sum((each for each in _body(loop.body, known)), Cost()).times(1 / pairs)
        for loop in walk(kernel.body)
        if isinstance(loop, For) and isinstance(loop.step, Ref)
    ]
    work = sorted(turns, key=lambda c: (c.simple + c.special, c.flops))
    return Costs(work[0], work[-1])


def _body(body: tuple[Stmt, ...], known: Mapping[str, int]) -> Iterator[Cost]:
    for stmt in body:
        for expr in expressions(stmt):
            yield from _expression(expr, known)
        if isinstance(stmt, For):
            turns = known.get(stmt.stop.name, WIDTH) if isinstance(stmt.stop, Ref) else WIDTH
            yield sum((each for each in _body(stmt.body, known)), Cost()).times(turns)
        elif isinstance(stmt, Scatter):
            yield Cost(gathers=_size(type_of(stmt.value).shape, known))


def _expression(expr: Expr, known: Mapping[str, int]) -> Iterator[Cost]:
    size = _size(type_of(expr).shape, known)
    match expr:
        case Op(fn, args, shape, _):
            if fn in SPECIAL:
                yield Cost(special=size)
            elif fn not in ("+", "-") or not any(_is_product(arg, shape) for arg in args):
                yield Cost(simple=size)
        case Reduce(_, x, _):
            yield Cost(simple=_size(type_of(x).shape, known))
        case Dot(a, b):
            extents = dict.fromkeys((*type_of(a).shape, *type_of(b).shape))
            yield Cost(flops=2 * _size(tuple(extents), known))
        case Load(tensor, index, _, _):
            places = max((len(type_of(part).shape) for part in index), default=0)
            gathered = size if places > 1 else 0.0
            yield Cost(bytes=size * BYTES[tensor.dtype], gathers=gathered)
    if not isinstance(expr, Load):  # addresses are not counted
        for part in operands(expr):
            yield from _expression(part, known)


def _is_product(expr: Expr, shape: tuple[str, ...]) -> bool:
    return isinstance(expr, Op) and expr.fn == "*" and expr.shape == shape


def _size(shape: tuple[str, ...], known: Mapping[str, int]) -> float:
    return float(prod(known.get(name, WIDTH) for name in shape))

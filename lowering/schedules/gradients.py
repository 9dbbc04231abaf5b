"""Which gradients a backward kernel forms, from which adjoints, and how they are collected."""

from dataclasses import dataclass
from typing import Literal

from gnomon.dsl.nodes import Apply, Constant, Expr, Lookup
from gnomon.lowering.core import Anchored, Attention, Given, PairDot, Read, Stream, TransportDot
from gnomon.lowering.passes.differentiate import apply, differentiate
from gnomon.lowering.schedules.frame import Place
from gnomon.lowering.tile import Ref

Kind = Literal["matrix", "lines", "total", "channels", "entries", "tile"]
"""matrix: [stationary, width] by products; lines: one number a line; total: one number a program;
channels: one number a channel of a vector; entries: scattered into a table; tile: one number a pair
of a leaf, as it is."""


def adjoints(attention: Attention) -> dict[Expr, Expr]:
    """The adjoint of each differentiable leaf, over Given("ds") or Given("dn") and Given("dd")."""
    if attention.denominator is None:
        return differentiate(attention.weight, Given("ds", "pair"))
    found = differentiate(attention.weight, Given("dn", "pair"))
    for leaf, adjoint in differentiate(attention.denominator, Given("dd", "row")).items():
        found[leaf] = apply("+", found[leaf], adjoint) if leaf in found else adjoint
    return found


@dataclass(slots=True)
class Accumulated:
    """What one stream's gradient is collected from, and where."""

    stream: Stream
    kind: Kind
    leaves: list[tuple[Expr, Expr]]
    carrier: Ref | None = None
    factor: Expr | None = None
    """A number of the launch that every adjoint has: multiplied once, at the end."""


def collect(found: dict[Expr, Expr], place: Place) -> dict[str, Accumulated]:
    """The gradients that the kernel with this stationary side forms, by stream name."""
    sums: dict[str, Accumulated] = {}

    def add(stream: Stream, kind: Kind, leaf: Expr, adjoint: Expr) -> None:
        sums.setdefault(stream.name, Accumulated(stream, kind, [])).leaves.append((leaf, adjoint))

    for leaf, adjoint in found.items():
        match leaf:
            case PairDot(row, column) | TransportDot(row, column, _):
                stream = row if place == "row" else column
                if stream.differentiable:
                    add(stream, "matrix", leaf, adjoint)
                if isinstance(leaf, TransportDot) and place == "row" and leaf.near.differentiable:
                    add(leaf.near, "tile", leaf, adjoint)
            case Anchored(stream, _) | Read(stream) if stream.place == place:
                add(stream, "lines", leaf, adjoint)
            case Lookup(Read(stream), _) if stream.place in (place, constants_of(place)):
                add(stream, "entries", leaf, adjoint)
            case Read(stream) if stream.place == constants_of(place):
                add(stream, "channels" if stream.role == "vector" else "total", leaf, adjoint)
    for each in sums.values():
        _take_factor(each)
    return sums


def _take_factor(each: Accumulated) -> None:
    """sum_k (x_k * c) -> c * sum_k x_k for a number c of the launch."""
    if each.kind not in ("matrix", "lines", "total"):
        return
    split = [_factored(adjoint) for _, adjoint in each.leaves]
    factors = {factor for _, factor in split}
    if len(factors) == 1 and factors != {None}:
        each.leaves = [(leaf, x) for (leaf, _), (x, _) in zip(each.leaves, split, strict=True)]
        (each.factor,) = factors


def _factored(adjoint: Expr) -> tuple[Expr, Expr | None]:
    """A product as (what differs from pair to pair, the numbers of the launch in it)."""
    numbers: list[Expr] = []
    rest: list[Expr] = []

    def take(x: Expr) -> None:
        match x:
            case Apply("*", (a, b)):
                take(a)
                take(b)
            case Apply("neg", (a,)):
                numbers.append(Constant(-1.0))
                take(a)
            case Constant():
                numbers.append(x)
            case Read(stream) if stream.role == "host":
                numbers.append(x)
            case _:
                rest.append(x)

    take(adjoint)
    if not numbers or not rest:
        return adjoint, None
    return _product(rest), _product(numbers)


def _product(parts: list[Expr]) -> Expr:
    product = parts[0]
    for part in parts[1:]:
        product = apply("*", product, part)
    return product


def constants_of(place: Place) -> str:
    """The rows kernel also sums over whole tiles: one program belongs to one query head."""
    return "constant" if place == "row" else ""

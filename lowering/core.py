"""The normal form between the score IR and the schedules: what runs once, and what runs per pair.

    program   ::= Program(variant, attention*, epilogue)
    attention ::= Attention(normaliser, weight, denominator?, row_term?, sink?, mask, streams)
    stream    ::= Stream(name, place, heads, axes, dtype, role, value, differentiable)

A *stream* is a tensor that a kernel reads. Its `value` is an expression of the score IR without any
pair in it; the prologue evaluates it once for every token. The pair formulas (`weight`,
`denominator`) are score IR again, over these leaves:

    Read(stream)              a row, column or constant value (scalar, or a table inside a Lookup)
    PairDot(row, column)      the dot of two streams of vectors
    TransportDot(row, column, near)   the dot of vectors that a transport has moved to one place
    Anchored(stream, anchor)  a prefix sum, minus the prefix sum at the first row of the query tile
    Index(place)              the position of the query or of the key, counted in its sequence
    Given(name)               a value that the schedule provides (cotangents, row statistics)

`Output(k)` stands for the result of attention k in the epilogue.
"""

from dataclasses import dataclass
from typing import Literal

from gnomon.dsl import nodes
from gnomon.dsl.nodes import Expr, Heads, Mask, Variant, Width

Role = Literal["dot", "scalar", "prefix", "low", "table", "vector", "host", "version", "near"]
StreamDType = Literal["io", "f32", "i32"]


@dataclass(frozen=True, slots=True)
class Stream:
    """One tensor of a kernel.

    role     shape of the tensor
    dot      [batch, time, heads, width], dtype io: meets another stream in a dot
    scalar   [batch, time, heads] of a row or column; [heads] or [] of a constant
    prefix   [batch, time, heads]: a prefix sum, formed in float64 and held as two numbers of fp32,
    low      of which `prefix` has the high digits and `low` the rest
    table    [batch, time, heads, entries] or, of a constant, [heads, entries] or [entries]
    vector   [heads, n] or [n]: a constant vector of a channel sum (FIRE's hidden layer)
    host     a Python number known at the launch (scale)
    version  [batch, level * R + row', heads, width], dtype io: a dot's vectors at the edge where
             two sibling nodes of a level meet (schedules/tree.py); the value is the whole dot
    near     [batch, time_q, head, LEAF], fp32: the dots of a query with the keys of its own leaf
    """

    name: str
    place: Literal["row", "column", "constant"]
    heads: Heads
    axes: tuple[Width, ...]
    dtype: StreamDType
    role: Role
    value: Expr
    differentiable: bool


@dataclass(frozen=True, slots=True, eq=False)
class Read(Expr):
    """The value of a stream at its side of the pair, or of a constant."""

    stream: Stream


@dataclass(frozen=True, slots=True, eq=False)
class PairDot(Expr):
    """row_i . column_j, both [batch, time, heads, width]."""

    row: Stream
    column: Stream


@dataclass(frozen=True, slots=True, eq=False)
class TransportDot(Expr):
    """row_i T_i ... T_{j+1} . column_j: a product of versions, in one leaf a number of `near`."""

    row: Stream
    column: Stream
    near: Stream


@dataclass(frozen=True, slots=True, eq=False)
class Anchored(Expr):
    """stream_t - anchor_b: a prefix sum from b, the first row of the query tile, on."""

    stream: Stream
    anchor: Stream


@dataclass(frozen=True, slots=True, eq=False)
class Index(Expr):
    """i or j: the position in memory order, counted by the kernel."""

    place: Literal["row", "column"]


@dataclass(frozen=True, slots=True, eq=False)
class Given(Expr):
    """A value that the schedule forms itself: a cotangent of the pair, a row statistic."""

    name: str
    place: Literal["row", "column", "pair"]


@dataclass(frozen=True, slots=True, eq=False)
class Output(Expr):
    """The output of attention k, [batch, time_q, head, dim_v]."""

    k: int


@dataclass(frozen=True, slots=True)
class Skip:
    """Tiles behind a decay may be left out where they weigh below e^log_eps of each row together.

    `bound` is what the rest of the logit never exceeds; None: norms of its dot bound it.
    """

    log_eps: float
    bound: float | None


@dataclass(frozen=True, slots=True)
class Attention:
    """One pass over the keys.

    softmax       p_ij = exp(weight_ij + row_term_i - lse_i), with exp(sink_i) in the sum where
                  there is a sink
    weighted_sum  p_ij = weight_ij
    ratio         p_ij = weight_ij / max(|sum_l denominator_il|, at_least); where `exponent` is
                  given, both formulas are already divided by exp(max_j exponent_ij), the running
                  maximum `Given("row_max")`
    """

    name: str
    normaliser: Literal["softmax", "weighted_sum", "ratio"]
    weight: Expr
    denominator: Expr | None
    row_term: Expr | None
    sink: Stream | None
    exponent: Expr | None
    at_least: float
    mask: Mask
    streams: tuple[Stream, ...]
    skip: Skip | None = None

    def needs_exact_o(self) -> bool:
        """Whether the backward pass wants o as it was before it was rounded to the io dtype.

        Its error is in each row's delta, and would add up where a gradient sums over rows.
        """
        vectors = ("dot", "version", "near")
        sums = any(s.differentiable and s.role not in vectors for s in self.streams)
        return sums and self.normaliser != "weighted_sum"

    def dots(self) -> tuple[PairDot | TransportDot, ...]:
        """The distinct dots of its formulas, in order of first use."""
        found: dict[PairDot | TransportDot, None] = {}
        for formula in (self.exponent, self.weight, self.denominator):
            if formula is not None:
                dots = (n for n in nodes.walk(formula) if isinstance(n, PairDot | TransportDot))
                found.update((n, None) for n in dots)
        return tuple(found)

    def has_transport(self) -> bool:
        """Whether a dot goes through a transport: its kernels walk a tree over leaves."""
        return any(stream.role == "version" for stream in self.streams)


@dataclass(frozen=True, slots=True)
class Program:
    """A variant ready for a schedule.

    `positions` says whether the call gives positions (then they are streams) or the kernel counts
    them.
    """

    variant: Variant
    attentions: tuple[Attention, ...]
    epilogue: Expr
    positions: bool

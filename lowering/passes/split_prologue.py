"""Split a variant into what is evaluated once a token and what is evaluated once a pair.

    dot(a_i, b_j)            ->  PairDot(stream a, stream b)
    dot(a_i, b_j, through=T) ->  TransportDot(versions of a, versions of b, dots inside a leaf)
    dot(c, b_j), dot(a_i, c) ->  Read(stream channel_sum(c * b))      c a vector of parameters
    decay(x)                 ->  Anchored(P at i) - Anchored(P at j)      P = prefix_sum(x)
    lookup(table, f(i, j))   ->  lookup(Read(stream table), f)
    position at i, j         ->  Index(row), Index(column); streams where the call gives positions
    a row, column or constant subexpression, as large as possible  ->  Read(stream)

Takes: a canonical variant (rotations are maps, differences of prefix sums are decays).
Gives: a `Program` whose pair formulas have the leaves of `lowering/core.py` only.
Raises: UnsupportedError for score scans and stick-breaking (their schedules come later), and for
transports that are no diagonal minus a low rank.
"""

from collections.abc import Callable
from typing import Literal, cast

from gnomon.dsl.build import at
from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.kinds import Kind, kind
from gnomon.dsl.nodes import (
    Apply,
    At,
    Builtin,
    Constant,
    Decay,
    Dot,
    Expr,
    Heads,
    Input,
    Lookup,
    Mask,
    Node,
    PrefixSum,
    Ratio,
    ScoreScan,
    Softmax,
    StickBreaking,
    Sum,
    Variant,
    WeightedSum,
    Width,
    walk,
)
from gnomon.lowering.core import (
    Anchored,
    Attention,
    Index,
    Output,
    PairDot,
    Program,
    Read,
    Role,
    Skip,
    Stream,
    StreamDType,
    TransportDot,
)
from gnomon.lowering.passes.name_streams import stream_name
from gnomon.lowering.transports import step_of

StreamPlace = Literal["row", "column", "constant"]
_SIDES: dict[str, StreamPlace] = {"row": "row", "column": "column", "constant": "constant"}
_FROZEN = ("host", "low")
"""Roles without a gradient: numbers, and parts of a sum whose gradient another stream has."""
_NO_SCHEDULE: dict[type, str] = {
    ScoreScan: "a sum over the keys in between is carried along the row",
}


def split_prologue(variant: Variant, *, positions: bool = False) -> Program:
    """The program of a canonical variant; `positions`: the call gives the tokens' positions."""
    found: dict[Expr, int] = {}
    for node in walk(variant.output):
        if isinstance(node, (Softmax, WeightedSum, Ratio)):
            found.setdefault(node, len(found))
        elif isinstance(node, StickBreaking):
            raise _unsupported(node, "stick-breaking carries a row's remaining stick", variant)
    attentions = tuple(
        _Splitter(variant, positions).attention(node, _name(variant, k, len(found)))
        for node, k in found.items()
    )
    return Program(variant, attentions, _epilogue(variant.output, found), positions)


def _name(variant: Variant, k: int, count: int) -> str:
    return variant.name if count == 1 else f"{variant.name}_{k + 1}"


def _epilogue(output: Expr, found: dict[Expr, int]) -> Expr:
    def change(node: Node) -> Node:
        if isinstance(node, Expr) and node in found:
            return Output(found[node])
        return node.with_children(change)

    return cast(Expr, change(output))


def _unsupported(node: Node, why: str, variant: Variant) -> UnsupportedError:
    return UnsupportedError(
        f"{variant.name}: {type(node).__name__} has no schedule yet: {why}",
        "the oracle gnomon.dsl.reference evaluates it; gnomon list shows what lowers today",
        where=node.where,
    )


class _Splitter:
    """The streams of one attention, in order of first use."""

    def __init__(self, variant: Variant, positions: bool) -> None:
        self.variant = variant
        self.positions = positions
        self.counts = _counts_with_positions(variant)
        self.streams: dict[tuple[Expr, str, str], Stream] = {}
        self.memo: dict[Expr, Expr] = {}
        self.skip: Skip | None = None

    def attention(self, node: Expr, name: str) -> Attention:
        """The normal form of one attention node."""
        denominator = sink = None
        at_least = 0.0
        match node:
            case Softmax(logit, given_sink, mask):
                weight, normaliser = self.pair(logit), "softmax"
                if given_sink is not None:
                    of_row = kind(given_sink).place in ("row", "token")
                    sink = self.stream(
                        given_sink, "row" if of_row else "constant", "scalar", "sink"
                    )
            case WeightedSum(value, mask):
                weight, normaliser = self.pair(value), "weighted_sum"
            case Ratio(numerator, divisor, mask, bound):
                weight, denominator = self.pair(numerator), self.pair(divisor)
                normaliser, at_least = "ratio", bound
            case _:
                raise TypeError(f"no attention: {type(node).__name__}")
        mask = self.mask(mask)
        return Attention(
            name,
            cast(Literal["softmax", "weighted_sum", "ratio"], normaliser),
            weight,
            denominator,
            None,
            sink,
            None,
            at_least,
            mask,
            tuple(dict.fromkeys(self.streams.values())),
            self.skip if mask.rule == "causal" else None,
        )

    # -- streams

    def stream(self, value: Expr, place: StreamPlace, role: Role, hint: str = "") -> Stream:
        """The stream of a value; the same value in the same role is one stream.

        A sink is one of its own: its gradient comes from the log-sum-exp, not from the pairs.
        """
        part = hint if hint == "sink" else role
        known = self.streams.get((value, place, part))
        if known is not None:
            return known
        of = kind(value)
        if of.place == "token" and place in ("row", "column"):
            value = At(value, place)
        taken = {stream.name for stream in self.streams.values()}
        made = Stream(
            stream_name(value, place, role, hint, taken),
            place,
            of.heads,
            of.axes,
            self._dtype(role, of, value),
            role,
            value,
            role not in _FROZEN and of.element == "real" and _is_differentiable(value),
        )
        self.streams[(value, place, part)] = made
        self.streams[(value.x if isinstance(value, At) else value, place, part)] = made
        return made

    def constant(self, value: Expr) -> Expr:
        """A constant: a literal, a number known at the launch, or a tensor of parameters."""
        folded = _fold(value)
        if folded is not None:
            return folded
        if isinstance(value, Apply) and kind(value).element == "bool":
            return Apply(value.fn, tuple(self.pair(arg) for arg in value.args))
        needs_tensor = any(
            isinstance(n, Input)
            or (isinstance(n, Builtin) and n.which in ("head", "channel", "plane"))
            for n in walk(value)
        )
        if any(isinstance(n, Builtin) and n.which == "length" for n in walk(value)):
            raise _unsupported(
                value, "length() inside a pair formula differs by sequence", self.variant
            )
        axes = kind(value).axes
        if not needs_tensor and not axes:
            return Read(self.stream(value, "constant", "host"))
        return Read(self.stream(value, "constant", "vector" if axes else "scalar"))

    def _dtype(self, role: Role, of: Kind, value: Expr) -> StreamDType:
        """How a stream is held; positions that a call gives may be real, as in interpolation."""
        if role == "dot":
            return "io"
        if of.element != "int" or role == "host":
            return "f32"
        return "f32" if _is_position(value) and not self.counts else "i32"

    # -- formulas

    def pair(self, x: Expr) -> Expr:
        """A formula of the pair over the leaves of the normal form."""
        if x not in self.memo:
            self.memo[x] = self._pair(x)
        return self.memo[x]

    def _pair(self, x: Expr) -> Expr:
        of = kind(x)
        if isinstance(x, At) and isinstance(x.x, Builtin) and x.x.which == "position":
            return self.position(x)
        if of.place == "constant":
            return self.constant(x)
        if of.place in ("row", "column") and of.element != "bool":
            return self.one_token(x)
        return self.of_pair(x)

    def of_pair(self, x: Expr) -> Expr:
        """What two tokens make, or a condition."""
        match x:
            case Apply(fn, args):
                return Apply(fn, tuple(self.pair(arg) for arg in args))
            case At(Apply(fn, args), place):  # a condition of one token: its numbers are read
                return Apply(fn, tuple(self.pair(at(arg, place)) for arg in args))
            case Sum(inner):
                return Sum(self.pair(inner))
            case Dot(a, b, None) if "constant" in (kind(a).place, kind(b).place):
                return self.pair(Sum(Apply("*", (a, b))))  # no matrix product: one number a token
            case Dot(a, b, None):
                return PairDot(self.stream(a, "row", "dot"), self.stream(b, "column", "dot"))
            case Dot():
                return self.transported(x)
            case Decay(step):
                return self.decay(step)
            case Lookup(table, index):
                return self.lookup(table, index)
        why = _NO_SCHEDULE.get(type(x), "it is no part of a pair formula")
        raise _unsupported(x, why, self.variant)

    def one_token(self, x: Expr) -> Expr:
        """A value of the query alone, or of the key alone."""
        of = kind(x)
        if of.axes:
            raise _unsupported(x, "a vector of one token stands in a pair formula", self.variant)
        return Read(self.stream(x, _SIDES[of.place], "scalar"))

    def position(self, x: At) -> Expr:
        """The position of the query or the key: counted by the kernel unless the call gives it."""
        side: Literal["row", "column"] = "row" if x.place == "row" else "column"
        assert isinstance(x.x, Builtin)
        if self.positions or x.x.of is not None:
            return Read(self.stream(x, side, "scalar", "position"))
        return Index(side)

    def decay(self, step: Expr) -> Expr:
        """The sum over (j, i] as the difference of two prefix sums."""
        total = PrefixSum(step, True)
        row = self.stream(total, "row", "prefix")
        column = self.stream(total, "column", "prefix")
        self.stream(total, "row", "low")
        self.stream(total, "column", "low")
        return Apply("-", (Anchored(row, row), Anchored(column, row)))

    def transported(self, x: Dot) -> Expr:
        """A dot through a transport: its versions and leaves are made before the kernels."""
        step = None if x.through is None else step_of(x.through)
        if step is None:
            raise _unsupported(
                x, "its steps are no diagonal minus a product of two vectors", self.variant
            )
        if (kind(x.a).place, kind(x.b).place) != ("row", "column"):
            raise _unsupported(x, "one of its vectors is the same for all tokens", self.variant)
        width = kind(x.a).axes
        keys: Heads = "Head" if "Head" in (step.heads, kind(x.b).heads) else "KVHead"
        return TransportDot(
            self._made_of(x, "row", "version", "Head", width),
            self._made_of(x, "column", "version", keys, width),
            self._made_of(x, "row", "near", "Head", (Width.of("LEAF"),)),
        )

    def _made_of(
        self, x: Dot, place: StreamPlace, role: Role, heads: Heads, axes: tuple[Width, ...]
    ) -> Stream:
        """A stream whose value is a whole dot."""
        if (x, place, role) not in self.streams:
            taken = {stream.name for stream in self.streams.values()}
            name = stream_name(x, place, role, "", taken)
            dtype: StreamDType = "io" if role == "version" else "f32"
            made = Stream(name, place, heads, axes, dtype, role, x, _is_differentiable(x))
            self.streams[(x, place, role)] = made
        return self.streams[(x, place, role)]

    def lookup(self, table: Expr, index: tuple[Expr, ...]) -> Expr:
        """An entry of a table of numbers at an index of the pair."""
        of = kind(table)
        if len(of.axes) != len(index):
            raise _unsupported(table, "a look-up of the pair gives a vector", self.variant)
        place: StreamPlace = "constant" if of.place == "constant" else _SIDES.get(of.place, "row")
        return Lookup(
            Read(self.stream(table, place, "table")), tuple(self.pair(part) for part in index)
        )

    def mask(self, mask: Mask) -> Mask:
        """The mask over streams: its values are read at both sides."""
        if mask.rule == "same_document":
            (ids,) = cast(tuple[Expr], mask.operands)
            sides = (
                Read(self.stream(ids, "row", "scalar", "document")),
                Read(self.stream(ids, "column", "scalar", "document")),
            )
            return Mask(mask.rule, sides)
        if mask.rule == "selected_blocks":
            blocks, size = mask.operands
            return Mask(
                mask.rule, (Read(self.stream(cast(Expr, blocks), "row", "table", "blocks")), size)
            )
        if mask.rule == "negligible":
            _, log_eps, *bound = cast(tuple[Expr, float, float], mask.operands)
            self.skip = Skip(log_eps, bound[0] if bound else None)
            return Mask("everything")  # hides nothing that has weight: exact without skipping
        parts = tuple(self.mask(x) if isinstance(x, Mask) else x for x in mask.operands)
        if mask.rule == "and" and Mask("everything") in parts:
            (left, right) = parts
            return cast(Mask, right if left == Mask("everything") else left)
        return Mask(mask.rule, parts)


def _is_position(x: Expr) -> bool:
    """Whether a value is a token's position, read somewhere or not yet."""
    inner = x.x if isinstance(x, At) else x
    return isinstance(inner, Builtin) and inner.which == "position"


def _counts_with_positions(variant: Variant) -> bool:
    """Whether positions choose table entries or are divided whole: they must be integers then."""

    def counts(node: Node) -> bool:
        if isinstance(node, Lookup):
            below = [n for part in node.index for n in walk(part)]
        elif isinstance(node, Apply) and node.fn == "//":
            below = list(walk(node))
        else:
            return False
        return any(isinstance(n, Builtin) and n.which == "position" for n in below)

    return any(counts(node) for node in walk(variant.output))


def _is_differentiable(value: Expr) -> bool:
    """Whether a gradient can flow from the value to a real input."""

    def reaches(node: Expr) -> bool:
        if isinstance(node, Input):
            return node.element == "real"
        if isinstance(node, Apply) and node.fn in ("detach", "floor", "//", "<", "<=", ">", ">="):
            return False
        return any(isinstance(child, Expr) and reaches(child) for child in node.children())

    return reaches(value)


_FOLD: dict[str, Callable[..., int | float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "**": lambda a, b: float(a) ** b,
    "neg": lambda a: -a,
    "abs": abs,
}


def _fold(x: Expr) -> Constant | None:
    if isinstance(x, Constant):
        return x
    if isinstance(x, Apply) and x.fn in _FOLD:
        parts = [_fold(arg) for arg in x.args]
        if all(part is not None for part in parts):
            return Constant(_FOLD[x.fn](*(part.value for part in parts if part is not None)))
    return None

"""Pair formulas as tile statements.

A formula is a graph of score IR over the leaves of `lowering/core.py`. Each value is formed once:
what is used twice, and what does not vary with both axes of the tile, gets a name; the rest nests.
A channel sum becomes a loop that carries one number for each pair; a look-up becomes a gather at a
clamped index.
"""

from collections.abc import Iterable, Mapping

from gnomon.dsl.nodes import Apply, Constant, Expr, Lookup, Node, Sum
from gnomon.lowering import tile
from gnomon.lowering.core import Anchored, Given, Index, PairDot, Read, Stream, TransportDot
from gnomon.lowering.passes.differentiate import axes_of
from gnomon.lowering.passes.fold_log2e import LOG2E
from gnomon.lowering.schedules.frame import ZERO, Frame, Side, scalar
from gnomon.lowering.tile import Cast, Full, Load, Number, Ref, Type, type_of

_REAL = frozenset(("f32", "f64", "io"))
DISTANCE = Apply("-", (Index("row"), Index("column")))
REAL_DISTANCE = Apply("detach", (DISTANCE,))
"""Stands for it as a real number among the values that are formed."""
_TAKES_REALS = frozenset(
    (
        "*",
        "/",
        "**",
        "exp",
        "log",
        "log1p",
        "log2",
        "sqrt",
        "rsqrt",
        "cos",
        "sin",
        "tanh",
        "sigmoid",
    )
)
"""Functions that turn the integer i - j into a real number; `*` beside a real."""


class PairTile:
    """The pairs of one query tile and one key tile: values of formulas, formed once each.

    `exact`: differences of prefix sums are taken pair by pair (schedules/decays.py).
    """

    def __init__(
        self,
        frame: Frame,
        row: Side,
        column: Side,
        given: Mapping[str, tile.Expr],
        anchor: Side | None = None,
        *,
        exact: bool = False,
    ) -> None:
        self.frame, self.block = frame, frame.block
        self.row, self.column = row, column
        self.anchor, self.exact = anchor or row, exact
        self.given = dict(given)
        self.memo: dict[Expr, tile.Expr] = {}
        self.uses: dict[Expr, int] = {}
        self.channel: tile.Expr | None = None
        self.shape = frame.block.order

    # -- entry points

    def announce(self, roots: Iterable[Expr]) -> None:
        """Count the uses of every value, so that shared ones get a name."""
        stack: list[Node] = list(roots)
        for root in roots:
            self.uses[root] = self.uses.get(root, 0) + 1
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            for child in node.children():
                if isinstance(child, Expr):
                    self.uses[child] = self.uses.get(child, 0) + 1
                    stack.append(child)

    def value(self, x: Expr, name: str = "") -> tile.Expr:
        """The tile of a formula; with a name, as a statement of its own."""
        if x not in self.memo:
            made = self._value(x)
            if name or self._deserves_a_name(x, made):
                made = self.let(name or _name(x), made)
            self.memo[x] = made
        return self.memo[x]

    def _deserves_a_name(self, x: Expr, made: tile.Expr) -> bool:
        if isinstance(made, (Ref, Number)):
            return False
        if isinstance(made, (Load, tile.Dot)):
            return True
        varies = set(type_of(made).shape) == set(self.shape)
        return self.uses.get(x, 0) > 1 or not varies

    def let(self, name: str, value: tile.Expr) -> Ref:
        """A statement under this name, or the next one that is free."""
        free, number = name, 2
        while free in self.block.names:
            free, number = f"{name}{number}", number + 1
        return self.block.let(free, value)

    # -- nodes

    def _value(self, x: Expr) -> tile.Expr:
        match x:
            case Apply("detach", (a,)):
                return self.value(a)
            case Apply("-", (Anchored(row, a), Anchored(column, b))) if self.exact and a == b:
                (high_i, low_i), (high_j, low_j) = self.row.digits(row), self.column.digits(column)
                low = self.block.op("-", low_i, low_j)
                return self.block.op("apart", high_i, high_j, low)
            case Apply(fn, args) if fn in _TAKES_REALS and DISTANCE in args:
                made = [self.distance() if a == DISTANCE else self.value(a) for a in args]
                return self._apply(fn, made)
            case Apply(fn, args):
                return self._apply(fn, [self.value(arg) for arg in args])
            case Lookup(Read(stream), index):
                return Load(*self.entry(stream, index))
            case Sum(inner):
                return self._sum(inner)
        return self._leaf(x)

    def _leaf(self, x: Expr) -> tile.Expr:
        match x:
            case Constant(number):
                return Number(number, "i32" if isinstance(number, int) else "f32")
            case PairDot(row, column):
                return self._dot(x, row, column)
            case TransportDot(row, column, near):
                return self._near(near) if self.frame.level is None else self._dot(x, row, column)
            case Read(stream):
                return self._read(stream)
            case Anchored(stream, anchor):
                side = self.row if stream.place == "row" else self.column
                return side.anchored(stream, self.anchor.first_of(anchor))
            case Index(place):
                return self.row.positions if place == "row" else self.column.positions
            case Given(name, _):
                return self.given[name]
        raise TypeError(f"no pair formula: {type(x).__name__}")

    def distance(self) -> tile.Expr:
        """The distance i - j as a real number: a subtraction a pair, and no conversion.

        Exact up to 2^24: the distance of the tiles is an integer until it meets the small offsets.
        """
        if REAL_DISTANCE not in self.memo:
            b, row, column = self.block, self.row, self.column
            tiles = b.op("-", b.op("+", row.first, self.frame.shift), column.first)
            rows = b.op("+", Cast(tiles, "f32"), Cast(tile.Arange(row.extent), "f32"))
            columns = Cast(tile.Arange(column.extent), "f32")
            apart = b.op("-", self.let("b_from", rows), columns)
            self.memo[REAL_DISTANCE] = self.let("b_distance", apart)
        return self.memo[REAL_DISTANCE]

    def _apply(self, fn: str, values: list[tile.Expr]) -> tile.Expr:
        if fn == "clip":
            value, low, high = values
            return self._apply("minimum", [self._apply("maximum", [value, low]), high])
        made = self.block.op(fn, *values)
        assert isinstance(made, tile.Op)
        operands = values[1:] if fn == "where" else values
        if made.dtype == "f32" or any(type_of(v).dtype in _REAL for v in operands):
            values = [v if i == 0 and fn == "where" else _real(v) for i, v in enumerate(values)]
            made = self.block.op(fn, *values)
        return made

    def near(
        self, tensor: tile.Tensor
    ) -> tuple[tuple[tile.Expr, ...], tuple[tile.Expr | None, ...]]:
        """Index and limits of the pairs of one leaf, [BM, BN], in a tensor of `near`."""
        frame = self.frame
        assert tensor.axes[-1] == "LEAF"
        in_leaf = self.block.op("+", self.column.offsets, frame.leaf_shift)
        index = (frame.batch, self.row.times, frame.h, in_leaf)
        return index, (None, self.row.limit, None, scalar("LEAF"))

    def _near(self, near: Stream) -> tile.Expr:
        """The dots of the queries of a leaf with its keys."""
        tensor = self.frame.tensors[near.name]
        load = self.let("b_near", Load(tensor, *self.near(tensor)))
        if load.type.shape == self.shape:
            return load
        return self.let(
            "b_near_turned", self.block.op("+", Full(0.0, Type("f32", self.shape)), load)
        )

    def _dot(self, x: PairDot | TransportDot, row: Stream, column: Stream) -> tile.Expr:
        a, b = self.row.load(row), self.column.load(column)
        number = self.frame.attention.dots().index(x)
        count = len(self.frame.attention.dots())
        name = "b_s" if count == 1 else f"b_s{number + 1}"
        product = tile.Dot(a, b) if self.frame.stationary == "row" else tile.Dot(b, a)
        return self.let(name, product)

    def _read(self, stream: Stream) -> tile.Expr:
        if stream.role == "vector":
            assert self.channel is not None
            tensor = self.frame.tensors[stream.name]
            return Load(tensor, (self.frame.head_of(stream), self.channel), (None, None))
        if stream.place == "constant":
            return self.frame.constant(stream)
        return (self.row if stream.place == "row" else self.column).load(stream)

    # -- look-ups

    def index(self, stream: Stream, index: tuple[Expr, ...]) -> list[tile.Expr]:
        """The clamped entry of each axis of a table."""
        sizes = self.frame.widths.axes(stream)
        return [
            self._clamped(self.value(part), scalar(size))
            for part, size in zip(index, sizes, strict=True)
        ]

    def _clamped(self, index: tile.Expr, size: Ref) -> tile.Expr:
        if type_of(index).dtype in _REAL:
            index = Cast(self.block.op("floor", index), "i32")
        last = self.block.op("-", size, 1)
        return self.block.op("maximum", self.block.op("minimum", index, last), 0)

    def entry(
        self, stream: Stream, index: tuple[Expr, ...]
    ) -> tuple[tile.Tensor, tuple[tile.Expr, ...], tuple[tile.Expr | None, ...]]:
        """Tensor, index and limits of a look-up."""
        tensor, head = self.frame.tensors[stream.name], self.frame.head_of(stream)
        entries = tuple(
            e if isinstance(e, Ref) else self.let("e_" + stream.name, e)
            for e in self.index(stream, index)
        )
        if stream.place == "constant":
            return tensor, (head, *entries), (None,) * (1 + len(entries))
        side = self.row if stream.place == "row" else self.column
        limits = (None, side.limit, None, *(None for _ in entries))
        return tensor, (self.frame.batch, side.times, head, *entries), limits

    # -- channel sums

    def channels(self, x: Expr) -> tuple[Ref, Ref]:
        """The (size, padded extent) of the channels that a sum runs over."""
        stack: list[Node] = [x]
        while stack:
            node = stack.pop()
            if isinstance(node, Read) and node.stream.role == "vector":
                (axis,) = self.frame.widths.axes(node.stream)
                return scalar(axis), Ref(f"B{axis}", Type("i32"))
            if not isinstance(node, Sum):
                stack.extend(node.children())
        raise TypeError("a channel sum without a vector")

    def _sum(self, inner: Expr) -> tile.Expr:
        size, _ = self.channels(inner)
        name = "b_sum"
        # pair values that do not vary with the channel are formed before the loop
        self.settle(inner)
        total = self.let(name, Full(0.0, Type("f32", self.shape)))
        with self.loop_over_channels(size):
            self.block.set(total, self.block.op("+", total, self.value(inner)))
        return total

    def settle(self, x: Expr) -> None:
        """Form every scalar operand of a vector expression now, outside its channels' loop."""
        if axes_of(x) == 0:
            made = self.value(x)
            if not isinstance(made, (Ref, Number)):
                self.memo[x] = self.let(_name(x), made)
            return
        for child in x.children():
            if isinstance(child, Expr):
                self.settle(child)

    def loop_over_channels(self, size: Ref) -> "ChannelLoop":
        """A loop in which vectors are read channel by channel."""
        return ChannelLoop(self, size)


class ChannelLoop:
    """for i_e in range(size): vectors are read at channel i_e, and forgotten afterwards."""

    def __init__(self, pair: PairTile, size: Ref) -> None:
        self.pair = pair
        self.loop = pair.block.loop("i_e", ZERO, size, 1)

    def __enter__(self) -> Ref:
        self.before = self.pair.memo
        self.pair.memo = dict(self.before)
        index = self.loop.__enter__()
        self.pair.channel = index
        return index

    def __exit__(self, *error: object) -> None:
        self.loop.__exit__(None, None, None)
        self.pair.memo, self.pair.channel = self.before, None


def _real(x: tile.Expr) -> tile.Expr:
    """An integer beside reals is a real."""
    if isinstance(x, Number):
        return Number(float(x.value), "f32")
    return Cast(x, "f32") if type_of(x).dtype in ("i32", "i64") else x


def _name(x: Expr) -> str:
    """A name by role: what was measured in units of log 2, or the function that made it."""
    match x:
        case Apply("*", (Read(stream) | Anchored(stream, _), Constant(value))) if value == LOG2E:
            return f"{stream.name}_log2" if stream.role == "host" else f"b_{stream.name}_log2"
        case Lookup(Read(stream), _) | Read(stream):
            return f"b_{stream.name}"
        case Apply("-", (Index("row"), Index("column"))):
            return "b_distance"
        case Apply(fn, _):
            return _NAMES.get(fn, "b_x")
    return "b_x"


_NAMES: dict[str, str] = {
    "cos_turns": "b_cos",
    "sin_turns": "b_sin",
    "cos": "b_cos",
    "sin": "b_sin",
    "tanh": "b_tanh",
    "sigmoid": "b_sigmoid",
    "exp": "b_exp",
    "log": "b_log",
    "log1p": "b_log",
    "**": "b_power",
    "where": "b_choice",
    "-": "b_difference",
    "+": "b_total",
    "*": "b_product",
    "/": "b_quotient",
    "relu": "b_relu",
    "neg": "b_negative",
}

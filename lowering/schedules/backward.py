"""The backward schedules: two kernels, each with one side of the pairs stationary.

    [name]_bwd_rows      a tile of queries stays: gradients of row streams, and partial sums for
                         constants
    [name]_bwd_columns   a tile of keys stays, for every query head of its group: gradients of v
                         and of column streams

With g_ij = do_i . v_j and delta_i = do_i . o_i (minus the gradient of the log-sum-exp) both
recompute the weights and

    softmax        p_ij = exp(s_ij - lse_i);   ds_ij = p_ij (g_ij - delta_i)
    weighted_sum   dw_ij = g_ij
    ratio          D_i = max(|d_i|, a);   dn_ij = g_ij / D_i
                   dd_ij = -delta_i sign(d_i) [|d_i| > a] / D_i

The formulas' own derivatives come from `passes/differentiate.py`. Score tiles have their stationary
axis first, so every sum runs along rows of the tile. Nothing is summed by atomics: each output
belongs to one program.
"""

from gnomon.dsl.nodes import Apply, Expr, Lookup, walk
from gnomon.lowering import tile
from gnomon.lowering.build import Block
from gnomon.lowering.core import Attention, PairDot, Stream
from gnomon.lowering.passes.fold_log2e import LOG2E, fold_log2e
from gnomon.lowering.schedules.decays import decays_of
from gnomon.lowering.schedules.formula import PairTile
from gnomon.lowering.schedules.forward import BM, BN, MINUS_INFINITY, bounded, score_tile
from gnomon.lowering.schedules.frame import ZERO, Frame, Place, Side, scalar
from gnomon.lowering.schedules.gradients import Accumulated, adjoints, collect
from gnomon.lowering.schedules.masks import visible
from gnomon.lowering.schedules.ranges import Ranges, Stationary
from gnomon.lowering.tile import (
    Arange,
    Cast,
    Dot,
    Full,
    Kernel,
    Number,
    Reduce,
    Ref,
    Scatter,
    Store,
    Tensor,
    Type,
    type_of,
)

INFINITY = Number(float("inf"))
_UNBOUNDED = frozenset(("/", "**", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt"))


def backward_rows(attention: Attention, *, packed: bool = False) -> Kernel | None:
    """The kernel [name]_bwd_rows; None where no row stream and no constant is differentiable."""
    schedule = _Rows(attention, "row", packed=packed)
    return schedule.build() if schedule.sums else None


def backward_columns(attention: Attention, *, packed: bool = False) -> Kernel:
    """The kernel [name]_bwd_columns."""
    return _Columns(attention, "column", packed=packed).build()


class _Backward:
    """What both kernels share: weights, cotangents, and the sums of the adjoints."""

    fixed: Side
    """The side that stays."""
    v: tile.Expr
    """The values of the current key tile."""

    def __init__(self, attention: Attention, place: Place, *, packed: bool) -> None:
        self.a, self.place = attention, place
        self.frame = Frame(attention, place, packed=packed)
        self.b: Block = self.frame.block
        self.stationary, self.moving = self.b.order
        self.sums = collect(adjoints(attention), place)
        self.decays = decays_of(attention)
        self.whole = self.edge = attention.weight
        if attention.normaliser == "softmax":
            self.whole = fold_log2e(attention.weight)
            self.edge = self.whole if self.decays is None else fold_log2e(self.decays.weight)
        self.singular = any(
            isinstance(node, Apply) and node.fn in _UNBOUNDED
            for formula in (attention.weight, attention.denominator)
            if formula is not None
            for node in walk(formula)
        )
        self.do = Tensor("do", ("batch", "time_q", "head", "DV"), "io", "in")
        names = {"softmax": ["lse"], "weighted_sum": [], "ratio": ["den"]}[attention.normaliser]
        names += [] if attention.exponent is None else ["row_max"]
        self.stats = {name: self.frame.statistic(name, "in") for name in names}
        self.delta = self.frame.statistic("delta", "in")

    def inputs(self) -> list[Tensor]:
        delta = [] if self.a.normaliser == "weighted_sum" else [self.delta]
        return [self.do, *self.stats.values(), *delta]

    # -- row statistics

    def load_rows(self, row: Side) -> dict[str, tile.Expr]:
        """Everything of a query tile that the cotangents need."""
        b, frame = self.b, self.frame
        known: dict[str, tile.Expr] = {
            "do": b.let("b_do", row.matrix(self.do, frame.h, "DV", "BV"), "[BM, BV]")
        }
        if self.a.normaliser == "softmax":
            lse: tile.Expr = b.let("b_lse", row.vector(self.stats["lse"], frame.h, float("inf")))
            # a row without keys has lse -inf: +inf gives every pair weight 0 instead
            lse = b.op("where", b.op("==", lse, MINUS_INFINITY), INFINITY, lse)
            known["whole"] = self._shift(row, "b_shift", lse, self.a.row_term)
            known["edge"] = known["whole"]
            if self.decays is not None:
                known["edge"] = self._shift(row, "b_shift_edge", lse, self.decays.rest)
        elif self.a.normaliser == "ratio":
            known |= self._ratio_rows(row)
        if self.a.normaliser != "weighted_sum":
            known["delta"] = b.let("b_delta", row.vector(self.delta, frame.h))
        return known

    def _shift(self, row: Side, name: str, lse: tile.Expr, left_out: Expr | None) -> tile.Expr:
        """The log-sum-exp as the logits of a tile are measured, in units of log 2."""
        if left_out is not None:
            lines = PairTile(self.frame, row, row, {})
            lse = self.b.op("-", lse, lines.value(left_out))
        return self.b.let(name, self.b.op("*", lse, LOG2E))

    def _ratio_rows(self, row: Side) -> dict[str, tile.Expr]:
        b, frame = self.b, self.frame
        known: dict[str, tile.Expr] = {}
        total = b.let("b_d", row.vector(self.stats["den"], frame.h))
        if self.a.exponent is not None:
            known["row_max"] = b.let("b_m", row.vector(self.stats["row_max"], frame.h))
        whole = b.let("b_whole", bounded(b, total, self.a, known.get("row_max")))
        empty = b.op("==", whole, 0.0)
        known["inverse"] = b.let("b_inverse", b.op("where", empty, 0.0, b.op("/", 1.0, whole)))
        sign = b.op("where", b.op("<", total, 0.0), -1.0, 1.0)
        free = b.op("where", b.op("<", b.op("abs", total), whole), 0.0, sign)
        known["slope"] = b.let("b_slope_d", b.op("*", known["inverse"], free))
        return known

    # -- one pair of tiles

    def weights(self, pair: PairTile, known: dict[str, tile.Expr], *, masked: bool) -> tile.Expr:
        """The weight of each pair, 0 where it is hidden; sets the cotangents of the formulas."""
        b = self.b
        condition = visible(self.a.mask, pair, rows_end=True) if masked else None
        shown = None if condition is None else b.let("b_visible", condition)
        # hidden pairs have cotangent 0; a derivative that can be infinite there must not meet it
        self.shown = shown if self.singular else None
        formula = self.edge if masked else self.whole
        pair.announce([formula, *(a for s in self.sums.values() for _, a in s.leaves)])
        product = self._meet(known["do"], self.v)
        if self.a.normaliser == "softmax":
            logit = score_tile(b, pair.value(formula), pair.shape)
            shift = known["edge" if masked else "whole"]
            p = self._hide(b.op("exp2", b.op("-", logit, shift)), shown)
            weight = b.let("b_p", p)
            g = b.let("b_g", product)
            ds = b.op("*", weight, b.op("-", g, known["delta"]))
            pair.given["ds"] = b.let("b_ds", self._hide(ds, shown))
            return weight
        value = self._hide(score_tile(b, pair.value(self.a.weight), pair.shape), shown)
        if self.a.normaliser == "weighted_sum":
            weight = b.let("b_w", value)
            pair.given["ds"] = b.let("b_ds", self._hide(b.let("b_g", product), shown))
            return weight
        weight = b.let("b_w", b.op("*", value, known["inverse"]))
        g = b.let("b_g", product)
        pair.given["dn"] = b.let("b_dn", self._hide(b.op("*", g, known["inverse"]), shown))
        of_sum = b.op("neg", b.op("*", known["delta"], known["slope"]))
        pair.given["dd"] = b.let("b_dd", self._hide(score_tile(b, of_sum, pair.shape), shown))
        return weight

    def _hide(self, x: tile.Expr, shown: tile.Expr | None) -> tile.Expr:
        return x if shown is None else self.b.op("where", shown, x, 0.0)

    def _meet(self, rows: tile.Expr, columns: tile.Expr) -> Dot:
        """The product of a row matrix with a column matrix, stationary axis first."""
        return Dot(rows, columns) if self.place == "row" else Dot(columns, rows)

    def collect(self, pair: PairTile) -> None:
        """Add this tile's adjoints to their sums."""
        for each in self.sums.values():
            for leaf, adjoint in each.leaves:
                if each.kind != "channels":
                    self._add(pair, each, leaf, adjoint)
        channels = [each for each in self.sums.values() if each.kind == "channels"]
        for axis in dict.fromkeys(self.frame.widths.axes(each.stream)[0] for each in channels):
            same = [s for s in channels if self.frame.widths.axes(s.stream)[0] == axis]
            self._add_channels(pair, axis, same)

    def _adjoint(self, pair: PairTile, adjoint: Expr, name: str) -> tile.Expr:
        value = score_tile(self.b, pair.value(adjoint), pair.shape)
        value = self._hide(value, self.shown)
        return value if isinstance(value, Ref) else pair._let(name, value)

    def _add(self, pair: PairTile, each: Accumulated, leaf: Expr, adjoint: Expr) -> None:
        b, stream = self.b, each.stream
        value = self._adjoint(pair, adjoint, f"b_d_{stream.name}_pair")
        if each.kind == "matrix":
            assert isinstance(leaf, PairDot)
            assert each.carrier is not None
            other = (
                pair.column.load(leaf.column) if self.place == "row" else pair.row.load(leaf.row)
            )
            b.set(each.carrier, b.op("+", each.carrier, Dot(Cast(value, "io"), other)))
        elif each.kind in ("lines", "total"):
            assert each.carrier is not None
            b.set(each.carrier, b.op("+", each.carrier, Reduce("sum", value, self.moving)))
        else:
            assert isinstance(leaf, Lookup)
            self._scatter(pair, each, leaf, value)

    def _scatter(self, pair: PairTile, each: Accumulated, leaf: Lookup, value: tile.Expr) -> None:
        stream, b = each.stream, self.b
        entries = pair.index(stream, leaf.index)
        sizes = [scalar(name) for name in self.frame.widths.axes(stream)]
        flat = entries[0]
        for entry, size in zip(entries[1:], sizes[1:], strict=True):
            flat = b.op("+", b.op("*", flat, size), entry)
        flat = pair._let(f"e_d_{stream.name}", _tile_of_entries(b, flat, pair.shape))
        tensor = self.frame.gradient(stream)
        index, limits = self._owner(stream)
        b.add(Scatter(tensor, index, flat, value, (*limits, None)))

    def _owner(self, stream: Stream) -> tuple[tuple[tile.Expr, ...], tuple[tile.Expr | None, ...]]:
        """Where this program's part of a stream's gradient stands."""
        if stream.place == "constant":
            return (self.frame.sequence, scalar("i_m"), self.frame.h), (None, None, None)
        side = self.fixed
        head = self.frame.h if stream.place == "row" or stream.heads == "Head" else self.frame.kv
        return (self.frame.batch, side.times, head), (None, side.limit, None)

    def _add_channels(self, pair: PairTile, axis: str, sums: list[Accumulated]) -> None:
        """Sum vectors of the pair over the tile, channel by channel."""
        b = self.b
        for each in sums:
            for _, adjoint in each.leaves:
                pair.settle(adjoint)
        with pair.loop_over_channels(scalar(axis)) as channel:
            here = b.op("==", Arange(f"B{axis}"), channel)
            for each in sums:
                assert each.carrier is not None
                (adjoint,) = [adjoint for _, adjoint in each.leaves]
                value = self._hide(score_tile(b, pair.value(adjoint), pair.shape), self.shown)
                name = each.stream.name
                lines = b.let(f"b_lines_{name}", Reduce("sum", value, self.moving))
                total = b.let(f"sum_{name}", Reduce("sum", lines, self.stationary))
                added = b.op("where", here, total, 0.0)
                b.set(each.carrier, b.op("+", each.carrier, added))

    # -- carriers and results

    def carry(self, sums: list[Accumulated]) -> None:
        for each in sums:
            name, stream = f"b_d_{each.stream.name}", each.stream
            if each.kind == "matrix":
                (width,) = self.frame.widths.axes(stream)
                shape: tuple[str, ...] = (self.stationary, f"B{width}")
            elif each.kind == "channels":
                shape = (f"B{self.frame.widths.axes(stream)[0]}",)
            else:
                shape = (self.stationary,)
            if each.kind != "entries":
                each.carrier = self.b.let(name, Full(0.0, Type("f32", shape)))

    def store(self, sums: list[Accumulated]) -> None:
        b = self.b
        for each in sums:
            if each.carrier is None:
                continue
            tensor = self.frame.gradient(each.stream)
            index, limits = self._owner(each.stream)
            value: tile.Expr = each.carrier
            own = self.frame.widths.axes(each.stream)
            if each.kind == "total":
                value = Reduce("sum", value, self.stationary)
            if each.factor is not None:
                value = b.op(
                    "*", value, PairTile(self.frame, self.fixed, self.fixed, {}).value(each.factor)
                )
            if own:
                index, limits = (*index, Arange(f"B{own[0]}")), (*limits, scalar(own[0]))
            b.add(Store(tensor, index, value, limits))

    def outputs(self) -> list[Tensor]:
        return [self.frame.gradient(each.stream) for each in self.sums.values()]


def _tile_of_entries(b: Block, x: tile.Expr, shape: tuple[str, ...]) -> tile.Expr:
    if type_of(x).shape == shape:
        return x
    return b.op("+", Full(0, Type("i32", shape)), x)


class _Rows(_Backward):
    def build(self) -> Kernel:
        b, frame = self.b, self.frame
        frame.open()
        first = b.let("i_r", b.op("*", scalar("i_m"), BM))
        if frame.packed:
            b.add(tile.ExitIf(b.op(">=", first, scalar("T_q"))))
        self.fixed = row = frame.side("row", first)
        b.blank()
        frame.settle_constants()
        frame.settle(row)
        known = self.load_rows(row)
        self.carry(list(self.sums.values()))
        b.blank()
        self.stream_keys(first, row, known)
        b.blank()
        self.store(list(self.sums.values()))
        doc = f"{self.a.name}: gradients of queries and of what belongs to them"
        return frame.kernel("bwd_rows", doc, [*self.inputs(), *self.outputs()], "NM")

    def stream_keys(self, first: Ref, row: Side, known: dict[str, tile.Expr]) -> None:
        b = self.b
        begin = b.let("p_first", b.op("+", first, self.frame.shift))
        end = b.op("+", begin, BM)
        ranges = Ranges(b, Stationary("row", begin, end, scalar("T_k"), ZERO), BN)
        # a ragged tile of queries has no interior: its missing rows must not count in sums
        whole = b.op("<=", b.op("+", first, BM), scalar("T_q"))
        for loop in ranges.loops(self.a.mask, interior=whole):
            b.remark(loop.note("row"))
            with b.loop("i_c", loop.start, loop.stop, BN) as i_c, self.frame.scope(row):
                column = self.frame.moving("column", i_c, loop)
                pair = PairTile(self.frame, row, column, dict(known), exact=loop.masked)
                self.v = b.let(
                    "b_v", column.matrix(self.frame.v, self.frame.kv, "DV", "BV"), "[BN, BV]"
                )
                self.weights(pair, known, masked=loop.masked)
                self.collect(pair)


class _Columns(_Backward):
    def build(self) -> Kernel:
        b, frame = self.b, self.frame
        frame.open()
        first = b.let("i_c", b.op("*", scalar("i_n"), BN))
        if frame.packed:
            b.add(tile.ExitIf(b.op(">=", first, scalar("T_k"))))
        self.fixed = column = frame.side("column", first)
        b.blank()
        for stream in self.a.streams:
            if stream.place == "column" and stream.heads != "Head":
                self.settle_column(column, stream)
        self.v = b.let("b_v", column.matrix(frame.v, frame.kv, "DV", "BV"), "[BN, BV]")
        self.dv = b.let("b_dv", Full(0.0, Type("f32", ("BN", "BV"))))
        shared = [s for s in self.sums.values() if s.stream.heads != "Head"]
        self.carry(shared)
        begin = b.op("*", frame.kv, scalar("G"))
        b.blank()
        b.remark("every query head of the group adds to the gradients of its key head")
        end = b.op("+", begin, scalar("G"))
        with b.loop("i_h", begin, end, 1), frame.scope(column):
            self.head(first, column)
        b.blank()
        dv = Tensor("dv", ("batch", "time_k", "kv_head", "DV"), "f32", "out")
        at = column.matrix(dv, frame.kv, "DV", "BV")
        b.add(Store(dv, at.index, self.dv, at.limits))
        self.store(shared)
        doc = f"{self.a.name}: gradients of keys, values and of what belongs to them"
        return frame.kernel("bwd_columns", doc, [*self.inputs(), dv, *self.outputs()], "NN")

    def settle_column(self, column: Side, stream: Stream) -> None:
        """Load a column stream before the loop over queries; prefix sums wait for their anchor."""
        if stream.role in ("dot", "scalar"):
            column.load(stream)

    def head(self, first: Ref, column: Side) -> None:
        """One query head of the group: its own column streams are carried here."""
        own = [s for s in self.sums.values() if s.stream.heads == "Head"]
        self.frame.settle_constants()
        for stream in self.a.streams:
            if stream.place == "column" and stream.heads == "Head":
                self.settle_column(column, stream)
        self.carry(own)
        self.stream_queries(first, column)
        self.store(own)

    def stream_queries(self, first: Ref, column: Side) -> None:
        b, shift = self.b, self.frame.shift
        end = b.op("+", first, BN)
        ranges = Ranges(b, Stationary("column", first, end, scalar("T_q"), shift), BM)
        whole = b.op("<=", b.op("+", first, BN), scalar("T_k"))
        for loop in ranges.loops(self.a.mask, interior=whole):
            b.remark(loop.note("key"))
            with b.loop("i_r", loop.start, loop.stop, BM) as i_r, self.frame.scope(column):
                self.step(self.frame.moving("row", i_r, loop), column, masked=loop.masked)

    def step(self, row: Side, column: Side, *, masked: bool) -> None:
        b = self.b
        known = self.load_rows(row)
        pair = PairTile(self.frame, row, column, dict(known), anchor=row, exact=masked)
        weight = self.weights(pair, known, masked=masked)
        b.set(self.dv, b.op("+", self.dv, Dot(Cast(weight, "io"), known["do"])))
        self.collect(pair)

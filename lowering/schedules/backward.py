"""What both backward kernels share: weights, cotangents, and the sums of the adjoints.

With g_ij = do_i . v_j and delta_i = do_i . o_i (minus the gradient of the log-sum-exp) both
recompute the weights and

    softmax        p_ij = exp(s_ij - lse_i);   ds_ij = p_ij (g_ij - delta_i)
                   (lse in units of log 2; +inf in a row without keys, so that its p_ij are 0)
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
from gnomon.lowering.core import Anchored, Attention, PairDot, Read, Stream, TransportDot
from gnomon.lowering.passes.fold_log2e import LOG2E, fold_log2e
from gnomon.lowering.schedules.decays import decays_of
from gnomon.lowering.schedules.formula import PairTile
from gnomon.lowering.schedules.forward import bounded, score_tile
from gnomon.lowering.schedules.frame import ZERO, Frame, Place, Side, scalar
from gnomon.lowering.schedules.gradients import Accumulated, adjoints, collect
from gnomon.lowering.schedules.masks import visible
from gnomon.lowering.schedules.near import near_of
from gnomon.lowering.tile import (
    Arange,
    Cast,
    Dot,
    Full,
    Reduce,
    Ref,
    Scatter,
    Store,
    Tensor,
    Type,
    type_of,
)

_UNBOUNDED = frozenset(("/", "**", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt"))


def may_be_undefined(adjoint: Expr) -> bool:
    """Whether 0 times this derivative may be no number.

    Anything may stand in rows that only hidden pairs have, and logarithms meet distances below 0.
    """
    for node in walk(adjoint):
        match node:
            case Apply(fn, _) if fn in _UNBOUNDED:
                return True
            case PairDot() | TransportDot() | Lookup():
                return True
            case Read(stream) | Anchored(stream, _) if stream.place in ("row", "column"):
                return True
    return False


class Backward:
    """A backward kernel under construction; `build` of its two children finishes it."""

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
        self.near = near_of(attention, self.decays, packed=packed)
        self.whole = self.edge = attention.weight
        if attention.normaliser == "softmax":
            self.whole = fold_log2e(attention.weight)
            self.edge = self.whole if self.decays is None else fold_log2e(self.decays.weight)
        self.do = Tensor("do", ("batch", "time_q", "head", "DV"), "io", "in")
        names = {"softmax": ["lse_log2"], "weighted_sum": [], "ratio": ["den"]}[
            attention.normaliser
        ]
        names += [] if attention.exponent is None else ["row_max"]
        self.stats = {name: self.frame.statistic(name, "in") for name in names}
        self.delta = self.frame.statistic("delta", "in")

    def inputs(self) -> list[Tensor]:
        """What the kernel reads besides the streams and v."""
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
            at = row.vector(self.stats["lse_log2"], frame.h, float("inf"))
            lse: tile.Expr = b.let("b_lse", at)
            known["whole"] = self._shift(row, "b_shift", lse, self.a.row_term)
            known["edge"] = known["whole"]
            if self.decays is not None:
                known["edge"] = self._shift(row, "b_shift_edge", lse, self.decays.rest)
            if self.reads_near_sums():
                known["whole"] = self._near_shift(row)
        elif self.a.normaliser == "ratio":
            known |= self._ratio_rows(row)
        if self.a.normaliser != "weighted_sum":
            known["delta"] = b.let("b_delta", row.vector(self.delta, frame.h))
        return known

    def _shift(self, row: Side, name: str, lse: tile.Expr, left_out: Expr | None) -> tile.Expr:
        """The log-sum-exp as the logits of a tile are measured, in units of log 2."""
        if left_out is None:
            return lse
        lines = PairTile(self.frame, row, row, {})
        return self.b.let(name, self.b.op("-", lse, self.b.op("*", lines.value(left_out), LOG2E)))

    def reads_near_sums(self) -> bool:
        """Whether whole tiles of queries read their prefix sums with the log-sum-exp."""
        if self.a.has_transport():  # queries of a sibling may begin between multiples of a tile
            return False
        return self.near is not None and self.near.decay is not None and self.place == "column"

    def _near_shift(self, row: Side) -> tile.Expr:
        """The same of a near tile of queries: one number of a row has its prefix sum too."""
        assert self.decays is not None
        assert isinstance(self.decays.moved, Anchored)
        stream = self.decays.moved.stream
        near = self.frame.sum_by_tile(stream, "first", self.stats["lse_log2"])
        lse = self.b.let("b_lse_near", row.vector(near, self.frame.h))
        return self._shift(row, "b_shift_near", lse, self.decays.rest)

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
        # hidden pairs have cotangent 0; a derivative that is no number there must not meet it
        self.shown = shown
        formula, shift = self._logit(pair, known, masked=masked)
        pair.announce([formula, *(a for s in self.sums.values() for _, a in s.leaves)])
        product = self._meet(known["do"], self.v)
        if self.a.normaliser == "softmax":
            assert shift is not None
            logit = score_tile(b, pair.value(formula), pair.shape)
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

    def _logit(
        self, pair: PairTile, known: dict[str, tile.Expr], *, masked: bool
    ) -> tuple[Expr, tile.Expr | None]:
        """The logit of a tile, and the log-sum-exp as it is measured there."""
        if masked or self.a.normaliser != "softmax":
            return self.edge, known.get("edge")
        if self.near is None or (self.near.decay is not None and self.place == "column"):
            return self.whole, known["whole"]
        lift = self.near.prepare(pair)
        return self.near.logit(), self.b.let("b_shift_near", self.b.op("-", known["whole"], lift))

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
        value = self._hide(value, self.shown if may_be_undefined(adjoint) else None)
        return value if isinstance(value, Ref) else pair.let(name, value)

    def _add(self, pair: PairTile, each: Accumulated, leaf: Expr, adjoint: Expr) -> None:
        b, stream = self.b, each.stream
        if isinstance(leaf, TransportDot) and (each.kind == "tile") != (self.frame.level is None):
            return  # versions meet between leaves, `near` is what is inside of one
        value = self._adjoint(pair, adjoint, f"b_d_{stream.name}_pair")
        if each.kind == "tile":
            tensor = self.frame.gradient(stream)
            index, limits = pair.near(tensor)
            b.add(Store(tensor, index, value, limits))
        elif each.kind == "matrix":
            assert isinstance(leaf, PairDot | TransportDot)
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
        flat = pair.let(f"e_d_{stream.name}", _tile_of_entries(b, flat, pair.shape))
        tensor = self.frame.gradient(stream)
        index, limits = self._owner(stream)
        b.add(Scatter(tensor, index, flat, value, (*limits, None)))

    def _owner(self, stream: Stream) -> tuple[tuple[tile.Expr, ...], tuple[tile.Expr | None, ...]]:
        """Where this program's part of a stream's gradient stands."""
        if stream.place == "constant":
            return (self.frame.sequence, scalar("i_m"), self.frame.h), (None, None, None)
        side = self.fixed
        head = self.frame.h if stream.place == "row" or stream.heads == "Head" else self.frame.kv
        if stream.role == "version":
            return (self.frame.batch, side.versions(), head), (None, side.end_of_versions(), None)
        if self.frame.is_in_parts(stream):
            part = ZERO if self.frame.level is None else self.frame.level.part
            return (part, self.frame.batch, side.times, head), (None, None, side.limit, None)
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
        """Start the sums that are carried over the loop that follows."""
        for each in sums:
            name, stream = f"b_d_{each.stream.name}", each.stream
            if each.kind in ("entries", "tile"):
                continue
            if each.kind == "matrix":
                (width,) = self.frame.widths.axes(stream)
                shape: tuple[str, ...] = (self.stationary, f"B{width}")
            elif each.kind == "channels":
                shape = (f"B{self.frame.widths.axes(stream)[0]}",)
            else:
                shape = (self.stationary,)
            each.carrier = self.b.let(name, Full(0.0, Type("f32", shape)))

    def store(self, sums: list[Accumulated]) -> None:
        """Write the sums where they belong; scattered ones are there already."""
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

    def of_levels(self) -> list[Accumulated]:
        """The gradients of versions: each row is of one level, and carried over it alone."""
        return [each for each in self.sums.values() if each.stream.role == "version"]

    def of_tile(self) -> list[Accumulated]:
        """The gradients that are carried over all that the stationary tile meets."""
        return [each for each in self.sums.values() if each.stream.role != "version"]

    def outputs(self) -> list[Tensor]:
        """The gradients that the kernel writes."""
        return [self.frame.gradient(each.stream) for each in self.sums.values()]


def _tile_of_entries(b: Block, x: tile.Expr, shape: tuple[str, ...]) -> tile.Expr:
    if type_of(x).shape == shape:
        return x
    return b.op("+", Full(0, Type("i32", shape)), x)

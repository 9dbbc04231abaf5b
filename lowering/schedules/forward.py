"""The forward schedule: a tile of queries stays, keys stream by, the row statistics are carried.

    softmax        m' = max(m, max_j s_ij);  c = e^(m - m');  p_ij = e^(s_ij - m')
                   l = c l + sum_j p_ij;  o = c o + sum_j p_ij v_j
    weighted_sum   o = o + sum_j w_ij v_j
    ratio          o = c o + sum_j n_ij v_j;  d = c d + sum_j d_ij
                   (c = 1 where no exponent is carried)

Everything of the softmax is in units of log 2. The stored log-sum-exp is natural and holds the row
term.
"""

import math
from dataclasses import replace

from gnomon.lowering import tile
from gnomon.lowering.build import Block
from gnomon.lowering.core import Attention, Read
from gnomon.lowering.passes.fold_log2e import LOG2E, fold_log2e
from gnomon.lowering.schedules.decays import decays_of
from gnomon.lowering.schedules.formula import PairTile
from gnomon.lowering.schedules.frame import Frame, Side, scalar
from gnomon.lowering.schedules.masks import visible
from gnomon.lowering.schedules.near import near_of
from gnomon.lowering.schedules.ranges import Loop, Ranges, Stationary
from gnomon.lowering.schedules.skips import skip_tiles
from gnomon.lowering.schedules.tree import EVERYTHING, Tree, beyond, far_loops, near_loops
from gnomon.lowering.tile import Cast, Dot, Full, Kernel, Number, Reduce, Ref, Store, Tensor, Type

LN2 = math.log(2.0)
MINUS_INFINITY = Number(float("-inf"))
BM, BN = Ref("BM", Type("i32")), Ref("BN", Type("i32"))


def forward(attention: Attention, *, packed: bool = False) -> Kernel:
    """The kernel [name]_fwd: outputs o and the row statistics of the normaliser."""
    return _Forward(attention, packed=packed).build()


class _Forward:
    def __init__(self, attention: Attention, *, packed: bool) -> None:
        self.a = attention
        self.frame = Frame(attention, "row", packed=packed)
        self.b: Block = self.frame.block
        self.decays = decays_of(attention)
        self.left_out = attention.row_term
        """The row terms that the row statistics do not hold now."""
        self.holds_decays = False
        """Whether the logits of whole tiles hold the decays, as those of edge tiles do."""
        self.near = near_of(attention, self.decays, packed=packed)

    def build(self) -> Kernel:
        b, frame = self.b, self.frame
        frame.open()
        first = b.let("i_r", b.op("*", long_rows_first(b), BM), "long rows first")
        if frame.packed:
            b.add(tile.ExitIf(b.op(">=", first, scalar("T_q"))))
        row = frame.side("row", first)
        self.row = row
        b.blank()
        frame.settle_constants()
        frame.settle(row)
        self.carry()
        b.blank()
        self.stream_keys(first)
        b.blank()
        extra = self.finish()
        measured = self.a.normaliser == "softmax" or self.a.exponent is not None
        return frame.kernel("fwd", self.a.name, extra, "NM", fuses=not measured)

    # -- carried state

    def carry(self) -> None:
        b, rows = self.b, ("BM",)
        if self.a.normaliser == "softmax":
            top = Full(float("-inf"), Type("f32", rows))
            self.top = b.let("b_m", top, "running maximum and sum")
            self.total = b.let("b_l", Full(0.0, Type("f32", rows)))
        elif self.a.normaliser == "ratio":
            if self.a.exponent is not None:
                self.top = b.let("b_m", Full(0.0, Type("f32", rows)), "running maximum and sum")
            self.total = b.let("b_d", Full(0.0, Type("f32", rows)))
        self.acc = b.let("b_o", Full(0.0, Type("f32", ("BM", "BV"))))

    def _lines(self) -> PairTile:
        """Row values outside the loop over keys."""
        return PairTile(self.frame, self.row, self.row, {})

    # -- the loop over keys

    def stream_keys(self, first: Ref) -> None:
        b = self.b
        begin = b.let("p_first", b.op("+", first, self.frame.shift)) if not self._alone() else first
        end = b.op("+", begin, BM)
        tile_rows = Stationary("row", begin, end, scalar("T_k"), Number(0, "i32"))
        ranges = Ranges(b, tile_rows, BN)
        if self.a.has_transport():
            self.climb(first, ranges)
            return
        skip_tiles(ranges, self.frame, self.row)
        loops = list(ranges.loops(self.a.mask))
        self.begin([loop.masked for loop in loops])
        for loop in loops:
            self.measure(masked=loop.masked)
            self.walk(loop)

    def climb(self, first: Ref, ranges: Ranges) -> None:
        """The sibling of each level, the farthest first, then the own leaf: the edge tiles."""
        tree = Tree(self.frame, "row", first)
        self.begin([beyond(self.a.mask) != EVERYTHING, True])
        with tree.levels(self.row) as keys:
            for stream in self.a.streams:
                if stream.role == "version" and stream.place == "row":
                    self.row.load(stream)
            for loop in far_loops(ranges, self.a.mask, keys):
                self.walk(loop)
        self.b.blank()
        self.measure(masked=True)
        for loop in near_loops(ranges, self.a.mask, tree.leaf()):
            self.walk(loop)

    def walk(self, loop: Loop) -> None:
        """Every tile of keys of a loop."""
        b = self.b
        b.remark(loop.note("row"))
        with loop.walk(b, "i_c", BN) as i_c, self.frame.scope(self.row):
            self.step(self.frame.moving("column", i_c, loop), masked=loop.masked)

    def begin(self, masked: list[bool]) -> None:
        """Whether whole tiles hold the decays too: where an edge may have had the nearest keys."""
        comes_first = masked[0] or masked != sorted(masked)
        self.holds_decays = self.decays is not None and comes_first
        if self.holds_decays and self.decays is not None:
            self.left_out = self.decays.rest

    def measure(self, *, masked: bool) -> None:
        """Measure the running maximum as the next loop does: edge tiles hold the decays."""
        if self.decays is None or self.holds_decays:
            return
        left_out = self.decays.rest if masked else self.a.row_term
        if left_out is self.left_out:
            return
        moved = self.b.op("*", self._lines().value(self.decays.moved), LOG2E)
        self.b.set(self.top, self.b.op("+" if masked else "-", self.top, moved))
        self.left_out = left_out

    def _alone(self) -> bool:
        return self.a.mask.rule == "everything"

    def step(self, column: Side, *, masked: bool) -> None:
        row_max = {"row_max": self.top} if self.a.exponent is not None else {}
        pair = PairTile(self.frame, self.row, column, row_max, exact=masked)
        if self.a.normaliser == "softmax":
            self.softmax_step(pair, masked=masked)
        elif self.a.normaliser == "weighted_sum":
            weight = self._shown(pair, pair.value(self.a.weight), masked=masked, hidden=Number(0.0))
            self.accumulate(pair, weight, None)
        else:
            self.ratio_step(pair, masked=masked)

    def _shown(self, pair: PairTile, x: tile.Expr, *, masked: bool, hidden: Number) -> tile.Expr:
        condition = visible(self.a.mask, pair, rows_end=False) if masked else None
        return x if condition is None else self.b.op("where", condition, x, hidden)

    def softmax_step(self, pair: PairTile, *, masked: bool) -> None:
        b = self.b
        holds_decays = self.decays is not None and (masked or self.holds_decays)
        logit = fold_log2e(self.decays.weight if self.decays and holds_decays else self.a.weight)
        lift = None
        if self.near is not None and not (masked or holds_decays):
            logit, lift = self.near.logit(), self.near.prepare(pair)
        pair.announce([logit])
        shown = self._shown(pair, pair.value(logit), masked=masked, hidden=MINUS_INFINITY)
        score = b.let("b_logit", score_tile(b, shown, pair.shape))
        highest: tile.Expr = Reduce("max", score, "BN")
        highest = highest if lift is None else b.op("+", highest, lift)
        top = b.let("b_m_new", b.op("maximum", self.top, highest))
        # a row that has seen no key yet has maximum -inf: measure it from 0
        base = b.let("b_base", b.op("where", b.op("==", top, MINUS_INFINITY), 0.0, top))
        lifted = base if lift is None else b.op("-", base, lift)
        p = b.let("b_p", b.op("exp2", b.op("-", score, lifted)))
        shrink = b.let("b_c", b.op("exp2", b.op("-", self.top, base)))
        b.set(self.total, b.op("+", b.op("*", self.total, shrink), Reduce("sum", p, "BN")))
        b.set(self.top, top)
        self.accumulate(pair, p, shrink)

    def ratio_step(self, pair: PairTile, *, masked: bool) -> None:
        b, shrink = self.b, None
        assert self.a.denominator is not None
        condition = visible(self.a.mask, pair, rows_end=False) if masked else None
        shown = None if condition is None else b.let("b_visible", condition)
        if self.a.exponent is not None:
            x = pair.value(self.a.exponent)
            if shown is not None:
                x = b.op("where", shown, x, MINUS_INFINITY)
            exponent = b.let("b_exponent", score_tile(b, x, pair.shape))
            top = b.let("b_m_new", b.op("maximum", self.top, Reduce("max", exponent, "BN")))
            shrink = b.let("b_c", b.op("exp", b.op("-", self.top, top)))
            b.set(self.top, top)
        pair.announce([self.a.weight, self.a.denominator])
        weight = pair.value(self.a.weight)
        divisor = pair.value(self.a.denominator)
        if shown is not None:
            weight = b.op("where", shown, weight, 0.0)
            divisor = b.op("where", shown, divisor, 0.0)
        kept = self.total if shrink is None else b.op("*", self.total, shrink)
        divisor = score_tile(b, divisor, pair.shape)
        b.set(self.total, b.op("+", kept, Reduce("sum", divisor, "BN")))
        self.accumulate(pair, weight, shrink)

    def accumulate(self, pair: PairTile, weight: tile.Expr, shrink: tile.Expr | None) -> None:
        b = self.b
        v = b.let("b_v", pair.column.matrix(self.frame.v, self.frame.kv, "DV", "BV"), "[BN, BV]")
        weight = score_tile(b, weight, pair.shape)
        if not isinstance(weight, Ref):
            weight = b.let("b_w", weight)
        kept: tile.Expr = self.acc if shrink is None else b.op("*", self.acc, shrink)
        b.set(self.acc, b.op("+", kept, Dot(Cast(weight, "io"), v)))

    # -- results

    def finish(self) -> list[Tensor]:
        b, frame, row = self.b, self.frame, self.row
        o = Tensor("o", ("batch", "time_q", "head", "DV"), "io", "out")
        outputs = [
            o,
            *([replace(o, name="o_exact", dtype="f32")] if self.a.needs_exact_o() else []),
        ]
        result: tile.Expr = self.acc
        stats: list[tuple[Tensor, tile.Expr]] = []
        if self.a.normaliser == "softmax":
            result, lse = self._normalised()
            stats.append((frame.statistic("lse", "out"), lse))
        elif self.a.normaliser == "ratio":
            stats.append((frame.statistic("den", "out"), self.total))
            if self.a.exponent is not None:
                stats.append((frame.statistic("row_max", "out"), self.top))
            whole = b.let(
                "b_whole", bounded(b, self.total, self.a, self.top if stats[1:] else None)
            )
            empty = b.op("==", whole, 0.0)
            result = b.op("/", self.acc, b.op("where", empty, 1.0, whole))
        if outputs[1:]:
            result = b.let("b_o_exact", result)
        index = row.matrix(o, frame.h, "DV", "BV")
        for tensor in outputs:
            b.add(Store(tensor, index.index, result, index.limits))
        for tensor, value in stats:
            at = row.vector(tensor, frame.h)
            b.add(Store(tensor, at.index, value, at.limits))
        return [*outputs, *(tensor for tensor, _ in stats)]

    def _normalised(self) -> tuple[tile.Expr, tile.Expr]:
        """The output and the log-sum-exp of a softmax; a row without keys has 0 and -inf.

        A sink joins them here, where it costs a row one exponential:
        o = o' / (1 + e^(sink - lse')),  lse = log(e^lse' + e^sink).
        """
        b = self.b
        empty = b.op("==", self.total, 0.0)
        whole = b.op("where", empty, 1.0, self.total)
        result = b.op("/", self.acc, b.let("b_whole", whole, "a row without keys gives 0"))
        lse = b.op("*", b.op("+", self.top, b.op("log2", self.total)), LN2)
        if self.left_out is not None:
            lse = b.op("+", lse, self._lines().value(self.left_out))
        if self.a.sink is not None:
            sink = self._lines().value(Read(self.a.sink))
            keys = b.let("b_lse", lse)
            apart = b.let("b_apart", b.op("-", sink, keys))
            share = b.op("/", 1.0, b.op("+", 1.0, b.op("exp", apart)))
            share = b.op("where", empty, 0.0, share)  # whatever the sink of such a row is
            result = b.op("*", result, b.let("b_share", share, "what the sink leaves to the keys"))
            fewer = b.op("exp", b.op("neg", b.op("abs", apart)))
            lse = b.op("+", b.op("maximum", keys, sink), b.op("log1p", fewer))
        return result, b.op("where", empty, MINUS_INFINITY, lse)


def bounded(b: Block, total: tile.Expr, a: Attention, row_max: tile.Expr | None) -> tile.Expr:
    """max(|sum d|, at_least), in the units of the carried sum."""
    size = b.op("abs", total)
    if a.at_least == 0:
        return size
    bound: tile.Expr = Number(float(a.at_least))
    if row_max is not None:
        bound = b.op("*", bound, b.op("exp", b.op("neg", row_max)))
    return b.op("maximum", size, bound)


def long_rows_first(b: Block) -> tile.Expr:
    """The block of queries of this program: under a causal mask the last rows see the most keys."""
    return b.op("-", b.op("-", scalar("NM"), 1), scalar("i_m"))


def score_tile(b: Block, x: tile.Expr, shape: tuple[str, ...]) -> tile.Expr:
    """A value of every pair: formulas without a dot may vary along one axis only."""
    if tile.type_of(x).shape == shape:
        return x
    return b.op("+", Full(0.0, Type("f32", shape)), x)

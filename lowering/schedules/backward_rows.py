"""The kernel [name]_bwd_rows: a tile of queries stays, the keys it sees stream by.

It forms the gradients of row streams, and the partial sums of constants: one program belongs to one
query head, so that what it sums over its tile is a partial sum of that head.
"""

from collections.abc import Iterator

from gnomon.lowering import tile
from gnomon.lowering.core import Attention
from gnomon.lowering.schedules.backward import Backward
from gnomon.lowering.schedules.formula import PairTile
from gnomon.lowering.schedules.forward import BM, BN
from gnomon.lowering.schedules.frame import ZERO, Side, scalar
from gnomon.lowering.schedules.ranges import Loop, Ranges, Stationary
from gnomon.lowering.schedules.skips import skip_tiles
from gnomon.lowering.schedules.tree import Tree, far_loops, near_loops
from gnomon.lowering.tile import Kernel, Ref


def backward_rows(attention: Attention, *, packed: bool = False) -> Kernel | None:
    """The kernel [name]_bwd_rows; None where no row stream and no constant is differentiable."""
    schedule = _Rows(attention, "row", packed=packed)
    return schedule.build() if schedule.sums else None


class _Rows(Backward):
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
        self.carry(self.of_tile())
        b.blank()
        self.stream_keys(first, row, known)
        b.blank()
        self.store(self.of_tile())
        doc = f"{self.a.name}: gradients of queries and of what belongs to them"
        return frame.kernel("bwd_rows", doc, [*self.inputs(), *self.outputs()], "NM")

    def stream_keys(self, first: Ref, row: Side, known: dict[str, tile.Expr]) -> None:
        b = self.b
        begin = b.let("p_first", b.op("+", first, self.frame.shift))
        end = b.op("+", begin, BM)
        ranges = Ranges(b, Stationary("row", begin, end, scalar("T_k"), ZERO), BN)
        if self.a.has_transport():
            self.climb(first, ranges, row, known)
            return
        skip_tiles(ranges, self.frame, row)
        # a ragged tile of queries has no interior: its missing rows must not count in sums
        whole = b.op("<=", b.op("+", first, BM), scalar("T_q"))
        self.walk(ranges.loops(self.a.mask, interior=whole), row, known)

    def climb(self, first: Ref, ranges: Ranges, row: Side, known: dict[str, tile.Expr]) -> None:
        """The sibling of each level, then the own leaf."""
        tree = Tree(self.frame, "row", first)
        # a missing row has weight 0; only what is summed over rows may mind what it is made of
        ends = any(s.kind in ("total", "channels", "entries") for s in self.sums.values())
        ends = ends or self.a.normaliser != "softmax"
        whole = self.b.op("<=", self.b.op("+", first, BM), scalar("T_q")) if ends else None
        with tree.levels(row) as keys:
            for each in self.of_levels():
                row.load(each.stream)
            self.carry(self.of_levels())
            self.walk(far_loops(ranges, self.a.mask, keys, interior=whole), row, known)
            self.store(self.of_levels())
        self.b.blank()
        self.walk(near_loops(ranges, self.a.mask, tree.leaf()), row, known)

    def walk(self, loops: Iterator[Loop], row: Side, known: dict[str, tile.Expr]) -> None:
        """Every tile of keys of these loops."""
        b = self.b
        for loop in loops:
            b.remark(loop.note("row"))
            with loop.walk(b, "i_c", BN) as i_c, self.frame.scope(row):
                column = self.frame.moving("column", i_c, loop)
                pair = PairTile(self.frame, row, column, dict(known), exact=loop.masked)
                self.v = b.let(
                    "b_v", column.matrix(self.frame.v, self.frame.kv, "DV", "BV"), "[BN, BV]"
                )
                self.weights(pair, known, masked=loop.masked)
                self.collect(pair)

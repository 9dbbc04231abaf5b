"""The kernel [name]_bwd_columns: a tile of keys stays, for every query head of its group.

It forms the gradients of v and of column streams; those of key heads are carried over the heads of
the group, those of query heads over the queries of one.
"""

from collections.abc import Iterator

from gnomon.lowering import tile
from gnomon.lowering.core import Attention, Stream
from gnomon.lowering.schedules.backward import Backward
from gnomon.lowering.schedules.formula import PairTile
from gnomon.lowering.schedules.forward import BM, BN
from gnomon.lowering.schedules.frame import SETTLED, Side, scalar
from gnomon.lowering.schedules.ranges import Interval, Loop, Ranges, Stationary
from gnomon.lowering.schedules.skips import skip_tiles
from gnomon.lowering.schedules.tree import Tree, far_loops, near_loops
from gnomon.lowering.tile import Cast, Dot, Expr, Full, Kernel, Ref, Store, Tensor, Type


def backward_columns(attention: Attention, *, packed: bool = False) -> Kernel:
    """The kernel [name]_bwd_columns."""
    return _Columns(attention, "column", packed=packed).build()


class _Columns(Backward):
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
        shared = [s for s in self.of_tile() if s.stream.heads != "Head"]
        self.carry(shared)
        b.blank()
        if self.a.has_transport():
            self.climb(first, column)
        else:
            self.heads(first, column, None)
        b.blank()
        dv = Tensor("dv", ("batch", "time_k", "kv_head", "DV"), "io", "out")
        at = column.matrix(dv, frame.kv, "DV", "BV")
        b.add(Store(dv, at.index, self.dv, at.limits))
        self.store(shared)
        doc = f"{self.a.name}: gradients of keys, values and of what belongs to them"
        return frame.kernel("bwd_columns", doc, [*self.inputs(), dv, *self.outputs()], "NN")

    def settle_column(self, column: Side, stream: Stream) -> None:
        """Load a column stream before the loop over queries."""
        if stream.role in SETTLED:
            column.load(stream)

    def climb(self, first: Ref, column: Side) -> None:
        """The sibling of each level, then the own leaf; in each of them every query head."""
        tree = Tree(self.frame, "column", first)
        shared = [s for s in self.of_levels() if s.stream.heads != "Head"]
        with tree.levels(column) as queries:
            column.versions()
            for each in shared:
                column.load(each.stream)
            self.carry(shared)
            self.heads(first, column, queries)
            self.store(shared)
        self.b.blank()
        self.heads(first, column, tree.leaf())

    def heads(self, first: Ref, column: Side, queries: Interval | None) -> None:
        """Every query head of the group; `queries`: only these."""
        b = self.b
        begin = b.op("*", self.frame.kv, scalar("G"))
        b.remark("every query head of the group adds to the gradients of its key head")
        end = b.op("+", begin, scalar("G"))
        with b.loop("i_h", begin, end, 1), self.frame.scope(column):
            self.head(first, column, queries)

    def head(self, first: Ref, column: Side, queries: Interval | None) -> None:
        """One query head of the group: its own column streams are carried here."""
        own = [s for s in self.of_tile() if s.stream.heads == "Head"]
        if self.frame.level is not None:
            own += [s for s in self.of_levels() if s.stream.heads == "Head"]
        self.frame.settle_constants()
        for stream in self.a.streams:
            if stream.place == "column" and stream.heads == "Head":
                self.settle_column(column, stream)
        self.carry(own)
        self.stream_queries(first, column, queries)
        self.store(own)

    def stream_queries(self, first: Ref, column: Side, queries: Interval | None) -> None:
        b, shift = self.b, self.frame.shift
        end = b.op("+", first, BN)
        ranges = Ranges(b, Stationary("column", first, end, scalar("T_q"), shift), BM)
        whole = b.op("<=", b.op("+", first, BN), scalar("T_k"))
        for loop in self.loops(ranges, whole, queries):
            # its registers are full: numbers of rows come through shared memory, loaded ahead.
            # In a tree that makes ptxas wait for each product of every loop (C7515)
            loop = loop._replace(short=queries is not None and loop.masked)
            b.remark(loop.note("key"))
            with loop.walk(b, "i_r", BM) as i_r, self.frame.scope(column):
                self.step(self.frame.moving("row", i_r, loop), column, masked=loop.masked)

    def loops(self, ranges: Ranges, whole: Expr, queries: Interval | None) -> Iterator[Loop]:
        """The loops over queries: all of them, those of a sibling, those of the own leaf."""
        if queries is None:
            skip_tiles(ranges, self.frame, self.fixed)
            return ranges.loops(self.a.mask, interior=whole, aligned=self.reads_near_sums())
        if self.frame.level is None:
            return near_loops(ranges, self.a.mask, queries)
        # keys that meet a sibling are all there, queries may end inside of it
        return far_loops(ranges, self.a.mask, queries, ends=True)

    def step(self, row: Side, column: Side, *, masked: bool) -> None:
        known = self.load_rows(row)
        pair = PairTile(self.frame, row, column, dict(known), anchor=row, exact=masked)
        weight = self.weights(pair, known, masked=masked)
        product = Dot(Cast(weight, "io"), known["do"])
        self.b.set(self.dv, self.b.op("+", self.dv, product))
        self.collect(pair)

"""What the kernels of an attention share: parameters, indices, lengths, the two sides of a pair."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from gnomon.lowering import tile
from gnomon.lowering.build import Block
from gnomon.lowering.core import Attention, Role, Stream
from gnomon.lowering.made import Reach, SumByTile
from gnomon.lowering.passes.fold_log2e import LOG2E
from gnomon.lowering.schedules.ranges import Loop
from gnomon.lowering.schedules.widths import Level, Widths
from gnomon.lowering.tile import (
    Arange,
    DType,
    Expr,
    Kernel,
    Load,
    Number,
    Ref,
    Scalar,
    Tensor,
    Tunable,
    Type,
    type_of,
)

Place = Literal["row", "column"]
ZERO = Number(0, "i32")
SETTLED: frozenset[Role] = frozenset(("dot", "scalar", "prefix", "low"))
"""What a tile that stays has loaded before the other side streams by."""
_TIME = {"row": "time_q", "column": "time_k"}
_EXTENT = {"row": "BM", "column": "BN"}
_HEAD_AXIS = {"Head": "head", "KVHead": "kv_head", None: "one"}


def scalar(name: str, dtype: DType = "i32") -> Ref:
    """A parameter, an index or a named scalar of the kernel."""
    return Ref(name, Type(dtype))


class Frame:
    """One kernel under construction."""

    def __init__(self, attention: Attention, stationary: Place, *, packed: bool) -> None:
        self.attention, self.stationary, self.packed = attention, stationary, packed
        order = ("BM", "BN") if stationary == "row" else ("BN", "BM")
        self.block = Block(order)
        self.widths = Widths.of(attention)
        self.tensors = {s.name: self._tensor(s) for s in attention.streams if s.role != "host"}
        self.v = Tensor("v", ("batch", "time_k", "kv_head", "DV"), "io", "in", "values")
        self.constants: dict[str, Expr] = {}
        self.made: dict[str, tuple[Tensor, SumByTile | Reach]] = {}
        self.h, self.kv = scalar("i_h"), scalar("i_kv")
        self.level: Level | None = None
        """Where the tiles meet at hand are; None in one leaf, and where there is no transport."""
        self.leaf_shift: Expr = ZERO
        """What is added to a key's offset to count it from the first key of its leaf."""

    # -- parameters

    def _tensor(self, stream: Stream) -> Tensor:
        head = _HEAD_AXIS[stream.heads]
        own = self.widths.axes(stream)
        if stream.place == "constant":
            return Tensor(stream.name, (head, *own), stream.dtype, "in")
        axes = ("batch", self._time(stream), head, *own)
        return Tensor(stream.name, axes, stream.dtype, "in")

    def _time(self, stream: Stream) -> str:
        return "version" if stream.role == "version" else _TIME[stream.place]

    def gradient(self, stream: Stream) -> Tensor:
        """Where a stream's gradient goes; zeroed before where the kernel only adds to entries."""
        own = self.widths.axes(stream)
        mode: Literal["out", "inout"] = "out"
        if stream.role == "table":
            own, mode = ("*".join(own),), "inout"
        if stream.role in ("version", "near"):  # rows that no pair meets are nobody's
            mode = "inout"
        name = f"d_{stream.name}"
        if stream.place == "constant":
            # in a packed call the programs past a sequence's end write no partial sum
            mode = "inout" if self.packed else mode
            return Tensor(name, ("sequence", "block", "head", *own), "f32", mode)
        head = "head" if stream.place == "row" or stream.heads == "Head" else "kv_head"
        # a gradient that heads share is summed over them afterwards, in fp32
        is_own = stream.heads is not None and (stream.place == "column" or stream.heads == "Head")
        dtype: DType = "io" if stream.role in ("dot", "version") and is_own else "f32"
        axes = ("batch", self._time(stream), head, *own)
        if self.is_in_parts(stream):
            axes, mode = ("part", *axes), "inout"
        return Tensor(name, axes, dtype, mode)

    def is_in_parts(self, stream: Stream) -> bool:
        """Whether the gradient has a part for each level: the levels are outside of the heads."""
        own = stream.place == "column" and stream.heads == "Head" and stream.role != "version"
        return own and self.stationary == "column" and self.attention.has_transport()

    def statistic(self, name: str, mode: Literal["in", "out"]) -> Tensor:
        """One number a row: [batch, time_q, head]."""
        return Tensor(name, ("batch", "time_q", "head"), "f32", mode)

    def kernel(
        self, suffix: str, doc: str, extra: list[Tensor], counted: str, *, fuses: bool = True
    ) -> Kernel:
        """The finished kernel; `counted` is the name of its number of blocks (NM or NN)."""
        offsets = [Tensor(f"cu_seqlens_{x}", ("offset",), "i32", "in") for x in "qk"]
        hosts = [Scalar(s.name, "f32") for s in self.attention.streams if s.role == "host"]
        lengths = [] if self.packed else [Scalar(x, "i32") for x in ("T_q", "T_k", "shift")]
        tree = ("L", "R") if self.attention.has_transport() else ()
        counts = [Scalar(x, "i32") for x in ("H", "G", counted, *tree)]
        padded = self._padded()
        sizes = dict.fromkeys(size for _, size in padded)
        for stream in self.attention.streams:
            if stream.role == "table":
                sizes.update(dict.fromkeys(self.widths.axes(stream)))
        params: list[tile.Param] = [
            *(offsets if self.packed else []),
            *self.tensors.values(),
            self.v,
            *extra,
            *(tensor for tensor, _ in self.made.values()),
            *lengths,
            *counts,
            *hosts,
            *(Scalar(size, "i32") for size in sizes),
            Tunable("BM"),
            Tunable("BN"),
            *(Tunable(name) for name in ("LEAF",) if tree),
            *(Tunable(name) for name, _ in padded),
        ]
        name = f"{self.attention.name}_{suffix}"
        body, order = tuple(self.block.body), self.block.order
        grid = self._grid(counted)
        made = tuple(how for _, how in self.made.values())
        return Kernel(name, doc, tuple(params), grid, body, order, padded, fuses, made)

    def _grid(self, counted: str) -> tuple[tuple[str, Expr], ...]:
        sequences = ("i_s" if self.packed else "i_b", scalar("B"))
        if self.stationary == "row":
            return ("i_m", scalar(counted)), ("i_h", scalar("H")), sequences
        key_heads = self.block.op("//", scalar("H"), scalar("G"))
        return ("i_n", scalar(counted)), ("i_kv", key_heads), sequences

    def _padded(self) -> tuple[tuple[str, str], ...]:
        pairs = [(f"BD{n}", f"D{n}") for n in range(len(self.widths.dots))]
        pairs += [("BV", "DV")]
        return (*pairs, *((f"BE{n}", f"E{n}") for n in range(len(self.widths.vectors))))

    def sum_by_tile(
        self, stream: Stream, anchor: Literal["first", "last"], base: Tensor | None = None
    ) -> Tensor:
        """A prefix sum from each token to the first or last one of its tile, made by the launch.

        Where a tensor [batch, time, head] is its base, the result is added to it.
        """
        like = base or self.tensors[stream.name]
        name = f"{like.name}_{'near' if base else 'to_end'}"
        tensor = Tensor(name, like.axes, "f32", "made")
        low = self.low_of(stream).name
        extent = _EXTENT["row" if stream.place == "row" else "column"]
        added = "" if base is None else base.name
        made = SumByTile(name, stream.name, low, extent, anchor, added)
        self.made[name] = tensor, made
        return tensor

    # -- opening: where this program stands

    def open(self) -> None:
        """This program's sequence: T_q, T_k, bos_q, bos_k, eos_q, eos_k, shift."""
        b = self.block
        self.batch: Expr = ZERO if self.packed else scalar("i_b")
        self.sequence = scalar("i_s") if self.packed else scalar("i_b")
        if self.packed:
            for x in "qk":
                cu = Tensor(f"cu_seqlens_{x}", ("offset",), "i32", "in")
                b.let(f"bos_{x}", Load(cu, (self.sequence,), (None,)))
                b.let(f"eos_{x}", Load(cu, (b.op("+", self.sequence, 1),), (None,)))
                b.let(f"T_{x}", b.op("-", scalar(f"eos_{x}"), scalar(f"bos_{x}")))
        if self.stationary == "row":
            b.let("i_kv", b.op("//", self.h, scalar("G")))
        self.shift = scalar("shift")
        if self.packed:
            b.let("shift", b.op("-", scalar("T_k"), scalar("T_q")), "query r stands at r + shift")

    def length(self, place: Place) -> Ref:
        """The number of queries or keys of this program's sequence."""
        return scalar("T_q" if place == "row" else "T_k")

    def settle(self, side: "Side") -> None:
        """Load what a side and the head give, before any loop; dead loads are removed later."""
        for stream in self.attention.streams:
            if stream.place == side.place and stream.role in SETTLED:
                side.load(stream)
            if stream.place == side.place == "row" and stream.role == "prefix":
                side.first_of(stream)

    def settle_constants(self) -> None:
        """Load the parameters of the current head."""
        for stream in self.attention.streams:
            if stream.place == "constant" and stream.role == "scalar":
                self.constant(stream)

    def low_of(self, stream: Stream) -> Stream:
        """The stream of the low digits of a prefix sum."""
        (found,) = (
            s
            for s in self.attention.streams
            if s.role == "low" and s.place == stream.place and s.value == stream.value
        )
        return found

    def head_of(self, stream: Stream) -> Expr:
        """The index on a stream's head axis."""
        return {"Head": self.h, "KVHead": self.kv, None: ZERO}[stream.heads]

    def side(
        self, place: Place, first: Expr, *, whole: bool = False, end: Expr | None = None
    ) -> "Side":
        """The tile of queries or keys from `first` on, up to `end` or the end of its sequence.

        A `whole` one ends before that.
        """
        return Side(self, place, first, whole=whole, end=end)

    def moving(self, place: Place, first: Expr, loop: Loop) -> "Side":
        """The tile of a loop's step."""
        side = self.side(place, first, whole=not loop.masked, end=loop.end)
        side.is_cut = loop.cut
        return side

    @contextmanager
    def scope(self, side: "Side") -> Iterator[None]:
        """A loop body: what a side or a head gives inside it is forgotten afterwards."""
        before = dict(side.loaded), dict(self.constants)
        yield
        side.loaded, self.constants = before

    def constant(self, stream: Stream) -> Expr:
        """A parameter of this head, loaded once for a program (or for a head of the group)."""
        if stream.role == "host":
            return scalar(stream.name, "f32")
        if stream.name not in self.constants:
            index, limits = (self.head_of(stream),), (None,)
            self.constants[stream.name] = self.block.let(
                f"b_{stream.name}", Load(self.tensors[stream.name], index, limits)
            )
        return self.constants[stream.name]


class Side:
    """The tile of queries, or of keys: offsets, positions, and the loads of its streams."""

    def __init__(
        self, frame: Frame, place: Place, first: Expr, *, whole: bool, end: Expr | None
    ) -> None:
        b, letter = frame.block, "m" if place == "row" else "n"
        self.frame, self.place, self.first = frame, place, first
        self.extent = _EXTENT[place]
        self.offsets = b.let(f"o_{letter}", b.op("+", first, Arange(self.extent)))
        self.end = end or frame.length(place)
        self.is_cut = False
        self.times: Expr = self.offsets
        self.limit: Expr | None = None if whole else self.end
        if frame.packed:
            which = "q" if place == "row" else "k"
            bos = scalar(f"bos_{which}")
            if not whole:
                self.limit = scalar(f"eos_{which}") if end is None else b.op("+", bos, end)
            self.times = b.let(f"t_{letter}", b.op("+", bos, self.offsets))
        self.loaded: dict[str, Expr] = {}
        # keys count from 0, queries end with the keys
        self.positions: Expr = self.offsets
        if place == "row":
            self.positions = b.let("p_m", b.op("+", self.offsets, frame.shift))

    def load(self, stream: Stream) -> Expr:
        """A stream's tile: [extent] of scalars or [extent, width] of vectors."""
        if stream.name not in self.loaded:
            name, load = f"b_{stream.name}", self._load(stream)
            matrix = stream.role in ("dot", "version")
            note = f"[{', '.join(type_of(load).shape)}]" if matrix else ""
            self.loaded[stream.name] = self.frame.block.let(name, load, note)
        return self.loaded[stream.name]

    def versions(self) -> Expr:
        """The rows of this tile's versions at the level at hand."""
        key = "@versions"
        if key not in self.loaded:
            level = self.frame.level
            assert level is not None
            shift = level.queries if self.place == "row" else level.keys
            name = "v_m" if self.place == "row" else "v_n"
            self.loaded[key] = self.frame.block.let(
                name, self.frame.block.op("+", self.offsets, shift)
            )
        return self.loaded[key]

    def end_of_versions(self) -> Expr:
        """The row behind the last version that a line of this tile has in the call."""
        level = self.frame.level
        assert level is not None
        shift = level.queries if self.place == "row" else level.keys
        return self.frame.block.op("+", self.end, shift)

    def _version(self, stream: Stream, tensor: Tensor) -> Load:
        """A version's tile; rows of a stationary tile that are missing in the call are there."""
        moves = self.limit is not None and self.place != self.frame.stationary
        limit = self.end_of_versions() if moves else None
        (width,) = self.frame.widths.axes(stream)
        index = (
            self.frame.batch,
            self.versions(),
            self.frame.head_of(stream),
            Arange(f"B{width}"),
        )
        return Load(tensor, index, (None, limit, None, scalar(width)))

    def anchored(self, stream: Stream, anchor: Expr) -> Expr:
        """A prefix sum minus its anchor, [extent]: low digits count where high ones meet."""
        key = f"{stream.name}@anchored"
        if key not in self.loaded:
            b = self.frame.block
            high, low = self.digits(stream)
            apart = b.op("apart", high, anchor, low)
            self.loaded[key] = b.let(f"b_{stream.name}_apart", apart)
        return self.loaded[key]

    def digits(self, stream: Stream) -> tuple[Expr, Expr]:
        """A prefix sum with all its digits, twice [extent]: high + low."""
        return self.load(stream), self.load(self.frame.low_of(stream))

    def to_end(self, stream: Stream) -> Expr:
        """A prefix sum from each line to the last one of a whole tile, in units of log 2."""
        tensor = self.frame.sum_by_tile(stream, "last")
        at = self.vector(tensor, self.frame.head_of(stream))
        return self.frame.block.let(f"b_{tensor.name}", at)

    def from_end(self, stream: Stream, anchor: Expr) -> Expr:
        """A prefix sum from the last line of a whole tile to its anchor, in units of log 2."""
        b = self.frame.block
        last = b.op("-", b.op("+", self.first, Ref(self.extent, Type("i32"))), 1)
        index = (self.frame.batch, last, self.frame.head_of(stream))
        high, low = (
            b.let(f"end_{s.name}", Load(self.frame.tensors[s.name], index, (None, None, None)))
            for s in (stream, self.frame.low_of(stream))
        )
        apart = b.let(f"{stream.name}_to_anchor", b.op("apart", high, anchor, low))
        return b.let(f"{stream.name}_from_end", b.op("*", apart, -LOG2E))

    def first_of(self, stream: Stream) -> Expr:
        """The high digits of a prefix sum at the first line of the tile."""
        key = f"{stream.name}@first"
        if key not in self.loaded:
            index = self.first
            if self.frame.packed:
                index = self.frame.block.op("+", scalar("bos_q"), self.first)
            value = Load(
                self.frame.tensors[stream.name],
                (self.frame.batch, index, self.frame.head_of(stream)),
                (None, None, None),
            )
            self.loaded[key] = self.frame.block.let(f"anchor_{stream.name}", value)
        return self.loaded[key]

    def matrix(self, tensor: Tensor, head: Expr, width: str, padded: str) -> Load:
        """[extent, padded] of a tensor [batch, time, head, width]."""
        index = (self.frame.batch, self.times, head, Arange(padded))
        return Load(tensor, index, (None, self.limit, None, scalar(width)))

    def vector(self, tensor: Tensor, head: Expr, fill: float = 0.0) -> Load:
        """[extent] of a tensor [batch, time, head]."""
        return Load(tensor, (self.frame.batch, self.times, head), (None, self.limit, None), fill)

    def _load(self, stream: Stream) -> Load:
        tensor, head = self.frame.tensors[stream.name], self.frame.head_of(stream)
        if stream.role == "version":
            return self._version(stream, tensor)
        if stream.role == "dot":
            (width,) = self.frame.widths.axes(stream)
            return self.matrix(tensor, head, width, f"B{width}")
        return self.vector(tensor, head, 0 if stream.dtype == "i32" else 0.0)

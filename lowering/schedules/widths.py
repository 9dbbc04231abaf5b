"""What the kernels of an attention name alike: symbolic widths, and levels of a tree."""

from dataclasses import dataclass

from gnomon.dsl.nodes import Width
from gnomon.lowering.core import Attention, Stream
from gnomon.lowering.tile import Expr


@dataclass(frozen=True, slots=True)
class Widths:
    """The names of an attention's symbolic widths: D0, D1, ... of dots, E0, ... of channel sums."""

    dots: tuple[Width, ...]
    vectors: tuple[Width, ...]

    @staticmethod
    def of(attention: Attention) -> "Widths":
        """The distinct widths of an attention's streams, in order of first use."""
        dots = dict.fromkeys(s.axes[0] for s in attention.streams if s.role in ("dot", "version"))
        vectors = dict.fromkeys(s.axes[0] for s in attention.streams if s.role == "vector")
        return Widths(tuple(dots), tuple(vectors))

    def axes(self, stream: Stream) -> tuple[str, ...]:
        """The names of a stream's own axes, behind batch, time and head."""
        if stream.role == "near":
            return ("LEAF",)
        if stream.role in ("dot", "version"):
            return (f"D{self.dots.index(stream.axes[0])}",)
        if stream.role == "vector":
            return (f"E{self.vectors.index(stream.axes[0])}",)
        if stream.role == "table":
            if len(stream.axes) == 1:
                return (f"N_{stream.name}",)
            return tuple(f"N_{stream.name}_{n}" for n in range(len(stream.axes)))
        return ()


@dataclass(frozen=True, slots=True)
class Level:
    """The level of a tree at which the tiles of both sides meet (schedules/tree.py).

    queries, keys  what is added to an offset to give the row of its version
    part           the number of the level, from 1 on; 0 is the own leaf
    """

    queries: Expr
    keys: Expr
    part: Expr

"""Where a tile of rows stands in the tree: which levels it meets, at which nodes, in which rows.

A leaf c meets level l as a query where bit l of c is 1, as a key where it is 0 and the sibling node
begins before N. Rectangle r of level l has the queries of node 2r+1 and the keys of node 2r in the
same compact rows l R + r n_l + (row within the node), n_l = LEAF 2^l.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from gnomon.lowering.build import Block
from gnomon.lowering.schedules.transport.stage import Stage, number
from gnomon.lowering.tile import Expr, Ref

Side = Literal["query", "key"]


@dataclass(frozen=True, slots=True)
class Meeting:
    """A level that a leaf meets: the first compact row of its tile, the node it crosses next."""

    row: Ref
    crosses: Expr
    """Whether a higher level is met, so that the tile crosses the sibling node."""
    node: Ref


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of rows inside a leaf: the leaf's number and the tile's place in it."""

    leaf: Ref
    within: Ref

    @staticmethod
    def of(b: Block, first: Expr) -> "Tile":
        """The tile whose first row is `first`."""
        leaf = b.let("i_c", b.op("//", first, number("LEAF")))
        return Tile(leaf, b.let("i_w", b.op("%", first, number("LEAF"))))


@contextmanager
def upwards(stage: Stage, side: Side, tile: Tile) -> Iterator[Meeting]:
    """The levels from the leaves on, where they are met."""
    b = stage.block
    base = b.let("base", 0)
    with b.loop("i_l", 0, number("L"), 1) as level:
        with _met(b, side, tile, level, base) as meeting:
            yield meeting
        b.set(base, b.op("+", base, b.op(">>", number("N"), level)))


@contextmanager
def downwards(stage: Stage, side: Side, tile: Tile) -> Iterator[Meeting]:
    """The levels from the highest on, where they are met."""
    b = stage.block
    base = b.let("base", number("TOP_NODE"))
    with b.loop("i_up", 0, number("L"), 1) as up:
        level = b.let("i_l", b.op("-", b.op("-", number("L"), 1), up))
        with _met(b, side, tile, level, base) as meeting:
            yield meeting
        below = b.op("maximum", b.op("-", level, 1), 0)
        b.set(base, b.op("-", base, b.op(">>", number("N"), below)))


@contextmanager
def _met(b: Block, side: Side, tile: Tile, level: Ref, base: Ref) -> Iterator[Meeting]:
    """One level; `base` is the first of its nodes."""
    here = b.let("i_s", b.op(">>", tile.leaf, level))
    rectangle = b.let("i_x", b.op(">>", here, 1))
    odd = b.op("-", here, b.op("*", rectangle, 2))
    if side == "query":
        meets, sibling = b.op("==", odd, 1), b.op("-", here, 1)
        crosses = b.op(">", rectangle, 0)
    else:
        begins = b.op("<", b.op("<<", b.op("+", here, 1), level), number("N"))
        meets, sibling = b.op("and", b.op("==", odd, 0), begins), b.op("+", here, 1)
        after = b.op("<<", b.op("*", b.op("+", rectangle, 1), 2), level)
        crosses = b.op("<", after, number("N"))
    with b.when("met", meets):
        inside = b.op("-", tile.leaf, b.op("<<", here, level))
        leaves = b.op("+", b.op("<<", rectangle, level), inside)
        place = b.op("+", b.op("*", leaves, number("LEAF")), tile.within)
        row = b.let("i_y", b.op("+", b.op("*", level, number("R")), place))
        node = b.let("i_node", b.op("+", base, sibling))
        yield Meeting(row, crosses, node)

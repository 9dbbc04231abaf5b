"""Where the tiles of a transport's kernels stand in the tree over leaves.

Tokens stand in leaves of LEAF, each packed sequence beginning with a leaf of its own, and a node
of level l has 2^l leaves. A query and a key of different leaves are in two sibling nodes of just
one level: the query's on the right, the key's on the left. Before the kernels every query has been
moved to the left edge of its node and every key to the right edge of its own, which is one place,
so that a *product* of these versions is the dot through all steps in between. Inside a leaf the
dots come ready, as `near`.

    place    where the first line of the tile stands in the leaves
    span     tokens of a node of the level at hand: R at the top, LEAF at the bottom
    pair     which pair of siblings of the level the tile is in: place // (2 span)
    row'     a version's row: level R + pair span + (place within the node)

So a tile of queries meets the keys of its own leaf, with masks, and level by level those of the
sibling on the left, all of which are before it; a tile of keys meets queries on its right.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from gnomon.dsl.nodes import Mask
from gnomon.lowering.build import Block
from gnomon.lowering.schedules.frame import Frame, Place, Side, scalar
from gnomon.lowering.schedules.ranges import Interval, Loop, Ranges
from gnomon.lowering.schedules.widths import Level
from gnomon.lowering.tile import Expr, Ref

EVERYTHING = Mask("everything")


def beyond(mask: Mask) -> Mask:
    """What is left of a mask for keys that all stand before all queries."""
    if mask.rule == "causal":
        return EVERYTHING
    if mask.rule not in ("and", "or"):
        return mask
    left, right = (beyond(cast(Mask, part)) for part in mask.operands)
    if mask.rule == "or":
        return EVERYTHING if EVERYTHING in (left, right) else Mask("or", (left, right))
    if EVERYTHING in (left, right):
        return right if left == EVERYTHING else left
    return Mask("and", (left, right))


class Tree:
    """The levels and the own leaf of one stationary tile."""

    def __init__(self, frame: Frame, place: Place, first: Ref) -> None:
        self.frame, self.place = frame, place
        self.b: Block = frame.block
        b, op = self.b, self.b.op
        self.origin: Expr | None = None
        where: Expr = first if place == "column" else op("+", first, frame.shift)
        if frame.packed:
            leaves = op("+", op("//", scalar("bos_k"), scalar("LEAF")), frame.sequence)
            note = "each sequence begins with a leaf of its own"
            self.origin = b.let("origin", op("*", leaves, scalar("LEAF")), note)
            where = op("+", where, self.origin)
        self.where = b.let("place", where, "where the tile stands in the leaves")
        frame.leaf_shift = b.let("to_leaf", self._less_leaf())

    def _less_leaf(self) -> Expr:
        """What a key's offset needs to count from the first key of the tile's leaf."""
        op = self.b.op
        leaf = op("*", op("//", self.where, scalar("LEAF")), scalar("LEAF"))
        return op("neg", leaf) if self.origin is None else op("-", self.origin, leaf)

    # -- the other side

    def leaf(self) -> Interval:
        """The keys, or the queries, of the tile's own leaf."""
        first = self.b.op("neg", self.frame.leaf_shift)
        return self._stretch(first, scalar("LEAF"))

    def _stretch(self, first: Expr, length: Expr) -> Interval:
        """So many elements of the moving side from a key on."""
        op = self.b.op
        if self.place == "column":
            first = op("-", first, self.frame.shift)
        low = self.b.let("first", first)
        return Interval((low,), (op("+", low, length),))

    @contextmanager
    def levels(self, side: Side) -> Iterator[Interval]:
        """A loop over the levels, the top first, in which the tile meets its sibling node.

        Gives the elements of the moving side there. What the stationary side loads is forgotten.
        """
        b, op, frame = self.b, self.b.op, self.frame
        span = b.let("span", scalar("R"), "tokens of a node, from the top level down")
        with b.loop("i_l", 0, scalar("L"), 1) as i_l:
            number = op("//", self.where, span)
            meets = op("%", number if self.place == "row" else op("+", number, 1), 2)
            sibling = b.let("sibling", meets, self._note())
            with b.loop("_meets", 0, sibling, 1), frame.scope(side):
                pair = b.let("pair", op("//", self.where, op("*", span, 2)))
                base = op("*", op("-", op("-", scalar("L"), i_l), 1), scalar("R"))
                keys = op("-", base, op("*", pair, span))
                queries = op("-", base, op("*", op("+", pair, 1), span))
                if self.origin is not None:
                    keys, queries = op("+", keys, self.origin), op("+", queries, self.origin)
                queries = b.let("to_queries", op("+", queries, frame.shift))
                keys = b.let("to_keys", keys)
                frame.level = Level(queries, keys, op("-", scalar("L"), i_l))
                yield self._sibling(pair, span)
                frame.level = None
            b.set(span, op("//", span, 2))

    def _note(self) -> str:
        which, other = ("right", "keys") if self.place == "row" else ("left", "queries")
        return f"1 where the node is the {which} one of two siblings: it meets the {other} there"

    def _sibling(self, pair: Ref, span: Ref) -> Interval:
        op = self.b.op
        start = op("*", op("*", pair, span), 2)
        if self.place == "column":
            start = op("+", start, span)
        if self.origin is not None:
            start = op("-", start, self.origin)
        return self._stretch(start, span)


def far_loops(
    ranges: Ranges,
    mask: Mask,
    within: Interval,
    *,
    interior: Expr | None = None,
    ends: bool = False,
) -> Iterator[Loop]:
    """The loops over a sibling node.

    `interior`: the condition under which the stationary tile has all its lines, where that matters;
    `ends`: whether lines of the moving side may be missing. Nodes are whole tiles, so that under a
    causal mask alone only the end of the sequence can cut one.
    """
    far = beyond(mask)
    if far != EVERYTHING:
        for loop in ranges.loops(far, within=within, interior=interior):
            yield loop._replace(cut=True)  # what a tile reaches behind the node is met elsewhere
    elif interior is None and not ends:
        yield ranges.whole(within)
    else:
        for loop in ranges.loops(far, within=within, interior=interior):
            yield loop._replace(end=None)


def near_loops(ranges: Ranges, mask: Mask, leaf: Interval) -> Iterator[Loop]:
    """The loops over the own leaf, all with masks; whole tiles of it under a causal mask alone."""
    b = ranges.block
    for loop in ranges.loops(mask, within=leaf, all_masked=True):
        if ranges.tile.side == "row" or beyond(mask) != EVERYTHING:
            yield loop
            continue
        (first,) = leaf.lows
        tiles = b.op("//", b.op("-", loop.start, first), ranges.step)
        whole = b.let("start_tile", b.op("+", first, b.op("*", tiles, ranges.step)))
        yield loop._replace(start=b.op("maximum", whole, 0), end=None)

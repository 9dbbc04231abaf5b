"""The condition of a pair: does query i see key j, in memory order."""

from typing import cast

from gnomon.dsl.nodes import Mask
from gnomon.lowering import tile
from gnomon.lowering.core import Read
from gnomon.lowering.schedules.formula import PairTile
from gnomon.lowering.schedules.frame import Side
from gnomon.lowering.tile import Full, Load, Type

Condition = tile.Expr | None


def visible(mask: Mask, pair: PairTile, *, rows_end: bool) -> Condition:
    """The condition of an edge tile: the mask's rule, and the ends of the sequences.

    `rows_end`: rows past the end must not count (in the backward pass; the forward does not store
    them). Under a causal mask a valid row sees no key past the end anyway; what other loops have
    must be hidden all the same.
    """
    condition = _rule(mask, pair)
    if not _hides_later_keys(mask) or pair.column.is_cut:
        condition = _both(pair, condition, _before_end(pair, pair.column))
    if rows_end:
        condition = _both(pair, condition, _before_end(pair, pair.row))
    return condition


def _before_end(pair: PairTile, side: Side) -> Condition:
    return pair.block.op("<", side.offsets, side.end)


def _hides_later_keys(mask: Mask) -> bool:
    if mask.rule == "and":
        return any(_hides_later_keys(cast(Mask, part)) for part in mask.operands)
    return mask.rule == "causal"


def _both(pair: PairTile, a: Condition, b: Condition) -> Condition:
    if a is None or b is None:
        return a or b
    return pair.block.op("and", a, b)


def _rule(mask: Mask, pair: PairTile) -> Condition:
    b = pair.block
    i, j = pair.row.positions, pair.column.positions
    match mask.rule:
        case "everything":
            return None
        case "causal":
            return b.op(">" if mask.operands[0] else ">=", i, j)
        case "window":
            size = int(cast(int, mask.operands[0]))
            return b.op("and", b.op("<", b.op("-", i, j), size), b.op("<", b.op("-", j, i), size))
        case "first_keys":
            return b.op("<", j, int(cast(int, mask.operands[0])))
        case "same_document":
            row, column = (pair.value(cast(Read, part)) for part in mask.operands)
            return b.op("==", row, column)
        case "selected_blocks":
            return _selected(mask, pair)
        case "and" | "or":
            left, right = (_rule(cast(Mask, part), pair) for part in mask.operands)
            if mask.rule == "and":
                return _both(pair, left, right)
            return None if left is None or right is None else b.op("or", left, right)
    raise TypeError(f"no mask rule {mask.rule!r}")


def _selected(mask: Mask, pair: PairTile) -> Condition:
    """Whether the key's block stands in the row's list: one comparison for each entry."""
    blocks, size = cast(tuple[Read, int], mask.operands)
    b, frame, row = pair.block, pair.frame, pair.row
    stream = blocks.stream
    own = pair.let("block_of_key", b.op("//", pair.column.offsets, int(size)))
    hit = pair.let("b_hit", Full(0, Type("i32", pair.shape)))
    (count,) = frame.widths.axes(stream)
    with b.loop("i_e", 0, tile.Ref(count, Type("i32")), 1) as entry:
        index = (frame.batch, row.times, frame.head_of(stream), entry)
        listed = b.let(
            "b_block", Load(frame.tensors[stream.name], index, (None, row.limit, None, None), -1)
        )
        same = tile.Cast(b.op("==", listed, own), "i32")
        b.set(hit, b.op("maximum", hit, same))
    return b.op(">", hit, 0)

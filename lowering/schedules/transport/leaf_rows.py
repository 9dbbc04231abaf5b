"""transport_d_rows: the gradient of queries inside a leaf, and what the sums over rows need.

Rows of block a cross the blocks a, ..., 0 of their leaf; with x before block j and g = d_q0 behind
the first, from j = 0 to a:

    X  = tril(x W^T)         dX = tril(-g Y^T - d_loc M^T)
    g <- g + d_loc K + dX W                                        in the end dq = g

X, dX, d_loc, x and g of each pair of blocks are stored for transport_d_tokens; gradients are in
units of the tile, so that f16 holds them.
"""

from typing import NamedTuple

from gnomon.lowering.schedules.transport import pairs
from gnomon.lowering.schedules.transport.precision import digits, given, memory, product
from gnomon.lowering.schedules.transport.stage import (
    Plan,
    Stage,
    head_axis,
    number,
    scaled,
    tiles_of,
)
from gnomon.lowering.schedules.transport.walk import Tile
from gnomon.lowering.tile import Arange, Expr, Kernel, Reduce, Ref


class Rows(NamedTuple):
    """What rows carry from block to block: themselves, their gradient and its unit."""

    x: Ref
    g: Ref
    unit: Ref | None


def leaf_rows(plan: Plan) -> Kernel:
    """The kernel transport_d_rows: q, k, w_r, y, m, d_q0, d_loc -> dq; xs, d_xs, d_ls, qs, gs."""
    stage = Stage(plan)
    b = stage.block
    b.let("i_kv", b.op("//", number("i_h"), number("G")))
    first = b.let("i_r", b.op("*", number("i_t"), number("BM")))
    tile = Tile.of(b, first)
    own = b.let("i_a", b.op("//", tile.within, number("BT")))
    x = b.let("b_x", _queries(stage, first, "b_q"))
    if plan.blocks == 2:
        _before_own_block(stage, first, own, x)
    g, unit = _gradient(stage, first, own)
    b.blank()
    with b.loop("i_j", 0, b.op("+", own, 1), 1) as j:
        pair = b.op("+", pairs.first_pair(b, plan, tile.leaf, j), b.op("-", own, j))
        row = b.let("i_y", b.op("*", pair, number("BT")))
        _through_block(stage, tile, first, j, row, Rows(x, g, unit))
        if unit is not None:
            index = (stage.batch, pair, stage.head)
            stage.store("unit_q", pairs.TILES, "f32", index, unit)
        if plan.blocks == 2:
            # read again, for want of registers
            b.set(x, _queries(stage, first, "b_q_own"))
    dq = g if unit is None else b.op("*", g, unit)
    stage.store_rows("dq", first, dq, "io", head="head", axis="time", extent="BM")
    doc = "The gradient of queries inside each leaf, and what the sums over rows are made of."
    grid = (("i_t", tiles_of("BM")), head_axis("head"), ("i_b", number("B")))
    return stage.kernel("transport_d_rows", doc, grid)


def _seen(stage: Stage, first: Expr, start: Expr, extent: str) -> Expr:
    """Which tokens, from `start` on, each row from `first` on comes after, or is."""
    b = stage.block
    return b.op(">=", b.op("+", first, Arange("BM")), b.op("+", start, Arange(extent)))


def _queries(stage: Stage, first: Ref, name: str) -> Ref:
    """Q as products take it."""
    load = stage.rows("q", first, "io", head="head", axis="time", extent="BM")
    return given(stage.block, name, load, stage.plan.precision.once)[0]


def _before_own_block(stage: Stage, first: Ref, own: Ref, x: Ref) -> None:
    """x: rows of the second block at its left edge."""
    b, form = stage.block, stage.plan.precision.once
    with b.when("second", b.op(">", own, 0)):
        near = b.op("neg", product(b, (x,), stage.single_rows("w_r", first)))
        seen = _seen(stage, first, first, "BT")
        xs = digits(b, "b_xs", b.op("where", seen, near, 0.0), form)
        border = b.op("+", x, product(b, xs, stage.single_rows("y", first)))
        b.set(x, digits(b, "b_border", border, form)[0])


def _gradient(stage: Stage, first: Ref, own: Ref) -> tuple[Ref, Ref | None]:
    """d_q0 in units in which d_loc fits f16 too, and the unit."""
    b = stage.block
    g = b.let("b_d_q0", stage.rows("d_q0", first, "f32", head="head", extent="BM"))
    if stage.plan.precision.once == "f32":
        return b.let("b_g", b.op("+", g, 0.0)), None
    lines = b.let("b_max", Reduce("max", b.op("abs", g), "BD"))
    start = b.op("-", first, b.op("*", own, number("BT")))
    with b.loop("i_j", 0, b.op("+", own, 1), 1) as j:
        column = b.op("*", j, number("BT"))
        logits = b.let("b_d_loc", pairs.load_logits(stage, first, column))
        seen = _seen(stage, first, b.op("+", start, column), "BT'")
        shown = b.op("where", seen, b.op("abs", logits), 0.0)
        b.set(lines, b.op("maximum", lines, Reduce("max", shown, "BT'")))
    fitting, unit = scaled(b, "b_g", g, b.let("largest", Reduce("max", lines, "BM")))
    return fitting, unit


def _through_block(stage: Stage, tile: Tile, first: Ref, j: Ref, row: Ref, rows: Rows) -> None:
    """One block: its pair with these rows, stored; then g behind it."""
    b, form = stage.block, stage.plan.precision.once
    x, g = rows.x, rows.g
    column = b.let("i_u", b.op("*", j, number("BT")))
    start = b.let("i_n", b.op("+", b.op("*", tile.leaf, number("LEAF")), column))
    # each is stored as soon as it is there, for want of registers
    pairs.store_vectors(stage, "qs", row, x)
    w = stage.single_rows("w_r", start)
    seen = _seen(stage, first, start, "BT")
    xs = digits(b, "b_xs", b.op("where", seen, product(b, (x,), w), 0.0), form)
    pairs.store_scores(stage, "xs", row, xs[0])
    moving = digits(b, "b_g_d", g, form)
    pairs.store_vectors(stage, "gs", row, moving[0])
    y = stage.single_rows("y", start)
    across = b.let("b_gy", product(b, moving, y))
    logits: Expr = b.let("b_d_loc", pairs.load_logits(stage, first, column))
    if rows.unit is not None:
        logits = b.op("*", logits, b.op("/", 1.0, rows.unit))
    kept = b.op("where", _seen(stage, first, start, "BT'"), logits, 0.0)
    d = digits(b, "b_d_ls", kept, form)
    pairs.store_scores(stage, "d_ls", row, d[0], "BT'")
    m = b.let("b_m", stage.square("m", start, memory(form)))
    both = b.op("neg", product(b, d, (m,), across))
    d_xs = digits(b, "b_d_xs", b.op("where", seen, both, 0.0), form)
    pairs.store_scores(stage, "d_xs", row, d_xs[0])
    k = given(b, "b_k", stage.rows("k", start, "io", axis="time", extent="BT'"), form)
    b.set(g, product(b, d, k, g))
    b.set(g, product(b, d_xs, stage.single_rows("w_r", start, "b_w_again"), g))

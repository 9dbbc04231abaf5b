"""transport_queries: logits inside the leaf, and the versions of queries.

From its own block to the first of the leaf, with x = q before:

    X = tril(x W^T)       loc = tril(x K^T) - X M       x <- x - X Y

where tril is the causal mask of the leaf. Then x = q(0) is at the left edge of the leaf, and

    q(l+1) = q(l) P(l, sibling) where level l is met, else q(l)

Entries of loc right of the diagonal are 0, those of later blocks are not written.
"""

from gnomon.lowering.schedules.transport.precision import digits, given, memory, product, relabel
from gnomon.lowering.schedules.transport.stage import Plan, Stage, head_axis, number, tiles_of
from gnomon.lowering.schedules.transport.walk import Tile, upwards
from gnomon.lowering.tile import Arange, Cast, Kernel, Ref


def query_rows(plan: Plan) -> Kernel:
    """The kernel transport_queries: q, w_r, y, m, k, p -> loc, qv."""
    stage = Stage(plan)
    b, form = stage.block, plan.precision
    b.let("i_kv", b.op("//", number("i_h"), number("G")))
    first = b.let("i_r", b.op("*", number("i_t"), number("BM")))
    tile = Tile.of(b, first)
    q = b.let("b_q", stage.rows("q", first, "io", head="head", axis="time", extent="BM"))
    x = b.let("b_x", Cast(q, "f32"))
    blocks = b.op("+", b.op("//", tile.within, number("BT")), 1)
    with b.loop("i_j", 0, blocks, 1) as j:
        _through_block(stage, tile, first, x, j)
    b.blank()
    with upwards(stage, "query", tile) as met:
        stage.store_rows("qv", met.row, x, form.versions, head="head", axis="version", extent="BM")
        with b.when("on", met.crosses):
            moving = digits(b, "b_x_d", x, form.log)
            p = stage.crossing(met.node, ("BD'", "BD"))
            b.set(x, product(b, relabel(moving, "BM", "BD'"), p))
    doc = "The logits inside each leaf, and the versions of queries at each level that they meet."
    grid = (("i_t", tiles_of("BM")), head_axis("head"), ("i_b", number("B")))
    return stage.kernel("transport_queries", doc, grid)


def _through_block(stage: Stage, tile: Tile, first: Ref, x: Ref, j: Ref) -> None:
    """The j-th block to the left of a tile, its own first: loc, and x before the block."""
    b, form = stage.block, stage.plan.precision
    own = b.op("//", tile.within, number("BT"))
    column = b.let("i_u", b.op("*", b.op("-", own, j), number("BT")))
    start = b.let("i_n", b.op("+", b.op("*", tile.leaf, number("LEAF")), column))
    o_m = b.let("o_m", b.op("+", first, Arange("BM")))
    moving = digits(b, "b_x_d", x, form.once)
    w = stage.single_rows("w_r", start)
    near = b.op("neg", product(b, moving, w))
    seen = b.op(">=", o_m, b.op("+", start, Arange("BT")))
    xs = digits(b, "b_xs", b.op("where", seen, near, 0.0), form.once)
    k = given(b, "b_k", stage.rows("k", start, "io", axis="time", extent="BT'"), form.once)
    m = b.let("b_m", stage.square("m", start, memory(form.once)))
    logits = product(b, xs, (m,), product(b, moving, k))
    seen = b.op(">=", o_m, b.op("+", start, Arange("BT'")))
    loc = b.let("b_loc", b.op("where", seen, logits, 0.0))
    stage.store(
        "loc",
        ("batch", "time", "head", "leaf"),
        "f32",
        (stage.batch, o_m, stage.head, b.op("+", column, Arange("BT'"))),
        loc,
        (None, number("T"), None, None),
    )
    y = stage.single_rows("y", start)
    b.set(x, product(b, xs, y, x))

"""transport_keys: the versions of keys, level after level.

k(0) = k0       k(l+1) = k(l) P(l, sibling)^T where level l is met, else k(l)
"""

from gnomon.lowering.schedules.transport.precision import digits, memory, product, relabel
from gnomon.lowering.schedules.transport.stage import Plan, Stage, head_axis, number, tiles_of
from gnomon.lowering.schedules.transport.walk import Tile, upwards
from gnomon.lowering.tile import Cast, Kernel


def key_chain(plan: Plan) -> Kernel:
    """The kernel transport_keys: k0, p -> kv."""
    stage = Stage(plan)
    b, form = stage.block, plan.precision
    first = b.let("i_r", b.op("*", number("i_t"), number("BM")))
    tile = Tile.of(b, first)
    k0 = b.let("b_k0", stage.rows("k0", first, memory(form.log), extent="BM"))
    x = b.let("b_x", Cast(k0, "f32"))
    with upwards(stage, "key", tile) as met:
        stage.store_rows("kv", met.row, x, form.versions, axis="version", extent="BM")
        with b.when("on", met.crosses):
            moving = digits(b, "b_x_d", x, form.log)
            p = stage.crossing(met.node, ("BD", "BD'"))
            b.set(x, product(b, relabel(moving, "BM", "BD'"), p))
    doc = "The versions of keys at each level that they meet."
    grid = (("i_t", tiles_of("BM")), head_axis("kv_head"), ("i_b", number("B")))
    return stage.kernel("transport_keys", doc, grid)

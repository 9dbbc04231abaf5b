"""transport_d_keys, transport_d_queries: the versions' gradients, carried down from level to level.

With g = 0 above the highest level, at each level that a tile meets, the highest first:

    the gradient of the next version is g           stored, for the gradient of the node crossed
    g <- g P^T  (queries, x <- x P)    or    g <- g P  (keys, x <- x P^T)    where it was crossed
    g <- g + d version

In the end g is the gradient at the leaf's own edge. Each row of g is scaled to the range of f16
before it crosses a node.
"""

from gnomon.lowering.schedules.transport.precision import digits, product, relabel
from gnomon.lowering.schedules.transport.stage import (
    Heads,
    Plan,
    Stage,
    head_axis,
    number,
    scaled,
    tiles_of,
)
from gnomon.lowering.schedules.transport.walk import Meeting, Side, Tile, downwards
from gnomon.lowering.tile import Arange, Full, Kernel, Reduce, Ref, Type


def chain_gradients(plan: Plan, side: Side) -> Kernel:
    """The kernel transport_d_queries: d_qv, p -> d_qn (of next versions), d_q0; of keys alike."""
    stage, x = Stage(plan), side[0]
    b, form = stage.block, plan.precision
    axis: Heads = "head" if side == "query" else "kv_head"
    if side == "query":
        b.let("i_kv", b.op("//", number("i_h"), number("G")))
    first = b.let("i_r", b.op("*", number("i_t"), number("BM")))
    tile = Tile.of(b, first)
    g = b.let("b_g", Full(0.0, Type("f32", ("BM", "BD"))))
    with downwards(stage, side, tile) as met:
        stage.store_rows(
            f"d_{x}n", met.row, g, form.versions, head=axis, axis="version", extent="BM"
        )
        _cross(stage, side, met, g)
        # rows of the last leaf that are past T have no gradient, whatever stands there
        given = stage.rows(
            f"d_{x}v", met.row, form.versions, head=axis, axis="version", extent="BM"
        )
        there = b.op("<", b.op("+", first, Arange("BM")), number("T"))
        b.set(g, b.op("+", g, b.op("where", there, b.let("b_d", given), 0.0)))
    stage.store_rows(f"d_{x}0", first, g, "f32", head=axis, extent="BM")
    doc = f"Gradients of {side} versions from level to level, down to the edge of the leaf."
    grid = (("i_t", tiles_of("BM")), head_axis(axis), ("i_b", number("B")))
    name = {"query": "transport_d_queries", "key": "transport_d_keys"}[side]
    return stage.kernel(name, doc, grid)


def _cross(stage: Stage, side: Side, met: Meeting, g: Ref) -> None:
    """G through the node that the versions crossed."""
    b, form = stage.block, stage.plan.precision.log
    with b.when("on", met.crosses):
        p = stage.crossing(met.node, ("BD", "BD'") if side == "query" else ("BD'", "BD"))
        if form == "f32":
            b.set(g, product(b, relabel((g,), "BM", "BD'"), p))
            return
        largest = Reduce("max", b.op("abs", g), "BD")
        fitting, unit = scaled(b, "b_g", g, largest)
        moving = digits(b, "b_g_d", fitting, form)
        b.set(g, b.op("*", product(b, relabel(moving, "BM", "BD'"), p), unit))

"""transport_leaves: keys at the right edge of their leaf, and the product of its transitions.

R starts as I and takes the blocks of the leaf from the last to the first, each with the keys of the
block, whose right edge R carries to that of the leaf:

    X = R W^T       K0^T = R K^T - X M       R <- R - X Y       in the end P = R

Rows of R do not meet, so a program may own BR of the D rows of P, which are columns of K0.
"""

from gnomon.lowering.schedules.transport.precision import (
    digits,
    given,
    memory,
    names,
    narrowed,
    product,
)
from gnomon.lowering.schedules.transport.stage import PADDED, Plan, Stage, head_axis, number
from gnomon.lowering.tile import Arange, Kernel, Ref


def leaves(plan: Plan, *, stages: int = 2) -> Kernel:
    """The kernel transport_leaves: w, y, m, k -> k0, p (level 0)."""
    stage = Stage(plan)
    b, form = stage.block, plan.precision
    o_r = b.let("o_r", b.op("+", b.op("*", number("i_r"), number("BR")), Arange("BR")))
    unit = b.op("where", b.op("==", o_r, Arange("BD")), 1.0, 0.0)
    r = b.let("b_r", unit)
    count = b.op("//", number("LEAF"), number("BT"))
    with b.loop("i_j", 0, count, 1, stages) as j:
        last = b.op("-", b.op("*", b.op("+", number("i_c"), 1), count), b.op("+", j, 1))
        first = b.let("i_n", b.op("*", last, number("BT")))
        _keys_and_product(stage, first, o_r, r)
    b.blank()
    made = digits(b, "b_p", r, form.path)
    channels = stage.width()
    for name, digit in zip(names("p", form.path), made, strict=True):
        stage.store(
            name,
            ("batch", "node", "kv_head", "D", "D"),
            memory(form.path),
            (stage.batch, number("i_c"), stage.key_head, o_r, Arange("BD")),
            digit,
            (None, None, None, channels, channels),
        )
    doc = "Keys at the right edge of each leaf, k0, and the product of its transitions, p."
    chunks = ("i_r", b.op("cdiv", number("D"), number("BR")))
    grid = (chunks, ("i_c", number("N")), head_axis("kv_head"), ("i_b", number("B")))
    return stage.kernel("transport_leaves", doc, grid)


def _keys_and_product(stage: Stage, first: Ref, o_r: Ref, r: Ref) -> None:
    """One block: its keys through R, then R through the block."""
    b, form = stage.block, stage.plan.precision
    moving = digits(b, "b_r_d", r, form.path)
    w = given(b, "b_w", stage.rows("w", first, stage.plan.transition, axis="time"), form.path)
    x = digits(b, "b_x", b.op("neg", product(b, moving, w)), form.path)
    k = given(b, "b_k", stage.rows("k", first, "io", axis="time", extent="BT'"), form.once)
    m = b.let("b_m", stage.square("m", first, memory(form.once)))
    keys = product(b, narrowed(b, moving, form.once), k)
    k0 = b.let("b_k0", product(b, narrowed(b, x, form.once), (m,), keys))
    stage.store(
        "k0",
        (*PADDED, "kv_head", "D"),
        memory(form.log),
        (stage.batch, b.op("+", first, Arange("BT'")), stage.key_head, o_r),
        k0,
        (None, None, None, stage.width()),
    )
    y = stage.load_rows("y", first, form.path)
    b.set(r, product(b, x, y, r))

"""transport_d_nodes: the gradients of one level's products, from the top level down.

A node is crossed by one side only: an even one, 2r, by the queries of rectangle r, an odd one,
2r+1, by its keys. With x the versions and g the gradients of the next ones:

    dP(l, 2r)   = sum over rows of the rectangle, heads of the group:  qv^T d_qn
    dP(l, 2r+1) = sum over rows of the rectangle:                      d_kn^T kv

and from the parent P(l+1, r) = P(l, 2r+1) P(l, 2r):

    dP(l, 2r) += P(l, 2r+1)^T dP(l+1, r)       dP(l, 2r+1) += dP(l+1, r) P(l, 2r)^T
"""

from gnomon.lowering.build import Block
from gnomon.lowering.schedules.transport.precision import Digits, digits, product
from gnomon.lowering.schedules.transport.stage import Plan, Stage, head_axis, number, scaled
from gnomon.lowering.tile import Arange, Dot, Expr, Full, Kernel, Reduce, Ref, Type


def node_gradients(plan: Plan, *, top: bool, stages: int = 3) -> Kernel:
    """The kernel transport_d_nodes, of the highest level or of one below.

    qv, d_qn, kv, d_kn (and, below the top, p of this level and dp_above) -> dp. SPAN leaves a node,
    FIRST compact row of the level, NODES of it and PARENTS above it; rows are read `stages` - 1
    tiles ahead.
    """
    stage = Stage(plan)
    b = stage.block
    acc = b.let("b_dp", Full(0.0, Type("f32", ("BD", "BD'"))))
    size = b.let("n_l", b.op("*", number("SPAN"), number("LEAF")))
    rectangle = b.let("i_x", b.op("//", number("i_n"), 2))
    odd = b.let("odd", b.op("%", number("i_n"), 2))
    first = b.let("i_r", b.op("+", number("FIRST"), b.op("*", rectangle, size)))
    _from_queries(stage, acc, first, rectangle, odd, stages)
    _from_keys(stage, acc, first, rectangle, odd, stages)
    if not top:
        _from_parent(stage, acc, rectangle, odd)
    b.blank()
    width = stage.width()
    stage.store(
        "dp",
        ("batch", "node", "kv_head", "D", "D"),
        "f32",
        (stage.batch, number("i_n"), stage.key_head, Arange("BD"), Arange("BD'")),
        acc,
        (None, None, None, width, width),
    )
    doc = "Gradients of a level's products: from the rows that cross them, and from their parents."
    grid = (("i_n", number("NODES")), head_axis("kv_head"), ("i_b", number("B")))
    return stage.kernel(f"transport_d_nodes{'_top' if top else ''}", doc, grid)


def _from_queries(
    stage: Stage, acc: Ref, first: Ref, rectangle: Ref, odd: Ref, stages: int
) -> None:
    """What the queries of the node's right neighbour say; those of rectangle 0 go no further."""
    b = stage.block
    size, padded = number("n_l"), b.op("*", number("N"), number("LEAF"))
    start = b.op("*", b.op("+", b.op("*", rectangle, 2), 1), size)
    there = b.op("maximum", b.op("minimum", size, b.op("-", padded, start)), 0)
    crossed = b.op("and", b.op("==", odd, 0), b.op(">", rectangle, 0))
    count = b.let("n_q", b.op("where", crossed, there, 0))
    with b.loop("i_g", 0, number("G"), 1) as g:
        b.let("i_h", b.op("+", b.op("*", stage.key_head, number("G")), g))
        with b.loop("i_y", 0, count, number("BK"), stages) as y:
            row = b.op("+", first, y)
            x = b.let("b_qv", _versions(stage, "qv", row, "head", "BD"))
            d = b.let("b_d_qn", _versions(stage, "d_qn", row, "head", "BD'"))
            b.set(acc, b.op("+", acc, Dot(x, d)))


def _from_keys(stage: Stage, acc: Ref, first: Ref, rectangle: Ref, odd: Ref, stages: int) -> None:
    """What the keys of the node's left neighbour say, where they go further.

    In a sum of its own: ptxas waits for each product where two loops add to one (C7515).
    """
    b = stage.block
    own = b.let("b_dp_k", Full(0.0, Type("f32", ("BD", "BD'"))))
    size = number("n_l")
    after = b.op("*", b.op("*", b.op("+", rectangle, 1), 2), number("SPAN"))
    crossed = b.op("and", b.op("==", odd, 1), b.op("<", after, number("N")))
    count = b.let("n_k", b.op("where", crossed, size, 0))
    with b.loop("i_y", 0, count, number("BK"), stages) as y:
        row = b.op("+", first, y)
        d = b.let("b_d_kn", _versions(stage, "d_kn", row, "kv_head", "BD"))
        x = b.let("b_kv", _versions(stage, "kv", row, "kv_head", "BD'"))
        b.set(own, b.op("+", own, Dot(d, x)))
    b.set(acc, b.op("+", acc, own))


def _versions(stage: Stage, name: str, row: Expr, head: str, channels: str) -> Expr:
    """[BK, channels] of versions or of their gradients."""
    dtype = stage.plan.precision.versions
    return stage.rows(name, row, dtype, head=head, axis="version", extent="BK", channels=channels)


def _from_parent(stage: Stage, acc: Ref, rectangle: Ref, odd: Ref) -> None:
    """What the product of both halves says, where there is one."""
    b = stage.block
    has_parent = b.op("<", rectangle, number("PARENTS"))
    with b.when("left", b.op("and", has_parent, b.op("==", odd, 0))):
        p = _sibling(stage, 1, ("BD''", "BD"))
        g, unit = _parent(stage, rectangle, ("BD''", "BD'"))
        _add(b, acc, product(b, p, g), unit)
    with b.when("right", b.op("and", has_parent, b.op("==", odd, 1))):
        p = _sibling(stage, -1, ("BD'", "BD''"))
        g, unit = _parent(stage, rectangle, ("BD", "BD''"))
        _add(b, acc, product(b, g, p), unit)


def _add(b: Block, acc: Ref, part: Expr, unit: Ref | None) -> None:
    b.set(acc, b.op("+", acc, part if unit is None else b.op("*", part, unit)))


def _sibling(stage: Stage, step: int, extents: tuple[str, str]) -> Digits:
    """The other half of the parent."""
    return stage.crossing(stage.block.op("+", number("i_n"), step), extents)


def _parent(stage: Stage, rectangle: Ref, extents: tuple[str, str]) -> tuple[Digits, Ref | None]:
    """The gradient of the parent in the range of f16, and its unit."""
    b, form = stage.block, stage.plan.precision.log
    g = b.let("b_above", stage.node("dp_above", rectangle, "f32", extents))
    if form == "f32":
        return (g,), None
    lines = b.let("b_above_max", Reduce("max", b.op("abs", g), extents[1]))
    fitting, unit = scaled(b, "b_above", g, Reduce("max", lines, extents[0]))
    return digits(b, "b_above_d", fitting, form), unit

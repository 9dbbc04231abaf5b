"""transport_blocks: the triangular system of each block of BT tokens.

    A = sl(D U W^T)   T = (I + A)^-1   Y = T D U   M = T sl(D U K^T)        D = diag(beta)

T is made from the inverses of its diagonal blocks, of size 1, 2, 4, ...: two neighbours T_l (the
earlier) and T_r become [[T_l, 0], [-T_r A_rl T_l, T_r]]. Each is a true inverse, whose entries stay
small; the Neumann product (I - A)(I + A^2)(I + A^4)... loses all digits where keys repeat.

Where w is rounded and u is w, beta takes the rounding back: beta |w|^2 / |w_r|^2 keeps the
eigenvalue 1 - beta |w|^2 of a transition, and reflections reflections.
"""

from gnomon.lowering.build import Block
from gnomon.lowering.schedules.transport.precision import (
    Digits,
    digits,
    given,
    memory,
    narrowed,
    product,
    relabel,
    whole,
)
from gnomon.lowering.schedules.transport.stage import (
    PADDED,
    Plan,
    Stage,
    head_axis,
    number,
    tiles_of,
)
from gnomon.lowering.tile import Arange, Cast, Expr, Kernel, Reduce, Ref


def blocks(plan: Plan, *, inverse: bool = True) -> Kernel:
    """The kernel transport_blocks: w, (u,) k, beta -> w_r, (u_r,) beta_r, y, m and, if asked, t."""
    stage = Stage(plan)
    b, form = stage.block, plan.precision
    first = b.let("i_r", b.op("*", number("i_t"), number("BT")))
    w = _transition(stage, "w", first)
    u = w if plan.shared else _transition(stage, "u", first)
    beta = _beta(stage, first, w)
    b.blank()
    row, column = b.let("o_r", Arange("BT")), b.let("o_c", Arange("BT'"))
    lower = b.let("b_lower", b.op(">", row, column))
    gram = b.op("*", product(b, u, relabel(w, "BT'", "BD")), beta)
    a = digits(b, "b_a", b.op("where", lower, gram, 0.0), form.path)
    t = digits(b, "b_t", _inverse(b, plan, a, row, column), form.path)
    b.blank()
    # read again, for want of registers
    load = stage.rows("w" if plan.shared else "u", first, plan.transition, axis="time")
    again = whole(b, given(b, "b_again", load, form.path))
    du = digits(b, "b_du", b.op("*", again, beta), form.path)
    y = digits(b, "b_y", product(b, t, relabel(du, "BT'", "BD")), form.path)
    stage.store_digits("y", first, y, form.path)
    t_once, du_once = narrowed(b, t, form.once), narrowed(b, du, form.once)
    if inverse:
        stage.store_square("t", first, t_once[0], memory(form.once))
    k = given(b, "b_k", stage.rows("k", first, "io", axis="time"), form.once)
    masked = b.op("where", lower, product(b, du_once, relabel(k, "BT'", "BD")), 0.0)
    f = digits(b, "b_f", masked, form.once)
    m = b.let("b_m", product(b, t_once, relabel(f, "BT'", "BT''")))
    stage.store_square("m", first, m, memory(form.once), extents=("BT", "BT''"))
    doc = "T = (I + A)^-1, Y = T D U and M = T sl(D U K^T) of each block of BT tokens."
    grid = (("i_t", tiles_of("BT")), head_axis("kv_head"), ("i_b", number("B")))
    return stage.kernel("transport_blocks", doc, grid)


def _transition(stage: Stage, name: str, first: Expr) -> Digits:
    """A vector of the transitions as products take it; stored."""
    form = stage.plan.precision.path
    load = stage.rows(name, first, stage.plan.transition, axis="time")
    made = given(stage.block, f"b_{name}", load, form)
    # the further digits are made again where they are needed
    stage.store_rows(f"{name}_r", first, made[0], memory(form))
    return made


def _beta(stage: Stage, first: Expr, w: Digits) -> Ref:
    """beta, with what rounding did to |w|^2 taken back; stored."""
    b, plan = stage.block, stage.plan
    beta = b.let("b_beta", stage.numbers("beta", first, axis="time"))
    if plan.shared and plan.precision.path == "f16":
        w_given = Ref("b_w_given", w[0].type)
        exact = Cast(w_given, "f32")
        before = Reduce("sum", b.op("*", exact, exact), "BD")
        after = b.let("b_square", Reduce("sum", b.op("*", w[0], w[0]), "BD"))
        ratio = b.op("where", b.op(">", after, 0.0), b.op("/", before, after), 1.0)
        beta = b.let("b_beta_r", b.op("*", beta, ratio))
    time = b.op("+", first, Arange("BT"))
    stage.store("beta_r", (*PADDED, "kv_head"), "f32", (stage.batch, time, stage.key_head), beta)
    return beta


def _inverse(b: Block, plan: Plan, a: Digits, row: Ref, column: Ref) -> Expr:
    """(I + A)^-1 by merging the inverses of diagonal blocks."""
    form, size = plan.precision.path, 2
    unit = b.op("where", b.op("==", row, column), 1.0, 0.0)
    pairs = b.op("where", _merged(b, row, column, 1), whole(b, a), 0.0)
    x = b.let("b_x2", b.op("-", unit, pairs))
    while size < plan.block:
        now = digits(b, f"b_x{size}_d", x, form)
        half = digits(b, f"b_xa{size}", product(b, now, relabel(a, "BT'", "BT''")), form)
        step = product(b, half, relabel(now, "BT''", "BT'"))
        here = _merged(b, row, column, size)
        size *= 2
        x = b.let(f"b_x{size}", b.op("-", x, b.op("where", here, step, 0.0)))
    return x


def _merged(b: Block, row: Ref, column: Ref, size: int) -> Expr:
    """Rows of the later and columns of the earlier of two neighbours of a size."""
    together = b.op("==", b.op("//", row, 2 * size), b.op("//", column, 2 * size))
    return b.op("and", together, b.op(">", b.op("//", row, size), b.op("//", column, size)))

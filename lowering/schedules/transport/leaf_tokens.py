"""transport_d_tokens: the gradients of k, w, u and beta of each block.

The rows that cross a block, of every head of the group, and the parts of transport_d_products give

    dY = d_y0 - sum X^T g       dM = d_m0 - sum X^T d_loc

and through T = (I + A)^-1, Y = T D U and M = T sl(D U K^T), with no other product of T:

    S = T^T dY      F = T^T dM      dA = -sl(F M^T + S Y^T)      dU~ = S + sl(F) K + dA W
    dk = d_k1 + sum d_loc^T x + sl(F)^T D U
    dw = d_w0 + sum dX^T x    + dA^T D U
    du = D dU~  (u = w: dw += D dU~)         dbeta = u . dU~

Sums run over pairs of blocks one after another, one accumulator at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from gnomon.lowering.schedules.transport import pairs
from gnomon.lowering.schedules.transport.precision import (
    digits,
    given,
    memory,
    product,
    relabel,
)
from gnomon.lowering.schedules.transport.stage import (
    Plan,
    Stage,
    head_axis,
    number,
    scaled,
    tiles_of,
)
from gnomon.lowering.tile import Arange, Expr, Kernel, Load, Reduce, Ref


class Tokens:
    """The kernel under construction."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.stage = plan, Stage(plan)
        self.b, self.form = self.stage.block, plan.precision.once
        b = self.b
        self.first = b.let("i_r", b.op("*", number("i_t"), number("BT")))
        leaf = b.let("i_c", b.op("//", number("i_t"), plan.blocks))
        place = b.let("i_a", b.op("%", number("i_t"), plan.blocks))
        self.pair = b.let("i_p0", pairs.first_pair(b, plan, leaf, place))
        self.count = b.op("-", plan.blocks, place)
        self.has_units = self.form != "f32"
        if self.has_units:
            tensor = self.stage.tensor("unit_k", ("batch", "block", "kv_head"), "f32", "in")
            index = (self.stage.batch, number("i_t"), self.stage.key_head)
            self.unit_k = b.let("unit_k_", Load(tensor, index, (None, None, None)))

    # -- sums over pairs

    @contextmanager
    def each_pair(self) -> Iterator[tuple[Ref, Ref | None]]:
        """The pairs of this block, head after head: their first row, and their unit."""
        b, stage = self.b, self.stage
        with b.loop("i_g", 0, number("G"), 1) as g:
            b.let("i_h", b.op("+", b.op("*", stage.key_head, number("G")), g))
            with b.loop("i_j", 0, self.count, 1) as j:
                pair = b.let("i_pair", b.op("+", self.pair, j))
                row = b.let("i_y", b.op("*", pair, number("BT")))
                unit = None
                if self.has_units:
                    tensor = stage.tensor("unit_q", pairs.TILES, "f32", "in")
                    unit = b.let("unit", Load(tensor, (stage.batch, pair, stage.head), (None,) * 3))
                yield row, unit

    def add(self, acc: Ref, x: Expr, y: Expr, unit: Ref | None, *, sign: str = "+") -> None:
        """Acc +- unit x^T y."""
        b, part = self.b, product(self.b, (x,), (y,))
        b.set(acc, b.op(sign, acc, part if unit is None else b.op("*", part, unit)))

    def started(self, name: str, load: Load) -> Ref:
        """An accumulator that starts as what transport_d_products gave."""
        b = self.b
        value = b.let(f"{name}_0", load)
        return b.let(name, b.op("*", value, self.unit_k if self.has_units else 1.0))

    # -- tiles

    def vectors(self, name: str, extent: str = "BT") -> Load:
        """[extent, BD] that transport_d_products gave."""
        return self.stage.rows(name, self.first, memory(self.form), extent=extent)

    def square(self, name: str, rows: str, columns: str) -> Ref:
        """[rows, columns] of a padded tensor of squares."""
        load = self.stage.square(name, self.first, memory(self.form), extents=(rows, columns))
        return self.b.let(f"b_{name}", load)


def leaf_tokens(plan: Plan) -> Kernel:
    """The kernel transport_d_tokens: dk, dw, (du,) dbeta."""
    made = Tokens(plan)
    stage, b = made.stage, made.b
    d_y = made.started("b_d_y", made.vectors("d_y0"))
    d_m = made.started("b_d_m", stage.square("d_m0", made.first, memory(made.form)))
    with made.each_pair() as (row, unit):
        xs = b.let("b_xs", pairs.load_scores(stage, "xs", row))
        made.add(d_y, xs, b.let("b_gs", pairs.load_vectors(stage, "gs", row)), unit, sign="-")
        d_ls = b.let("b_d_ls", pairs.load_scores(stage, "d_ls", row, "BT'"))
        made.add(d_m, xs, d_ls, unit, sign="-")
    b.blank()
    d_ut, d_a, f, du, unit_t = _through_inverse(made, d_y, d_m)
    b.blank()
    d_k = made.started("b_d_k", made.vectors("d_k1"))
    made.add(d_k, *_crosswise(f, du), unit_t)
    with made.each_pair() as (row, unit):
        d_ls = b.let("b_d_ls", pairs.load_scores(stage, "d_ls", row))
        made.add(d_k, d_ls, b.let("b_qs", pairs.load_vectors(stage, "qs", row)), unit)
    stage.store_rows("dk", made.first, d_k, "io", axis="time")
    b.blank()
    d_w = made.started("b_d_w", made.vectors("d_w0"))
    made.add(d_w, *_crosswise(d_a, du), unit_t)
    if plan.shared:
        b.set(d_w, b.op("+", d_w, d_ut))
    with made.each_pair() as (row, unit):
        d_xs = b.let("b_d_xs", pairs.load_scores(stage, "d_xs", row))
        made.add(d_w, d_xs, b.let("b_qs", pairs.load_vectors(stage, "qs", row)), unit)
    stage.store_rows("dw", made.first, d_w, plan.transition, axis="time")
    if not plan.shared:
        stage.store_rows("du", made.first, d_ut, plan.transition, axis="time")
    doc = "Gradients of keys and of transitions: sums over the rows that cross each block."
    grid = (("i_t", tiles_of("BT")), head_axis("kv_head"), ("i_b", number("B")))
    return stage.kernel("transport_d_tokens", doc, grid)


def _crosswise(x: Ref, y: Ref) -> tuple[Expr, Expr]:
    """x^T y of a square [BT, BT'] and vectors [BT, BD], as [BT, BD]."""
    (left,), (right,) = relabel((x,), "BT'", "BT"), relabel((y,), "BT'", "BD")
    return left, right


def _through_inverse(made: Tokens, d_y: Ref, d_m: Ref) -> tuple[Ref, Ref, Ref, Ref, Ref | None]:
    """D dU~, dA, sl(F), D U and the unit of dA and F; stores dbeta."""
    b, stage, form, first = made.b, made.stage, made.form, made.first
    unit = None
    if made.has_units:
        lines = b.op("maximum", Reduce("max", b.op("abs", d_y), "BD"), _row_size(made, d_m))
        largest = b.let("largest", Reduce("max", b.let("b_max", lines), "BT"))
        d_y, unit = scaled(b, "b_d_y", d_y, largest)
        d_m = b.let("b_d_m_scaled", b.op("*", d_m, b.op("/", 1.0, unit)))
    y_, m_ = digits(b, "b_d_y_d", d_y, form), digits(b, "b_d_m_d", d_m, form)
    t = made.square("t", "BT''", "BT")
    f = b.let("b_f_all", product(b, (t,), relabel(m_, "BT''", "BT'")))
    s = b.let("b_s", product(b, (t,), relabel(y_, "BT''", "BD")))
    lower = b.let("b_lower", b.op(">", Arange("BT"), Arange("BT'")))
    f_all = digits(b, "b_f_d", f, form)
    m = made.square("m", "BT'", "BT''")
    y = stage.single_rows("y", first, extent="BT'")
    left = product(b, digits(b, "b_s_d", s, form), y)
    both = product(b, relabel(f_all, "BT", "BT''"), (m,), left)
    (d_a,) = digits(b, "b_d_a", b.op("where", lower, b.op("neg", both), 0.0), form)
    (f_low,) = digits(b, "b_f", b.op("where", lower, f, 0.0), form)
    k = given(b, "b_k", stage.rows("k", first, "io", axis="time", extent="BT'"), form)
    w = stage.single_rows("w_r", first, extent="BT'")
    d_ut = b.let("b_d_ut", product(b, (d_a,), w, product(b, (f_low,), k, s)))
    u = stage.single_rows("w_r" if made.plan.shared else "u_r", first, "b_u")
    beta = b.let("b_beta", stage.numbers("beta_r", first, axis="padded"))
    d_beta = Reduce("sum", b.op("*", u[0], d_ut), "BD")
    time = b.op("+", first, Arange("BT"))
    index, limits = (stage.batch, time, stage.key_head), (None, number("T"), None)
    value = d_beta if unit is None else b.op("*", d_beta, unit)
    stage.store("dbeta", ("batch", "time", "kv_head"), "f32", index, value, limits)
    (du,) = digits(b, "b_du", b.op("*", u[0], beta), form)
    turned = b.op("*", d_ut, beta if unit is None else b.op("*", beta, unit))
    return b.let("b_d_u", turned), d_a, f_low, du, unit


def _row_size(made: Tokens, x: Ref) -> Expr:
    return Reduce("max", made.b.op("abs", x), "BT'")

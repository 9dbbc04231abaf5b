"""transport_d_products: what keys at the leaf's edge and its product say of each block.

With gk = d_k0 at the right edge of the block and dP_b the gradient of the block's own product,

    d_m0 = -W gk^T       d_y0 = -W dP_b            the kernel transport_d_products_y
    d_k1 = gk            d_w0 = -M gk - Y dP_b^T   the kernel transport_d_products_w

(with `_leaf` behind it where no leaf's product is crossed, so that dP is 0).

In a leaf of one block gk = d_k0 and dP_b = dP. In a leaf of two, P = P_1 P_0, P_b = I - W_b^T Y_b,
and the keys of block 0, k_0 = K_0 - M_0^T W_0 at its own edge, cross P_1:

    block 0:  gk = d_k0 P_1             dP_0 = P_1^T dP
    block 1:  gk = d_k0                 dP_1 = dP P_0^T + d_k0^T k_0      d_k0 of block 0

of which only products with W_b and Y_b are made, from the factors of the other block. Two kernels,
so that each has one accumulator of vectors.
"""

from typing import Literal

from gnomon.lowering.schedules.transport.precision import (
    Digits,
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
    tiles_of,
)
from gnomon.lowering.tile import Expr, Full, Kernel, Reduce, Ref, Type

Part = Literal["y", "w"]


class Products:
    """One of the two kernels under construction."""

    def __init__(self, plan: Plan, part: Part, *, has_product: bool) -> None:
        self.stage = Stage(plan)
        self.part, self.has_product, self.two = part, has_product, plan.blocks == 2
        self.b, self.form = self.stage.block, plan.precision.once
        b = self.b
        self.first = b.let("i_r", b.op("*", number("i_t"), number("BT")))
        self.leaf = b.let("i_c", b.op("//", number("i_t"), plan.blocks))
        self.place = b.let("i_a", b.op("%", number("i_t"), plan.blocks))
        away = b.op("*", b.op("-", 1, b.op("*", self.place, 2)), number("BT"))
        self.other = b.let("i_o", b.op("+", self.first, away)) if self.two else self.first
        self.unit: Ref | None = None

    def fit(self) -> None:
        """The unit in which d_k0 and dP fit f16."""
        if self.form == "f32":
            return
        b, stage = self.b, self.stage
        here = b.let("b_here_all", stage.rows("d_k0", self.first, "f32"))
        lines: Expr = Reduce("max", b.op("abs", here), "BD")
        if self.two:
            there = b.let("b_there_all", stage.rows("d_k0", self.other, "f32"))
            lines = b.op("maximum", lines, Reduce("max", b.op("abs", there), "BD"))
        largest = b.let("largest_k", Reduce("max", b.let("b_max", lines), "BT"))
        if self.has_product:
            dp = b.let("b_dp_max", stage.node("dp", self.leaf, "f32", ("BD", "BD'")))
            columns = b.let("b_max_p", Reduce("max", b.op("abs", dp), "BD'"))
            largest = b.let("largest", b.op("maximum", largest, Reduce("max", columns, "BD")))
        unit = b.op("where", b.op(">", largest, 0.0), b.op("*", largest, 1.0 / 64.0), 1.0)
        self.unit = b.let("unit", unit)
        self.inverse = b.let("inverse", b.op("/", 1.0, self.unit))

    def fitted(self, x: Expr) -> Expr:
        """A gradient in units."""
        return x if self.unit is None else self.b.op("*", x, self.inverse)

    # -- tiles

    def keys(self, name: str, first: Expr, extent: str) -> Digits:
        """d_k0 of a block."""
        load = self.b.let(f"{name}_all", self.stage.rows("d_k0", first, "f32", extent=extent))
        return digits(self.b, name, self.fitted(load), self.form)

    def product_gradient(self, extents: tuple[str, str]) -> Digits:
        """DP of the leaf."""
        load = self.b.let("b_dp_all", self.stage.node("dp", self.leaf, "f32", extents))
        return digits(self.b, "b_dp", self.fitted(load), self.form)

    def rows(self, name: str, as_: str, *, other: bool = False) -> Digits:
        """w_r or y of this block [BT, BD], or of the other one [BT', BD]."""
        first, extent = (self.other, "BT'") if other else (self.first, "BT")
        return self.stage.single_rows(name, first, as_, extent=extent)

    def keys_before(self, w_o: Digits) -> Digits:
        """The keys of block 0 at its right edge, [BT', BD], seen from block 1."""
        b, stage = self.b, self.stage
        load = stage.rows("k", self.other, "io", axis="time", extent="BT'")
        k = given(b, "b_k_o", load, self.form)
        m = b.let(
            "b_m_o", stage.square("m", self.other, memory(self.form), extents=("BT''", "BT'"))
        )
        moved = b.op("-", k[0], product(b, (m,), relabel(w_o, "BT''", "BD")))
        return digits(b, "b_k_moved", moved, self.form)

    def small(self, name: str, x: Expr) -> Digits:
        """A tile as an operand of the next product."""
        return digits(self.b, name, x, self.form)

    def of_other(self, name: str) -> Digits:
        """w_r or y of the other block."""
        return self.rows(name, {"w_r": "b_w_o", "y": "b_y_o"}[name], other=True)

    def cross(self, acc: Ref, x: Digits, met: Digits, moved: Digits) -> None:
        """Acc <- acc - (x met^T) moved: through the steps of the other block."""
        b = self.b
        crossed = self.small("b_crossed", b.op("neg", product(b, x, met)))
        b.set(acc, product(b, crossed, moved, acc))

    # -- parts

    def at_own_edge(self) -> Ref:
        """gk, [BT, BD]."""
        b = self.b
        start = self.keys("b_gk_start", self.first, "BT")
        gk = b.let("b_gk", b.op("+", start[0], 0.0))
        if self.two:
            with b.when("first", b.op("==", self.place, 0)):
                w_o, y_o = self.of_other("w_r"), self.of_other("y")
                self.cross(gk, start, w_o, y_o)
        return gk

    def of_y(self, acc: Ref, w: Digits) -> None:
        """W dP_b into the accumulator."""
        b = self.b
        if self.has_product:
            dp = self.product_gradient(("BD'", "BD"))
            b.set(acc, product(b, relabel(w, "BT", "BD'"), dp, acc))
        if not self.two:
            return
        if self.has_product:
            with b.when("first_p", b.op("==", self.place, 0)):
                w_o, y_o = self.of_other("w_r"), self.of_other("y")
                there = self.small("b_there", product(b, relabel(w_o, "BT'", "BD'"), dp))
                self.cross(acc, w, y_o, there)
        with b.when("second", b.op("==", self.place, 1)):
            w_o = self.of_other("w_r")
            if self.has_product:
                y_o = self.of_other("y")
                self.cross(acc, self.small("b_here", acc), y_o, w_o)
            gk_o = self.keys("b_gk_o", self.other, "BT'")
            met = self.small("b_met", product(b, w, gk_o))
            b.set(acc, product(b, met, self.keys_before(w_o), acc))

    def of_w(self, acc: Ref, y: Digits) -> None:
        """Y dP_b^T into the accumulator."""
        b = self.b
        if self.has_product:
            dp = self.product_gradient(("BD", "BD'"))
            b.set(acc, product(b, relabel(y, "BT", "BD'"), dp, acc))
        if not self.two:
            return
        if self.has_product:
            with b.when("first_p", b.op("==", self.place, 0)):
                w_o, y_o = self.of_other("w_r"), self.of_other("y")
                self.cross(acc, self.small("b_here", acc), w_o, y_o)
        with b.when("second", b.op("==", self.place, 1)):
            w_o = self.of_other("w_r")
            if self.has_product:
                y_o = self.of_other("y")
                there = self.small("b_there", product(b, relabel(y_o, "BT'", "BD'"), dp))
                self.cross(acc, y, w_o, there)
            gk_o = self.keys("b_gk_o", self.other, "BT'")
            met = self.small("b_met", product(b, y, self.keys_before(w_o)))
            b.set(acc, product(b, met, gk_o, acc))


def leaf_products(plan: Plan, part: Part, *, has_product: bool) -> Kernel:
    """The kernel transport_d_products_<part>; `has_product`: dP of leaves is there (2 levels)."""
    made = Products(plan, part, has_product=has_product)
    stage, b, dtype = made.stage, made.b, memory(plan.precision.once)
    made.fit()
    if part == "y" and made.unit is not None:
        index = (stage.batch, number("i_t"), stage.key_head)
        stage.store("unit_k", ("batch", "block", "kv_head"), "f32", index, made.unit)
    gk = made.at_own_edge()
    moving = digits(b, "b_gk_d", gk, plan.precision.once)
    acc = b.let("b_acc", Full(0.0, Type("f32", ("BT", "BD"))))
    if part == "y":
        w = made.rows("w_r", "b_w")
        d_m = b.let("b_d_m", b.op("neg", product(b, w, relabel(moving, "BT'", "BD"))))
        stage.store_square("d_m0", made.first, d_m, dtype)
        made.of_y(acc, w)
        stage.store_rows("d_y0", made.first, b.op("neg", acc), dtype)
    else:
        stage.store_rows("d_k1", made.first, moving[0], dtype)
        m = b.let("b_m", stage.square("m", made.first, dtype))
        made.of_w(acc, made.rows("y", "b_y"))
        b.set(acc, product(b, (m,), relabel(moving, "BT'", "BD"), acc))
        stage.store_rows("d_w0", made.first, b.op("neg", acc), dtype)
    doc = "What keys at the edge of their leaf and its product say of " + (
        "Y and M." if part == "y" else "W and K."
    )
    grid = (("i_t", tiles_of("BT")), head_axis("kv_head"), ("i_b", number("B")))
    name = f"transport_d_products_{part}{'' if has_product else '_leaf'}"
    return stage.kernel(name, doc, grid)

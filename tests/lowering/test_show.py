"""The text of programs and tile programs: brackets only where they are needed, one line a value."""

import pytest
from pair_formulas import AT_KEY, AT_QUERY, COLUMN, DOT, FROM, HIDDEN, ROW, SCALE, TABLE, TO
from tile_builds import kernel, load, offsets, store

import gnomon as gn
from gnomon.dsl.nodes import Constant, Decay, Expr, Lookup, Mask, Sum
from gnomon.lowering.build import Block
from gnomon.lowering.core import Given, Output, Read
from gnomon.lowering.passes.differentiate import apply
from gnomon.lowering.show import expr_text, formula_text, kernel_text, mask_text, stage_text
from gnomon.lowering.tile import (
    Arange,
    Dot,
    ExitIf,
    Full,
    Number,
    Reduce,
    Ref,
    Scatter,
    Tensor,
    Type,
)

X, Y = Ref("x", Type("f32")), Ref("y", Type("f32"))


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (apply("*", DOT, SCALE), "q_i . k_j * scale"),
        (apply("*", SCALE, DOT), "scale * (q_i . k_j)"),
        (apply("-", ROW, apply("-", FROM, TO)), "a[i] - (p_q[i] - p_k[j])"),
        (apply("-", apply("-", ROW, FROM), TO), "a[i] - p_q[i] - p_k[j]"),
        (apply("**", apply("-", AT_QUERY, AT_KEY), 0.5), "(i - j) ** 0.5"),
        (apply("neg", apply("+", ROW, COLUMN)), "-(a[i] + b[j])"),
        (apply("*", ROW, Constant(-2.0)), "a[i] * -2.0"),
        (apply("where", apply("<", ROW, 1.0), ROW, 0.0), "where(a[i] < 1.0, a[i], 0.0)"),
        (Lookup(Read(TABLE), (apply("-", AT_QUERY, AT_KEY),)), "table[i - j]"),
        (Sum(apply("*", ROW, HIDDEN)), "sum_n(a[i] * w)"),
        (apply("*", Given("ds", "pair"), Output(1)), "ds * o_2"),
        (Decay(ROW), "Decay(a[i])"),
    ],
)
def test_formulas(formula: Expr, text: str) -> None:
    assert formula_text(formula) == text


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (gn.causal(), "causal()"),
        (gn.causal(strict=True), "causal(strict)"),
        (gn.window(4) & gn.causal() | gn.first_keys(2), "window(4) & causal() | first_keys(2)"),
        (gn.causal() & (gn.window(4) | gn.first_keys(2)), "causal() & (window(4) | first_keys(2))"),
        (Mask("same_document", (ROW, COLUMN)), "same_document(a[i], b[j])"),
    ],
)
def test_masks(mask: Mask, text: str) -> None:
    assert mask_text(mask) == text


def test_tile_expressions() -> None:
    b = Block(("BM", "BN"))
    assert expr_text(b.op("*", b.op("+", X, Y), X)) == "(x + y) * x"
    assert expr_text(b.op("not", b.op("<", X, Y))) == "not x < y"
    assert expr_text(b.op("+", X, Arange("BM"))) == "x + (0..BM)"
    assert expr_text(b.op("cdiv", X, 2)) == "cdiv(x, 2)"
    assert expr_text(Full(0.0, Type("f32", ("BM",)))) == "full(0.0, [BM])"
    assert expr_text(Number(float("-inf"))) == "-inf"
    score = Ref("b_s", Type("f32", ("BM", "BN")))
    values = Ref("b_v", Type("io", ("BN", "BV")))
    assert expr_text(b.op("*", Dot(score, values), 2.0)) == "b_s @ b_v * 2.0"
    assert expr_text(Reduce("max", score, "BN")) == "max_BN(b_s)"
    o_m = Ref("o_m", Type("i32", ("BM",)))
    assert expr_text(b.op("+", load(o_m), 1.0)) == "(x[o_m < N] else 0) + 1.0"


def test_a_kernel() -> None:
    table = Tensor("table", ("time", "entry"), "f32", "inout")

    def build(b: Block) -> None:
        b.remark("a block of the vector")
        o_m = offsets(b)
        b.add(ExitIf(b.op(">=", Ref("N", Type("i32")), 8)))
        total = b.let("b_y", Full(0.0, Type("f32", ("BM",))))
        b.blank()
        with b.loop("i", 0, Ref("N", Type("i32")), 2):
            b.set(total, b.op("+", total, load(o_m)))
        b.add(Scatter(table, (o_m,), o_m, total, (Ref("N", Type("i32")), None)))
        b.add(store(o_m, total))

    assert kernel_text(kernel(build)).partition("\n\n")[2] == "\n".join(
        [
            "# a block of the vector",
            "o_m: i32 [BM] = i_m * BM + (0..BM)",
            "exit if N >= 8",
            "b_y: f32 [BM] = full(0.0, [BM])",
            "",
            "for i in 0 .. N by 2:",
            "    b_y <- b_y + (x[o_m < N] else 0)",
            "add to table[o_m < N, o_m]: b_y",
            "store y[o_m < N] = b_y",
        ]
    )
    header = kernel_text(kernel(build)).partition("\n\n")[0]
    assert header.splitlines()[:2] == ["kernel made: a test", "  in     x: f32 [time]"]
    assert header.splitlines()[-1] == "  grid   i_m < NM"


def test_the_text_is_the_same_each_time() -> None:
    declaration = gn.catalogue.tapa
    assert stage_text(declaration.node) == stage_text(declaration.bind())

"""Types of tile expressions: shapes made of named extents, element types."""

import pytest

from gnomon.lowering.build import Block
from gnomon.lowering.tile import (
    Arange,
    Cast,
    Dot,
    Expr,
    Full,
    Let,
    Load,
    Number,
    Reduce,
    Ref,
    Relabel,
    Remark,
    Scatter,
    Set,
    Store,
    Tensor,
    Type,
    expressions,
    extent_of,
    names_in,
    operands,
    type_of,
    walk,
)

Q = Tensor("q", ("batch", "time_q", "head", "D0"), "io", "in")
ROWS, WIDE = Arange("BM"), Arange("BD0")
I_B, I_H, T = (Ref(name, Type("i32")) for name in ("i_b", "i_h", "T_q"))
LOAD = Load(Q, (I_B, ROWS, I_H, WIDE), (None, T, None, None))
QUERY = Ref("b_q", Type("io", ("BM", "BD0")))
KEY = Ref("b_k", Type("io", ("BN", "BD0")))
SCORE = Ref("b_s", Type("f32", ("BM", "BN")))


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (QUERY, Type("io", ("BM", "BD0"))),
        (Number(1.0), Type("f32")),
        (ROWS, Type("i32", ("BM",))),
        (Full(0.0, Type("f32", ("BM", "BV"))), Type("f32", ("BM", "BV"))),
        (LOAD, Type("io", ("BM", "BD0"))),
        (Load(Q, (I_B, T, I_H, I_B), (None,) * 4), Type("io")),
        (Dot(QUERY, KEY), Type("f32", ("BM", "BN"))),
        (Dot(KEY, QUERY), Type("f32", ("BN", "BM"))),
        (Dot(SCORE, Ref("b_v", Type("io", ("BN", "BV")))), Type("f32", ("BM", "BV"))),
        (Reduce("sum", SCORE, "BN"), Type("f32", ("BM",))),
        (Reduce("max", SCORE, "BM"), Type("f32", ("BN",))),
        (Cast(SCORE, "io"), Type("io", ("BM", "BN"))),
    ],
    ids=lambda x: type(x).__name__,
)
def test_types(expr: Expr, expected: Type) -> None:
    assert type_of(expr) == expected


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (QUERY, QUERY),  # two shared extents
        (QUERY, Ref("b_v", Type("io", ("BN", "BV")))),  # none
        (QUERY, Ref("b_m", Type("f32", ("BM",)))),  # a vector
    ],
)
def test_a_dot_contracts_the_one_extent_that_both_have(a: Expr, b: Expr) -> None:
    with pytest.raises(TypeError, match="two matrices that share one extent"):
        type_of(Dot(a, b))


def test_an_index_that_repeats_an_extent_has_it_once() -> None:
    """Row tables are gathered at [rows, rows x keys]."""
    table = Tensor("t", ("time_q", "N_t"), "f32", "in")
    entry = Ref("e_t", Type("i32", ("BM", "BN")))
    assert type_of(Load(table, (ROWS, entry), (T, None))) == Type("f32", ("BM", "BN"))


def test_what_has_no_type_is_refused() -> None:
    with pytest.raises(TypeError, match="no type"):
        type_of(Expr())


def test_the_expressions_of_a_statement_and_the_names_in_them() -> None:
    out = Tensor("o", ("time_q",), "f32", "out")
    top = Ref("b_m", Type("f32", ("BM",)))
    assert expressions(Let(top, LOAD)) == (LOAD,)
    assert expressions(Set(top, top)) == (top,)
    assert expressions(Store(out, (ROWS,), top, (T,))) == (ROWS, top, T)
    table = Tensor("t", ("head", "N_t"), "f32", "inout")
    assert expressions(Scatter(table, (I_H,), ROWS, top, (None, T))) == (I_H, ROWS, top, T)
    assert expressions(Remark("nothing")) == ()
    assert names_in(LOAD) == {"i_b", "i_h", "T_q"}
    assert operands(LOAD) == (I_B, ROWS, I_H, WIDE, T)
    assert operands(Dot(QUERY, KEY)) == (QUERY, KEY)


def test_walk_goes_into_loops() -> None:
    b = Block(("BM", "BN"))
    with b.loop("i", 0, T, 1), b.loop("j", 0, T, 1) as j:
        b.let("x", b.op("+", j, 1))
    assert [type(stmt).__name__ for stmt in walk(tuple(b.body))] == ["For", "For", "Let"]


def test_a_relabelled_square_can_meet_itself() -> None:
    square = Ref("b_a", Type("f16", ("BT", "BT'")))
    again = Relabel(square, ("BT'", "BT''"))
    assert type_of(again) == Type("f16", ("BT'", "BT''"))
    assert type_of(Dot(square, again)) == Type("f32", ("BT", "BT''"))
    assert names_in(again) == {"b_a"}
    assert extent_of("BT''") == "BT"

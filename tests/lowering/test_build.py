"""Building tile programs: broadcasting by names, element types, names given once."""

import pytest

from gnomon.lowering.build import Block, lift
from gnomon.lowering.show import expr_text
from gnomon.lowering.tile import Arange, Expr, For, Full, Let, Number, Op, Ref, Type, type_of

ROW = Ref("b_a", Type("f32", ("BM",)))
COLUMN = Ref("b_b", Type("f32", ("BN",)))
SCORE = Ref("b_s", Type("f32", ("BM", "BN")))
WIDE = Ref("b_q", Type("io", ("BM", "BD0")))
TIME = Ref("T_q", Type("i32"))
EXACT = Ref("p", Type("f64", ("BM",)))


@pytest.fixture
def b() -> Block:
    return Block(("BM", "BN"))


@pytest.mark.parametrize(
    ("args", "shape"),
    [
        ((ROW, ROW), ("BM",)),
        ((ROW, 2.0), ("BM",)),
        ((SCORE, ROW), ("BM", "BN")),
        ((COLUMN, SCORE), ("BM", "BN")),
        ((ROW, COLUMN), ("BM", "BN")),
        ((COLUMN, ROW), ("BM", "BN")),  # the kernel's order, not the operands'
        ((WIDE, ROW), ("BM", "BD0")),
        ((TIME, 1), ()),
    ],
)
def test_operands_align_by_the_names_of_their_extents(
    b: Block, args: tuple[Expr, ...], shape: tuple[str, ...]
) -> None:
    assert type_of(b.op("+", *args)).shape == shape


def test_the_stationary_axis_of_keys_comes_first() -> None:
    assert type_of(Block(("BN", "BM")).op("*", ROW, COLUMN)).shape == ("BN", "BM")


def test_only_the_two_axes_of_a_score_tile_meet(b: Block) -> None:
    with pytest.raises(TypeError, match="cannot broadcast"):
        b.op("+", ROW, Ref("b_w", Type("f32", ("BD0",))))
    with pytest.raises(TypeError, match=r"only \('BM', 'BN'\) meet"):
        b.op("+", SCORE, WIDE)


@pytest.mark.parametrize(
    ("fn", "args", "dtype"),
    [
        ("+", (TIME, 1), "i32"),
        ("+", (TIME, 1.0), "f32"),  # a real literal makes an integer real
        ("*", (ROW, 2), "f32"),  # an integer literal does not change a real tile
        ("/", (TIME, 2), "f32"),
        ("//", (TIME, 2), "i32"),
        ("exp", (TIME,), "f32"),
        ("+", (WIDE, 1.0), "f32"),  # tiles of the call's dtype become f32 before arithmetic
        ("-", (EXACT, ROW), "f64"),
        ("<", (ROW, 0.0), "bool"),
        ("and", (Ref("x", Type("bool")), Ref("y", Type("bool"))), "bool"),
        ("where", (Ref("x", Type("bool")), TIME, 0), "i32"),
        ("where", (Ref("x", Type("bool")), ROW, 0.0), "f32"),
    ],
)
def test_element_types(b: Block, fn: str, args: tuple[Expr, ...], dtype: str) -> None:
    assert type_of(b.op(fn, *args)).dtype == dtype


def test_numbers_are_lifted() -> None:
    assert lift(3) == Number(3, "i32")
    assert lift(3.0) == Number(3.0, "f32")
    assert lift(ROW) is ROW


def test_a_name_is_given_once(b: Block) -> None:
    assert b.let("x", b.op("+", TIME, 1)) == Ref("x", Type("i32"))
    with pytest.raises(ValueError, match="the name 'x' is taken"):
        b.let("x", 1)


def test_names_made_in_a_loop_are_free_again(b: Block) -> None:
    for _ in range(2):
        with b.loop("i", 0, TIME, 1) as i:
            b.let("x", b.op("+", i, 1))
    loops = [stmt for stmt in b.body if isinstance(stmt, For)]
    assert [[type(s) for s in loop.body] for loop in loops] == [[Let], [Let]]
    b.let("x", 1)


def test_a_name_from_outside_is_taken_inside(b: Block) -> None:
    b.let("x", 1)
    with pytest.raises(ValueError, match="taken"), b.loop("i", 0, TIME, 1):
        b.let("x", 2)


def test_a_carried_value_keeps_its_shape(b: Block) -> None:
    total = b.let("b_l", Full(0.0, Type("f32", ("BM",))))
    b.set(total, b.op("+", total, ROW))
    with pytest.raises(TypeError, match="b_l has shape"):
        b.set(total, SCORE)


def test_a_loop_holds_what_was_made_inside(b: Block) -> None:
    with b.loop("i", 0, TIME, Ref("BN", Type("i32")), stages=2) as i:
        b.let("o_n", b.op("+", i, Arange("BN")))
    (loop,) = b.body
    assert isinstance(loop, For)
    assert (loop.index, loop.stop, loop.stages) == (i, TIME, 2)
    made = loop.body[0]
    assert isinstance(made, Let)
    assert isinstance(made.value, Op)
    assert made.ref.type == Type("i32", ("BN",))


def test_names_of_the_order_meet_in_its_order() -> None:
    b = Block(("BT", "BT'", "BD"))
    assert type_of(b.op(">", Arange("BT'"), Arange("BT"))).shape == ("BT", "BT'")
    with pytest.raises(TypeError, match="meet in a tile"):
        b.op("+", Arange("BT"), Arange("BM"))


def test_a_condition_is_a_loop_of_one_round_or_none() -> None:
    b = Block(("BM", "BN"))
    with b.when("here", b.op("<", Ref("i", Type("i32")), 3)):
        b.let("x", 1.0)
    (loop,) = b.body
    assert isinstance(loop, For)
    assert expr_text(loop.stop) == "where(i < 3, 1, 0)"
    assert len(loop.body) == 1
    assert "x" not in b.names

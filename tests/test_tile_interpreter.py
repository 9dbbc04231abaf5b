"""The interpreter is the tests' word on what a tile program means: it must see what is wrong."""

import numpy as np
import pytest
from tile_builds import TABLE, N, X, kernel, load, offsets, store
from tile_interpreter import Array, run

from gnomon.lowering.build import Block
from gnomon.lowering.tile import Arange, Dot, ExitIf, Full, Load, Reduce, Ref, Scatter, Type

NUMBERS = {"BM": 4, "BN": 2, "N": 6, "NM": 2}


def memory() -> dict[str, Array]:
    x = np.arange(6, dtype=np.float32)
    return {"x": x, "y": np.full(6, np.nan, np.float32), "table": np.zeros((6, 3), np.float32)}


def test_tiles_past_the_end_are_neither_read_nor_written() -> None:
    def build(b: Block) -> None:
        o_m = offsets(b)
        b.add(store(o_m, b.let("b_x", b.op("+", load(o_m), 1.0))))

    found = memory()
    run(kernel(build), found, NUMBERS)
    assert (found["y"] == np.arange(1, 7)).all()


def test_what_lies_outside_reads_as_the_fill() -> None:
    def build(b: Block) -> None:
        o_m = offsets(b)
        shifted = b.let("o_s", b.op("+", o_m, 3))
        b.add(store(o_m, b.let("b_x", Load(X, (shifted,), (N,), -1.0))))

    found = memory()
    run(kernel(build), found, NUMBERS)
    assert (found["y"] == [3, 4, 5, -1, -1, -1]).all()


@pytest.mark.parametrize(("shift", "what"), [(-1, "negative"), (3, "reaches past")])
def test_a_load_outside_of_memory_is_seen(shift: int, what: str) -> None:
    def build(b: Block) -> None:
        o_m = offsets(b)
        shifted = b.let("o_s", b.op("+", o_m, shift))
        b.add(store(o_m, b.let("b_x", Load(X, (shifted,), (None,)))))

    with pytest.raises(AssertionError, match=what):
        run(kernel(build), memory(), NUMBERS)


def test_two_programs_that_write_one_place_are_seen() -> None:
    def build(b: Block) -> None:
        o_m = b.let("o_m", Arange("BM"))
        b.add(store(o_m, b.let("b_x", load(o_m))))

    with pytest.raises(AssertionError, match="y is written twice"):
        run(kernel(build), memory(), NUMBERS)


def test_a_scatter_sums_what_meets() -> None:
    def build(b: Block) -> None:
        o_m = offsets(b)
        pair = Type("f32", ("BM", "BN"))
        entry = b.let("e", b.op("*", Full(2, Type("i32", ("BM", "BN"))), 1))
        value = b.let("b_v", b.op("+", Full(0.0, pair), load(o_m)))
        b.add(Scatter(TABLE, (o_m,), entry, value, (N, None)))

    found = memory()
    run(kernel(build), found, NUMBERS)
    assert (found["table"] == np.outer(np.arange(6), [0, 0, 2])).all()


def test_a_program_may_have_nothing_to_do() -> None:
    def build(b: Block) -> None:
        o_m = offsets(b)
        b.add(ExitIf(b.op(">", Ref("i_m", Type("i32")), 0)))
        b.add(store(o_m, b.let("b_x", load(o_m))))

    found = memory()
    run(kernel(build), found, NUMBERS)
    assert np.isnan(found["y"]).tolist() == [False] * 4 + [True] * 2


def test_axes_align_by_name_whatever_their_order() -> None:
    """A tile of [keys, rows]: sum_n (x_m + n) by a sum over keys, and by a product with ones."""

    def build(b: Block) -> None:
        o_m = offsets(b)
        tall = b.let("tall", b.op("+", Full(0.0, Type("f32", ("BN", "BM"))), load(o_m)))
        both = b.let("both", b.op("+", tall, Arange("BN")))
        product = b.let("product", Dot(both, Full(1.0, Type("f32", ("BN", "BV")))))
        assert product.type.shape == ("BM", "BV")
        less = b.op("-", Reduce("sum", both, "BN"), Reduce("max", product, "BV"))
        b.add(store(o_m, b.let("b_y", b.op("+", less, Reduce("sum", both, "BN")))))

    found = memory()
    run(kernel(build), found, {**NUMBERS, "BV": 3})
    assert (found["y"] == 2 * np.arange(6) + 1).all()

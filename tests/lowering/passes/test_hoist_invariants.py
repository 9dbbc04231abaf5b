"""What a loop does not change stands in front of it, and nothing else moves."""

from tile_builds import N, kernel, load, offsets, store

from gnomon.lowering.build import Block
from gnomon.lowering.passes.hoist_invariants import hoist_invariants
from gnomon.lowering.tile import Arange, Full, Ref, Type


def test_a_vector_that_no_loop_changes_moves() -> None:
    def before(b: Block) -> None:
        o_m = offsets(b)
        total = b.let("b_y", Full(0.0, Type("f32", ("BM",))))
        with b.loop("i", 0, N, 1):
            x = b.let("b_x", load(o_m))
            b.set(total, b.op("+", total, x))
        b.add(store(o_m, total))

    def after(b: Block) -> None:
        o_m = offsets(b)
        total = b.let("b_y", Full(0.0, Type("f32", ("BM",))))
        x = b.let("b_x", load(o_m))
        with b.loop("i", 0, N, 1):
            b.set(total, b.op("+", total, x))
        b.add(store(o_m, total))

    assert hoist_invariants(kernel(before)) == kernel(after)


def test_out_of_two_loops_at_once_with_what_it_needs() -> None:
    def before(b: Block) -> None:
        o_m = offsets(b)
        with b.loop("i", 0, N, 1), b.loop("j", 0, N, 1):
            x = b.let("b_x", load(o_m))
            b.add(store(o_m, b.let("b_y", b.op("exp", x))))

    def after(b: Block) -> None:
        o_m = offsets(b)
        x = b.let("b_x", load(o_m))
        y = b.let("b_y", b.op("exp", x))
        with b.loop("i", 0, N, 1), b.loop("j", 0, N, 1):
            b.add(store(o_m, y))

    assert hoist_invariants(kernel(before)) == kernel(after)


def test_two_loops_share_a_value() -> None:
    def before(b: Block) -> None:
        o_m = offsets(b)
        for _ in range(2):
            b.remark("a loop")
            with b.loop("i", 0, N, 1):
                b.add(store(o_m, b.let("b_x", load(o_m))))

    def after(b: Block) -> None:
        o_m = offsets(b)
        x = b.let("b_x", load(o_m))
        for _ in range(2):
            b.remark("a loop")
            with b.loop("i", 0, N, 1):
                b.add(store(o_m, x))

    assert hoist_invariants(kernel(before)) == kernel(after)


def test_one_name_for_two_values_stays_inside() -> None:
    """A third loop reads the first value again: the second must not stand in its way."""

    def build(b: Block) -> None:
        o_m = offsets(b)
        for fn in ("exp", "log", "exp"):
            with b.loop("i", 0, N, 1):
                b.add(store(o_m, b.let("b_x", b.op(fn, load(o_m)))))

    assert hoist_invariants(kernel(build)) == kernel(build)


def test_what_depends_on_the_loop_stays() -> None:
    def build(b: Block) -> None:
        o_m = offsets(b)
        with b.loop("i", 0, N, 1) as i:
            shifted = b.let("o_i", b.op("+", o_m, i))
            b.add(store(shifted, b.let("b_x", load(shifted))))

    assert hoist_invariants(kernel(build)) == kernel(build)


def test_what_depends_on_a_carried_value_stays() -> None:
    def build(b: Block) -> None:
        o_m = offsets(b)
        top = b.let("b_m", Full(0.0, Type("f32", ("BM",))))
        with b.loop("i", 0, N, 1):
            b.add(store(o_m, b.let("b_e", b.op("exp", top))))
            b.set(top, b.op("+", top, 1.0))

    assert hoist_invariants(kernel(build)) == kernel(build)


def test_a_carried_value_starts_where_it_stands() -> None:
    """An inner sum starts at 0 in every turn of the outer loop."""

    def build(b: Block) -> None:
        o_m = offsets(b)
        with b.loop("i", 0, N, 1):
            total = b.let("b_sum", Full(0.0, Type("f32", ("BM",))))
            with b.loop("j", 0, N, 1) as j:
                b.set(total, b.op("+", total, j))
            b.add(store(o_m, total))

    assert hoist_invariants(kernel(build)) == kernel(build)


def test_a_whole_tile_stays() -> None:
    """A score tile held over a loop would cost more memory than it saves work."""

    def build(b: Block) -> None:
        o_m = offsets(b)
        with b.loop("i", 0, N, 1):
            tile = b.let("b_s", b.op("*", o_m, Arange("BN")))
            b.add(store(o_m, Ref("b_x", Type("f32", ("BM",)))))
            assert tile.type.shape == ("BM", "BN")

    assert hoist_invariants(kernel(build)) == kernel(build)

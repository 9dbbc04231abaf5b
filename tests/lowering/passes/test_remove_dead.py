"""Values that reach no store go, with the remarks and blank lines that stood over them."""

from tile_builds import N, kernel, load, offsets, store

from gnomon.lowering.build import Block
from gnomon.lowering.passes.remove_dead import remove_dead
from gnomon.lowering.tile import ExitIf, Full, Ref, Type


def plain(b: Block) -> None:
    o_m = offsets(b)
    b.add(store(o_m, b.let("b_x", load(o_m))))


def test_a_chain_that_nobody_reads_goes() -> None:
    def before(b: Block) -> None:
        o_m = offsets(b)
        dead = b.let("b_a", b.op("exp", load(o_m)))
        b.let("b_b", b.op("+", dead, 1.0))
        b.add(store(o_m, b.let("b_x", load(o_m))))

    assert remove_dead(kernel(before)) == kernel(plain)


def test_a_sum_that_only_feeds_itself_goes_with_its_loop() -> None:
    def before(b: Block) -> None:
        o_m = offsets(b)
        total = b.let("b_sum", Full(0.0, Type("f32", ("BM",))))
        b.remark("over a loop that goes")
        with b.loop("i", 0, N, 1):
            b.remark("inside")
            b.set(total, b.op("+", total, 1.0))
        b.add(store(o_m, b.let("b_x", load(o_m))))

    assert remove_dead(kernel(before)) == kernel(plain)


def test_a_carried_value_that_is_stored_stays() -> None:
    def build(b: Block) -> None:
        o_m = offsets(b)
        total = b.let("b_sum", Full(0.0, Type("f32", ("BM",))))
        with b.loop("i", 0, N, 1):
            b.set(total, b.op("+", total, 1.0))
        b.add(store(o_m, total))

    assert remove_dead(kernel(build)) == kernel(build)


def test_what_bounds_a_loop_or_ends_a_program_is_read() -> None:
    def build(b: Block) -> None:
        o_m = offsets(b)
        first = b.let("first", b.op("*", Ref("i_m", Type("i32")), 2))
        b.add(ExitIf(b.op(">=", first, N)))
        stop = b.let("stop", b.op("+", first, 2))
        with b.loop("i", first, stop, 1) as i:
            b.add(store(o_m, b.let("b_x", b.op("+", load(o_m), i))))

    assert remove_dead(kernel(build)) == kernel(build)


def test_blank_lines_and_remarks_are_tidied() -> None:
    def before(b: Block) -> None:
        b.blank()
        o_m = offsets(b)
        b.blank()
        b.blank()
        b.remark("over a blank line")
        b.blank()
        b.add(store(o_m, b.let("b_x", load(o_m))))
        b.blank()
        b.remark("over nothing")

    def after(b: Block) -> None:
        o_m = offsets(b)
        b.blank()
        b.add(store(o_m, b.let("b_x", load(o_m))))

    assert remove_dead(kernel(before)).body == kernel(after).body


def test_a_clean_kernel_is_equal_to_itself() -> None:
    assert remove_dead(kernel(plain)) == kernel(plain)

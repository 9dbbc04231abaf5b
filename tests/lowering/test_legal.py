"""A pass that breaks its program is named at once: each rule of `legal.py` broken in one place."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from pair_formulas import COLUMN, DOT, FROM, ROW, TABLE, K, Q, softmax, stream
from tile_builds import BM, N, X, Y, kernel, load, offsets, store
from tile_builds import TABLE as ENTRIES

import gnomon as gn
from gnomon.dsl.errors import CompilerBug
from gnomon.dsl.nodes import Decay, Expr, Lookup, Mask
from gnomon.lowering import pipelines
from gnomon.lowering.build import Block
from gnomon.lowering.core import Attention, Given, Output, PairDot, Program, Read
from gnomon.lowering.legal import verify_kernel, verify_program
from gnomon.lowering.passes.differentiate import apply
from gnomon.lowering.pipelines import AttentionPass, KernelPass, lower
from gnomon.lowering.tile import Full, Kernel, Let, Load, Op, Ref, Relabel, Scatter, Store, Type

FIRST = Output(0)
GOOD = softmax(apply("+", DOT, apply("*", ROW, COLUMN)))


def program(attention: Attention, epilogue: Expr = FIRST) -> Program:
    return Program(gn.catalogue.nope.node, (attention,), epilogue, positions=False)


def test_a_good_program_is_given_back() -> None:
    made = program(GOOD)
    assert verify_program(made, "split_prologue") is made


@pytest.mark.parametrize(
    ("attention", "what"),
    [
        (replace(GOOD, weight=Decay(ROW)), "a pair formula holds Decay"),
        (replace(GOOD, weight=Given("ds", "pair")), "a pair formula holds Given"),
        (replace(GOOD, weight=FROM), "the stream p_q is not among the attention's"),
        (replace(GOOD, row_term=COLUMN), "the row term reads a key"),
        (softmax(Lookup(ROW, (COLUMN,))), "a look-up in a, which is no table"),
        (softmax(PairDot(K, Q)), "a dot of column k and row q"),
        (softmax(apply("+", ROW, Read(stream("a", "column")))), "two streams of one name"),
        (
            softmax(ROW, Mask("same_document", (Read(TABLE), Read(TABLE)))),
            "the stream table is not among the attention's",
        ),
        (
            softmax(Read(replace(stream("b", "row"), value=COLUMN.stream.value))),
            "the stream b holds a column value",
        ),
    ],
)
def test_a_program_out_of_its_form(attention: Attention, what: str) -> None:
    with pytest.raises(CompilerBug, match=what) as caught:
        verify_program(program(attention), "drop_row_constants")
    assert caught.value.stage == "drop_row_constants"


def test_a_value_of_the_row_is_given_after_its_pass() -> None:
    shifted = softmax(apply("-", DOT, Given("row_max", "row")))
    assert verify_program(program(shifted), "rescale_ratio").attentions == (shifted,)


def test_an_epilogue_that_still_attends_or_reads_what_is_not_there() -> None:
    with pytest.raises(CompilerBug, match="the epilogue holds Softmax"):
        verify_program(program(GOOD, gn.catalogue.nope.node.output), "split_prologue")
    with pytest.raises(CompilerBug, match="reads o_2 of 1 attentions"):
        verify_program(program(GOOD, Output(1)), "split_prologue")


# ---- tile programs


def plain(b: Block) -> None:
    o_m = offsets(b)
    b.add(store(o_m, b.let("b_x", load(o_m))))


def unread(b: Block) -> None:
    plain(b)
    b.let("b_y", 1)


def unknown(b: Block) -> None:
    b.add(store(offsets(b), Ref("b_x", Type("f32", ("BM",)))))


def left_its_loop(b: Block) -> None:
    o_m = offsets(b)
    with b.loop("i", 0, N, 1):
        x = b.let("b_x", load(o_m))
    b.add(store(o_m, x))


def twice(b: Block) -> None:
    plain(b)
    b.add(Let(Ref("b_x", Type("i32")), BM))


def shadowed(b: Block) -> None:
    plain(b)
    with b.loop("i", 0, N, 1):
        b.add(Let(Ref("b_x", Type("i32")), BM))


def index_taken(b: Block) -> None:
    plain(b)
    with b.loop("b_x", 0, N, 1):
        b.let("b_y", 1)


def other_type(b: Block) -> None:
    b.add(Let(Ref("b_x", Type("f32")), BM))


def carried_unknown(b: Block) -> None:
    b.set(Ref("b_x", Type("i32")), BM)


def written_input(b: Block) -> None:
    o_m = offsets(b)
    b.add(Store(X, (o_m,), b.let("b_x", load(o_m)), (N,)))


def read_output(b: Block) -> None:
    o_m = offsets(b)
    b.let("b_x", Load(Y, (o_m,), (N,)))


def scattered_output(b: Block) -> None:
    o_m = offsets(b)
    out = replace(ENTRIES, mode="out")
    b.add(Scatter(out, (o_m,), o_m, b.let("b_x", load(o_m)), (N, None)))


def too_few_places(b: Block) -> None:
    b.let("b_x", Load(X, (), ()))


def grown_operand(b: Block) -> None:
    o_m = offsets(b)
    x = b.let("b_x", Full(0.0, Type("f32", ("BM", "BN"))))
    b.let("b_y", Op("exp", (x,), ("BM",), "f32"))
    b.add(store(o_m, x))


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (unread, "nobody reads b_y"),
        (unknown, "b_x is read before it is given"),
        (left_its_loop, "b_x is read before it is given"),
        (twice, "b_x is given twice"),
        (shadowed, "b_x is given twice"),
        (index_taken, "b_x is given twice"),
        (other_type, "b_x is Type"),
        (carried_unknown, "b_x changes before it is given"),
        (written_input, "store of x, which is in"),
        (read_output, "load of y, which is out"),
        (scattered_output, "scatter of table, which is no parameter"),
        (too_few_places, "load of x: 0 places for 1 axes"),
        (grown_operand, "has an operand of shape"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_tile_program_out_of_its_form(build: Callable[[Block], None], what: str) -> None:
    with pytest.raises(CompilerBug, match=what) as caught:
        verify_kernel(kernel(build), "remove_dead")
    assert caught.value.stage == "remove_dead"


def test_a_good_kernel_is_given_back() -> None:
    made = kernel(plain)
    assert verify_kernel(made, "remove_dead") is made
    assert verify_kernel(kernel(unread), "schedule") == kernel(unread)


# ---- always on


def test_a_broken_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_the_streams(attention: Attention) -> Attention:
        return replace(attention, streams=())

    def lose_the_first_line(made: Kernel) -> Kernel:
        return replace(made, body=made.body[1:])

    with monkeypatch.context() as patch:
        passes = (AttentionPass("rescale_ratio", "", lose_the_streams),)
        patch.setattr(pipelines, "ATTENTION_PASSES", passes)
        with pytest.raises(CompilerBug, match=r"\(in rescale_ratio\)"):
            lower(gn.catalogue.nope.node)
    passes_of_kernels = (KernelPass("hoist_invariants", "", lose_the_first_line),)
    monkeypatch.setattr(pipelines, "KERNEL_PASSES", passes_of_kernels)
    with pytest.raises(CompilerBug, match=r"\(in hoist_invariants\)"):
        lower(gn.catalogue.nope.node)


def test_a_relabelled_tile_keeps_its_extents() -> None:
    def build(b: Block) -> None:
        o_m = offsets(b)
        b.let("b_y", Relabel(b.let("b_x", load(o_m)), ("BN'",)))

    with pytest.raises(CompilerBug, match=r"b_x of shape .* goes on as"):
        verify_kernel(kernel(build), "schedule")

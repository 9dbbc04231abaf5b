"""Streams are called what they are in the variant; no name is taken twice."""

import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gnomon as gn
from gnomon.dsl.canonical import canonical
from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.nodes import Apply, At, Builtin, Constant, Expr, Input, PrefixSum, Width
from gnomon.lowering.passes.name_streams import stream_name
from gnomon.lowering.passes.split_prologue import split_prologue

GATE = Input("log_f", "token", "Head", (), "real")
SLOPE = Input("slope", "constant", "Head", (), "real")
W = Input("w", "token", None, (Width.of("d"),), "real")
HEAD = Builtin("head")
RSQRT_DIM = Apply("**", (Builtin("dim", Width.of("d")), Constant(-0.5)))


@pytest.mark.parametrize(
    ("value", "place", "role", "hint", "name"),
    [
        (Input("q", "row", "Head", (Width.of("d"),), "real"), "row", "dot", "", "q"),
        (
            At(Input("w", "token", None, (Width.of("d"),), "real"), "column"),
            "column",
            "dot",
            "",
            "k",
        ),
        (PrefixSum(GATE, inclusive=True), "row", "prefix", "", "log_f_sum_q"),
        (PrefixSum(GATE, inclusive=True), "column", "prefix", "", "log_f_sum_k"),
        (PrefixSum(Constant(1.0), inclusive=True), "row", "prefix", "", "prefix_sum_q"),
        (SLOPE, "constant", "scalar", "", "slope"),
        (At(GATE, "row"), "row", "scalar", "", "log_f_q"),
        (Apply("exp", (At(GATE, "column"),)), "column", "scalar", "", "log_f_term_k"),
        (Apply("exp", (SLOPE,)), "constant", "scalar", "", "slope_term"),
        (Apply("exp", (HEAD,)), "constant", "scalar", "", "slope"),
        (Apply("exp", (Constant(1.0),)), "constant", "scalar", "", "constant"),
        (RSQRT_DIM, "constant", "host", "", "scale"),
        (Builtin("dim", Width.of("d")), "constant", "host", "", "factor"),
        (GATE, "row", "scalar", "sink", "sink"),
        (GATE, "row", "table", "blocks", "blocks"),
        (GATE, "column", "scalar", "document", "document_k"),
        (Apply("exp", (SLOPE,)), "constant", "table", "", "slope_table"),
        (Apply("exp", (At(GATE, "row"),)), "row", "table", "", "log_f_row_q"),
    ],
)
def test_a_name_says_what_it_is(value: Expr, place: str, role: str, hint: str, name: str) -> None:
    assert stream_name(value, place, role, hint, set()) == name


def test_a_taken_name_gets_a_number() -> None:
    q = Input("q", "row", "Head", (Width.of("d"),), "real")
    assert stream_name(q, "row", "dot", "", {"q"}) == "q_2"
    assert stream_name(q, "row", "dot", "", {"q", "q_2"}) == "q_3"


@pytest.mark.parametrize("name", ["v", "o", "lse", "delta", "T_q", "H", "cu_seqlens_q", "torch"])
def test_what_a_kernel_has_itself_is_never_a_stream(name: str) -> None:
    given_name = Input(name, "constant", "Head", (), "real")
    assert stream_name(given_name, "constant", "scalar", "", set()) == f"{name}_2"


@given(st.sets(st.sampled_from(["slope", "slope_2", "slope_3", "slope_5"])))
def test_whatever_is_taken_a_name_is_new(taken: set[str]) -> None:
    assert stream_name(SLOPE, "constant", "scalar", "", taken) not in taken


def test_every_stream_of_the_catalogue_has_a_python_name_of_its_own() -> None:
    for entry in gn.catalogue.ENTRIES:
        if entry.declaration is None:
            continue
        try:
            program = split_prologue(canonical(entry.declaration.node))
        except UnsupportedError:
            continue
        for attention in program.attentions:
            names = [stream.name for stream in attention.streams]
            assert len(set(names)) == len(names)
            assert all(n.isidentifier() and not keyword.iskeyword(n) for n in names)

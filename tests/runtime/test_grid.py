"""The grid of calls covers what a kernel may get wrong."""

import pytest

import gnomon as gn
from gnomon.runtime.grid import Case, cases


def named(found: tuple[Case, ...], word: str) -> list[Case]:
    return [case for case in found if word in case.name]


def test_fox_meets_every_contract_in_four_forms_of_module() -> None:
    found = cases(gn.catalogue.fox.node)
    forms = {(case.dtype, case.packed is not None) for case in found}
    assert forms == {("fp32", False), ("fp32", True), ("bf16", False), ("fp16", False)}
    shapes = [case.shape for case in found]
    assert {1, 17, 64, 65, 130} <= {shape.time for shape in shapes}
    assert {1, 2, 4} <= {shape.heads // shape.kv_heads for shape in shapes}
    assert any(case.time_q < case.shape.time for case in found)
    assert any(shape.value_dim not in (None, shape.dim) for shape in shapes)
    packed = [case.packed for case in found if case.packed is not None]
    assert all(0 in queries and 0 in keys for queries, keys in packed)
    assert any(queries != keys for queries, keys in packed)
    for flag in ("strided", "expanded", "far", "lse"):
        assert any(getattr(case, flag) for case in found), flag


def test_quick_is_fp32_alone() -> None:
    found = cases(gn.catalogue.fox.node, quick=True)
    assert {case.dtype for case in found} == {"fp32"}
    assert named(found, "far field")


def test_more_queries_than_keys_only_where_no_input_has_a_row_for_each_token() -> None:
    more = "65 queries, 17 keys"
    assert named(cases(gn.catalogue.tapa.node), more)
    assert not named(cases(gn.catalogue.fox.node), more)
    assert not named(cases(gn.catalogue.m_rope.node), more)


def test_positions_are_given_where_a_formula_reads_them() -> None:
    assert [case.name for case in cases(gn.catalogue.rope.node) if case.positions]
    assert not [case for case in cases(gn.catalogue.fox.node) if case.positions]


@pytest.mark.parametrize(("name", "edge"), [("sliding_window", 4096), ("streaming", 4096)])
def test_a_long_window_has_a_case_at_its_edge(name: str, edge: int) -> None:
    (case,) = named(cases(gn.catalogue.find(name).node), "edge")
    first = case.shape.time - case.time_q
    assert first < edge < case.shape.time
    assert not named(cases(gn.catalogue.fox.node), "edge")


def test_the_interpreter_gets_small_cases_and_no_bf16() -> None:
    found = cases(gn.catalogue.fox.node, "interpreter")
    assert {case.dtype for case in found} == {"fp32", "fp16"}
    assert max(case.shape.time for case in found) <= 40


def test_channels_are_a_number_that_the_formula_takes() -> None:
    @gn.variant
    def thirds(q, k):  # type: ignore[no-untyped-def]
        "a third of the channels"
        (a, _), (b, _) = gn.split(q, 1 / 3), gn.split(k, 1 / 3)
        return gn.softmax(gn.dot(a, b), mask=gn.causal())

    assert {case.shape.dim for case in cases(thirds.node)} == {24}

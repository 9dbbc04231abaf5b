"""`gnomon list`: the rows of the catalogue, and what each lowers to."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import text

import gnomon as gn
from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.nodes import Variant
from gnomon.lowering.pipelines import to_program
from gnomon.runtime import stages, targets

FIXED = ("path", "path_fox", "path_fox_fla", "fox", "tapa", "tapa_linear", "alibi", "rope")


@pytest.fixture(scope="module", autouse=True)
def one_compiler() -> Iterator[None]:
    """The compiler of these tests is the one that they began with, whoever edits its sources."""
    stamp = targets.compiler_stamp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "compiler_stamp", lambda: stamp)
        yield


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text("list", "--json"))
    return found


def test_72_rows_are_declared_and_8_refused(rows: list[dict[str, Any]]) -> None:
    declared = {row["row"] for row in rows if row["refused"] is None}
    refused = {row["row"]: row["refused"] for row in rows if row["refused"] is not None}
    assert (len(declared), len(refused)) == (72, 8)
    assert sorted(declared | set(refused)) == list(range(1, 81))
    assert refused[22].startswith("law 'heads do not meet'")
    assert {row["name"] for row in rows}.issuperset(FIXED)


def test_an_object_has_what_a_program_reads(rows: list[dict[str, Any]]) -> None:
    fox = next(row for row in rows if row["name"] == "fox")
    assert {key: fox[key] for key in ("row", "formula", "inputs", "refused")} == {
        "row": 16,
        "formula": "q_i . k_j / sqrt(d) + sum_{s=j+1..i} log f_s",
        "inputs": {"log_f": "[batch, time_k, Head]"},
        "refused": None,
    }
    assert "2503.02130" in fox["source"]
    assert {"numba", "triton"} <= set(fox["targets"])


def test_targets_are_those_that_the_lowering_takes(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["refused"] is not None:
            assert row["targets"] == []
            continue
        reason = refused_by_lowering(row["name"])
        assert {*row["targets"], *row["printed"], *row["unsupported"]} == set(targets.NAMES)
        if reason:
            assert set(row["unsupported"].values()) == {reason}
        else:
            assert {"numba", "triton"} <= set(row["targets"])


def refused_by_lowering(name: str) -> str:
    try:
        to_program(getattr(gn.catalogue, name).node)
    except UnsupportedError as error:
        return error.what
    return ""


@pytest.mark.parametrize("target", ["numba", "triton", "tilelang"])
def test_no_printer_meets_a_bug(rows: list[dict[str, Any]], target: str) -> None:
    reasons = {row["name"]: row["unsupported"].get(target, "") for row in rows}
    assert [x for x in reasons.items() if x[1].startswith("bug")] == []


def test_at_least_45_rows_run_today(rows: list[dict[str, Any]]) -> None:
    assert len({row["row"] for row in rows if "numba" in row["targets"]}) >= 45


def test_what_was_found_once_is_remembered(
    rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "try_targets", lambda _: pytest.fail("lowered again"))
    assert json.loads(text("list", "--json")) == rows


def test_a_changed_compiler_is_asked_again(
    rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(node: Variant) -> targets.Verdict:
        asked.append(node.name)
        return {}

    monkeypatch.setattr(targets, "compiler_stamp", lambda: "another")
    monkeypatch.setattr(targets, "_write", lambda *_: None)
    monkeypatch.setattr(targets, "try_targets", ask)
    text("list")
    assert len(asked) > 72


def test_a_bug_in_one_printer_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(target: str, *_: object) -> str:
        if target == "gluon":
            raise AssertionError("no layout")
        return ""

    monkeypatch.setattr(stages, "print_kernels", broken)
    verdict = targets.try_targets(gn.catalogue.nope.node)
    assert verdict == {
        "numba": "",
        "triton": "",
        "tilelang": "",
        "gluon": "bug in the compiler: AssertionError: no layout",
    }


def test_a_reader_gets_families_formulas_and_laws(rows: list[dict[str, Any]]) -> None:
    shown = text("list")
    assert "72 rows declared under" in shown
    assert "\n     additive bias" in shown
    assert "law 'one pair at a time'" in shown
    assert all(f" {row['name']} " in shown for row in rows)


def test_words_and_targets_choose_rows() -> None:
    found = json.loads(text("list", "LeRope", "forgetting", "--json"))
    assert [row["name"] for row in found] == ["fox"]
    lowered = json.loads(text("list", "cope", "--on", "numba", "--json"))
    assert "cope" not in [row["name"] for row in lowered]

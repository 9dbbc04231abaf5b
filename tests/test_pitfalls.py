"""tests/pitfalls.csv: what broke in attention kernels elsewhere, and which test of ours covers it.

Every report of the list of public issues is a line. `covered_by` names tests; `later` names the
feature that a report needs, where this package does not have it yet.
"""

import ast
import csv
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COLUMNS = ["kind", "id", "title", "covered_by", "later"]
REPORTS = {
    "01 dead rows": 10,
    "02 ragged lengths": 9,
    "03 lengths 0 and 1": 8,
    "04 q_len != kv_len": 5,
    "05 head dims": 8,
    "06 value dims": 2,
    "07 groups of heads": 3,
    "08 32-bit offsets": 10,
    "09 strides": 10,
    "10 numerics": 11,
    "11 large phases": 4,
    "12 learned parameters": 9,
    "13 second derivatives": 3,
    "14 torch.compile": 14,
    "15 autocast": 5,
    "16 checkpointing": 6,
    "17 graphs, streams, threads": 7,
    "18 packed sequences": 6,
    "19 shared memory": 5,
    "20 tuning": 8,
    "21 caches": 7,
    "22 versions": 10,
    "23 imports": 5,
    "24 determinism": 4,
    "25 train and decode": 3,
}
ON_THE_CPU = {*(f"{kind:02}" for kind in (*range(1, 8), *range(9, 13), 18))}
ON_A_GPU = {*(f"{kind:02}" for kind in (*range(1, 14), 18, 24))}
OF_THE_TUNER = {"19", "20", "21", "22"}
"""What a card can hold, tuning, caches and versions: most of it is tried without a GPU."""
BEFORE_ANY_KERNEL = {
    "Robbyant/lingbot-va#87",
    "Dao-AILab/flash-attention#1661",
    "Dao-AILab/flash-attention#746",
}
"""Reports about calls that are refused, or options that are read, on any device alike."""


def lines() -> list[dict[str, str]]:
    with (ROOT / "tests" / "pitfalls.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


LINES = lines()


@cache
def functions_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_report_has_a_line() -> None:
    assert all(list(line) == COLUMNS for line in LINES)
    assert Counter(line["kind"] for line in LINES) == {k[:2]: n for k, n in REPORTS.items()}
    assert len({(line["kind"], line["id"]) for line in LINES}) == len(LINES) == 172
    assert all("#" in line["id"] and line["title"] for line in LINES)


def test_every_report_is_covered_or_waits_for_something() -> None:
    bare = [line["id"] for line in LINES if not line["covered_by"] and not line["later"]]
    assert not bare


def test_what_can_be_tried_on_the_cpu_is() -> None:
    """Of the kinds that the CPU kernels must survive only these wait altogether."""
    waiting = [
        line["later"] for line in LINES if line["kind"] in ON_THE_CPU and not line["covered_by"]
    ]
    assert Counter(text.split()[0].strip(":") for text in waiting) == {
        "transports": 3,
        "paged": 1,
        "split-KV": 1,
        "reports": 1,
    }


def test_what_kernels_of_a_gpu_must_survive_is_tried_there_or_waits() -> None:
    """Each report of these kinds names a test of tests/kernels, or the feature that it needs."""
    lines = [line for line in LINES if line["kind"] in ON_A_GPU]
    missing = {
        line["id"].split()[0]
        for line in lines
        if "tests/kernels/" not in line["covered_by"]
        and "interpreted" not in line["covered_by"]
        and not line["later"]
    }
    assert missing == BEFORE_ANY_KERNEL
    waiting = [line["later"] for line in lines if not line["covered_by"]]
    assert Counter(text.partition(":")[0] for text in waiting) == {
        "transports": 4,
        "paged cache": 2,
        "split-KV decode": 1,
        "reports of the backend that ran, on a GPU": 1,
    }


def test_what_a_tuner_must_survive_is_tried() -> None:
    """Of tuning, caches and versions one report waits, for a kind of kernel that is not there."""
    lines = [line for line in LINES if line["kind"] in OF_THE_TUNER]
    assert len(lines) == 30
    waiting = [line["later"] for line in lines if not line["covered_by"]]
    assert waiting == ["optional states of decode kernels"]
    assert not [line["id"] for line in LINES if "tuner" in line["later"]]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["id"].split()[0])
def test_named_tests_exist(line: dict[str, str]) -> None:
    for name in filter(None, line["covered_by"].split(";")):
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), path
        assert function.startswith("test_"), name
        assert function in functions_in(path), name

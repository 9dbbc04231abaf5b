"""Which record a target speaks of, and whether it is met."""

from typing import Any

import pytest

from gnomon.benchmarks.shapes import problem_of
from gnomon.benchmarks.targets import must_of, verdicts


def record(
    variant: str,
    implementation: str,
    ms: float | None,
    *,
    which: str = "fwd",
    length: int = 8192,
    dim: int = 128,
    groups: int = 1,
) -> dict[str, Any]:
    sizes = problem_of(length, dim, groups).fields()
    named = {"variant": variant, "implementation": implementation, "dtype": "bf16"}
    return {**named, **sizes, "pass": which, "median_ms": ms}


@pytest.mark.parametrize(
    ("variant", "which", "wide", "narrow"),
    [
        ("nope", "fwd", 1.20, 1.20),
        ("fox", "fwd", 1.20, 1.20),
        ("alibi", "fwd", 1.20, 1.20),
        ("rope", "fwd", 1.25, 1.25),
        ("fox", "fwd_bwd", 1.30, 1.30),
        ("fox_pruned", "fwd_bwd", 0.70, 0.85),
        ("tapa", "fwd", 1.45, 1.65),
        ("tapa", "fwd_bwd", 1.80, 2.00),
        ("t5", "fwd_bwd", 1.15, 1.15),
        ("kerple_log", "fwd_bwd", 1.15, 1.15),
    ],
)
def test_the_musts(variant: str, which: str, wide: float, narrow: float) -> None:
    for dim, ratio in ((128, wide), (64, narrow)):
        must = must_of(record(variant, "gnomon", 1.0, which=which, dim=dim))
        assert must is not None
        assert must.ratio[dim] == ratio


def test_records_of_which_no_target_speaks() -> None:
    assert must_of(record("fox", "flex", 1.0)) is None
    assert must_of(record("nope", "gnomon", 1.0, which="fwd_bwd")) is None
    assert must_of(record("fox", "gnomon", 1.0, length=32768)) is None, "another size"
    assert must_of(record("fox", "gnomon", 1.0, groups=4)) is None
    assert must_of(record("fox", "gnomon", 1.0, length=2048)) is not None
    pruned = record("fox_pruned", "gnomon", 1.0, which="fwd_bwd", length=2048)
    assert must_of(pruned) is None


def test_met_and_missed() -> None:
    found = verdicts(
        [
            record("fox", "gnomon", 1.203),
            record("tapa", "gnomon", 1.6),
            record("rope", "gnomon", None),
            record("nope", "cudnn", 1.0),
            record("nope", "cudnn", 7.0, dim=64),
        ]
    )
    shown = [(v.record["variant"], v.must, v.met, v.missed_by) for v in found]
    assert shown == [("fox", 1.20, True, 0.0), ("tapa", 1.45, False, 0.15)]


def test_learned_parameters_are_measured_by_our_plain_attention() -> None:
    found = verdicts(
        [
            record("t5", "gnomon", 2.4, which="fwd_bwd"),
            record("nope", "gnomon", 2.0, which="fwd_bwd"),
            record("nope", "cudnn", 1.0, which="fwd_bwd"),
        ]
    )
    assert [(v.ratio, v.over, v.missed_by) for v in found] == [(1.2, "gnomon", 0.05)]


def test_no_verdict_without_the_peer() -> None:
    assert verdicts([record("fox", "gnomon", 1.0), record("nope", "cudnn", None)]) == []

"""benchmarks/tuner.py: the picks are judged by the times of an exhaustive search."""

import json
from pathlib import Path

import pytest
from fake_gpu import FAST, HERE, PLAN, TOOLS, FakeBench, FakeClock, FakeCompiler, fates, speed

from gnomon.autotune.space import Space
from gnomon.autotune.store import Store
from gnomon.benchmarks.tuner import Costs, Timed, Trial, verdict, write


def trial(folder: Path, bench: FakeBench) -> Trial:
    compiler = FakeCompiler(bench.clock, lambda task, point: (60_000, 128, 0))
    timed = Timed(bench, Costs(), bench.clock)
    return Trial(Store(folder), HERE, TOOLS, timed, compiler, now=bench.clock)


def test_every_legal_point_is_timed_and_the_picks_are_judged_by_it(tmp_path: Path) -> None:
    bench = FakeBench(FakeClock())
    *kernels, whole = trial(tmp_path, bench).run(PLAN, 600.0)
    forward = kernels[0]
    legal, _ = Space.of(PLAN.tasks[0].situation).sifted()
    assert forward["timed"] == forward["points"] == min(len(legal), 64)
    assert (forward["best"], forward["best_us"]) == (FAST, 1000.0)
    assert (forward["online_300"], forward["online_300_ratio"]) == (FAST, 1.0)
    offline = forward["offline"]
    assert forward["offline_us"] == pytest.approx(speed(PLAN.tasks[0], offline))
    assert forward["offline_ratio"] == pytest.approx(forward["offline_us"] / 1000.0)
    assert whole["kernel"] == "all"
    assert whole["best_us"] == sum(record["best_us"] for record in kernels)
    ratio = sum(r["offline_us"] for r in kernels) / whole["best_us"]
    assert whole["offline_ratio"] == pytest.approx(ratio, abs=1e-4)


def test_it_goes_on_where_the_budget_ended(tmp_path: Path) -> None:
    first, second = FakeBench(FakeClock()), FakeBench(FakeClock())
    trial(tmp_path, first).run(PLAN, 20.0)
    taken = len(first.sampled())
    assert taken > 0
    *kernels, _ = trial(tmp_path, second).run(PLAN, 600.0)
    assert kernels[0]["timed"] == kernels[0]["points"]
    once = [p for p in second.sampled() if p in first.sampled()]
    assert len(once) < taken + 60


def test_a_replay_of_a_short_budget_knows_less_and_costs_nothing(tmp_path: Path) -> None:
    bench = FakeBench(FakeClock())
    whole = trial(tmp_path, bench)
    whole.run(PLAN, 600.0)
    before = len(bench.log)
    whole.bench.costs.seconds["first"] *= 100.0
    *kernels, _ = whole.run(PLAN, 600.0)
    assert kernels[0]["online"] == "replayed"
    assert kernels[0]["online_60"] is None or kernels[0]["online_60_ratio"] >= 1.0
    assert len(bench.log) == before


def test_points_that_failed_are_counted_and_not_the_best(tmp_path: Path) -> None:
    bench = FakeBench(FakeClock(), fate=fates(died=FAST))
    *kernels, _ = trial(tmp_path, bench).run(PLAN, 600.0)
    assert kernels[0]["failed"] == {"died": 1}
    assert kernels[0]["best"] != FAST


def test_the_verdict_says_what_is_missed(tmp_path: Path) -> None:
    record = {"kernel": "all", "variant": "fox", "T": 8192, "D": 128, "offline_ratio": 1.2,
              "online_60_ratio": 1.01, "online_300_ratio": None}  # fmt: skip
    assert verdict([record, {"kernel": "fwd"}]) == [
        "fox T=8192 D=128: offline 1.200 (missed: 1.15), online_60 1.010, online_300 unknown"
    ]
    write({"records": [record]}, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["records"] == [record]

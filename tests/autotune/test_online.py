"""The search on a GPU, with a fake GPU on a fake clock: what wins, what is measured, what fails."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import FAST, HERE, NEXT, PLAN, TOOLS, FakeBench, FakeClock, fates, online, speed

from gnomon.autotune.online import Effort, Entry, Outcome, ratio
from gnomon.autotune.space import Point
from gnomon.autotune.store import Store
from gnomon.runtime.tuned import Fault, Table, Toolchain

FWD = PLAN.tasks[0]


def bench(**given: Any) -> FakeBench:
    return FakeBench(FakeClock(), **given)


def winner(outcome: Outcome, role: str = "fwd") -> Point | None:
    found = [pick.tiles for pick in outcome.picks if pick.key.role == role]
    return found[0] if found else None


def faults(folder: Path) -> list[tuple[str, dict[str, int]]]:
    return [(f.failure, dict(f.tiles)) for f in Table.read(folder).faults]


# ---- what wins


def test_the_fastest_of_each_kernel_wins_and_is_written_down(tmp_path: Path) -> None:
    outcome = online(tmp_path, bench()).run(600.0)
    assert outcome.stopped == ""
    assert [pick.key.role for pick in outcome.picks] == ["fwd", "bwd_rows", "bwd_columns"]
    assert winner(outcome) == FAST
    pick = outcome.picks[0]
    assert (pick.device, pick.toolchain, pick.source) == (HERE, TOOLS, "timed")
    assert pick.evidence["median_us"] == 1000.0
    assert pick.evidence["rounds"] == 6
    assert Table.read(tmp_path).picks == tuple(outcome.picks)


def test_what_is_far_behind_is_sampled_once(tmp_path: Path) -> None:
    fake = bench()
    online(tmp_path, fake).run(600.0)
    sampled = fake.sampled()
    slow = {p for p in sampled if speed(FWD, dict(zip(FAST, p, strict=True))) > 1300.0}
    assert slow
    in_use = tuple(FWD.default.numbers("triton").values())
    assert all(sampled.count(p) == 1 for p in slow - {in_use})
    assert sampled.count(tuple(FAST.values())) == 6


def test_rounds_are_interleaved_and_every_second_one_runs_backwards(tmp_path: Path) -> None:
    fake = bench()
    online(tmp_path, fake, effort=Effort(hopeless=1.15)).run(600.0)
    sampled = fake.sampled()
    kinds = len(set(sampled))
    rounds = sampled[kinds:]
    alive = sampled.count(tuple(FAST.values())) and len(set(rounds))
    first, second = rounds[:alive], rounds[alive : 2 * alive]
    assert len(first) > 1
    assert first == second[::-1]


def tied(task: Any, point: Point) -> float:
    """Three that no one can tell apart, the tiles in use among them."""
    same = (FAST, NEXT, task.default.numbers("triton"))
    return 1000.0 if any(dict(point) == dict(x) for x in same) else 2000.0


def test_the_tiles_in_use_win_a_tie_and_the_others_are_kept_as_ties(tmp_path: Path) -> None:
    outcome = online(tmp_path, bench(time_of=tied, noise=0.02)).run(600.0)
    assert winner(outcome) == FWD.default.numbers("triton")
    ties = [dict(each) for each in outcome.picks[0].ties]
    assert FAST in ties
    assert NEXT in ties


def test_a_drift_does_not_hide_what_is_faster_in_every_round(tmp_path: Path) -> None:
    """The card grows slower with each sample; rounds that run to and fro make up for it."""
    samples = [0]

    def drifting(task: Any, point: Point) -> float:
        samples[0] += 1
        return speed(task, point) * (1 + 1e-3 * samples[0])

    outcome = online(tmp_path, bench(time_of=drifting)).run(600.0)
    assert winner(outcome) == FAST
    assert NEXT not in [dict(each) for each in outcome.picks[0].ties]


def test_a_ratio_is_taken_within_rounds() -> None:
    slow, fast = (
        Entry({}, {("run", n): value for n, value in enumerate(values)})
        for values in ((110.0, 220.0, 330.0, 440.0, 550.0), (100.0, 200.0, 300.0, 400.0, 500.0))
    )
    assert ratio(slow, fast, 0.03) == pytest.approx((1.1, 1.1))


def test_without_a_common_round_a_ratio_has_the_noise_as_its_margin() -> None:
    slow, fast = Entry({}, {("a", 0): 102.0}), Entry({}, {("b", 0): 100.0})
    low, high = ratio(slow, fast, 0.03)
    assert low == pytest.approx(1.02 / 1.03)
    assert high == pytest.approx(1.02 * 1.03)


# ---- what fails


@pytest.mark.parametrize("kind", ["compile", "resources", "timeout", "died", "lost", "launch"])
def test_a_candidate_that_fails_is_quarantined_and_the_rest_goes_on(
    tmp_path: Path, kind: str
) -> None:
    outcome = online(tmp_path, bench(fate=fates(**{kind: FAST}))).run(600.0)
    assert winner(outcome) == NEXT
    assert faults(tmp_path) == [(kind, FAST)]
    assert outcome.races[0].failures() == {kind: 1}
    fault = Table.read(tmp_path).faults[0]
    assert (fault.toolchain, fault.reason) == (TOOLS, f"{kind} of fwd")


def test_wrong_gradients_are_found_before_they_win(tmp_path: Path) -> None:
    outcome = online(tmp_path, bench(fate=fates(wrong=FAST))).run(600.0)
    assert winner(outcome) == NEXT
    assert faults(tmp_path) == [("wrong", FAST)]
    assert Table.read(tmp_path).faults[0].reason == "dq 3.0e-01 of 8e-03 (384 tokens)"


def test_where_everything_is_wrong_nothing_wins(tmp_path: Path) -> None:
    outcome = online(tmp_path, bench(fate=lambda task, point: "wrong")).run(6000.0)
    assert outcome.picks == []
    assert {race.trouble for race in outcome.races} == {"nothing that was timed is right"}
    assert Table.read(tmp_path).picks == ()


def test_where_nothing_compiles_nothing_wins(tmp_path: Path) -> None:
    outcome = online(tmp_path, bench(fate=lambda task, point: "compile")).run(6000.0)
    assert {race.trouble for race in outcome.races} == {"nothing ran"}


def test_the_error_of_one_candidate_does_not_count_against_the_next(tmp_path: Path) -> None:
    """A poisoned context shows with whoever comes after: in a fresh process that one is well."""
    fake = bench(fate=fates(later=NEXT))
    outcome = online(tmp_path, fake).run(600.0)
    assert winner(outcome) == FAST
    assert faults(tmp_path) == []


def test_quarantine_holds_for_its_toolchain_alone(tmp_path: Path) -> None:
    Store(tmp_path).append(Fault(FWD.key, HERE, TOOLS, FAST, "wrong", "dq").record())
    fake = bench()
    assert winner(online(tmp_path, fake).run(600.0)) == NEXT
    assert tuple(FAST.values()) not in fake.sampled()
    newer = replace(TOOLS, triton="3.7.1", assembler="of triton 3.7.1")
    assert winner(online(tmp_path, bench(), toolchain=newer).run(600.0)) == FAST


# ---- budgets, interruptions, continuing


def test_a_budget_is_kept_and_what_was_measured_counts(tmp_path: Path) -> None:
    fake = bench()
    outcome = online(tmp_path, fake).run(30.0)
    assert outcome.picks
    assert fake.clock() <= 31.0


def test_out_of_time_before_a_check_gives_no_pick(tmp_path: Path) -> None:
    fake = bench()
    outcome = online(tmp_path, fake, effort=Effort(compiling=0.9, checking=0.0)).run(4.0)
    assert outcome.picks == []
    assert outcome.stopped == "out of time"
    assert {race.trouble for race in outcome.races} <= {
        "no time was left to check what was timed",
        "nothing ran",
    }
    assert list(Store(tmp_path).records("pick")) == []


def test_an_interruption_loses_nothing_and_running_again_continues(tmp_path: Path) -> None:
    first = bench(stop_after=120)
    outcome = online(tmp_path, first).run(600.0)
    assert outcome.stopped == "interrupted"
    taken = len(list(Store(tmp_path).records("time")))
    assert taken == sum(what == "sample" for what, *_ in first.log) - 1
    again = bench()
    assert winner(online(tmp_path, again).run(600.0)) == FAST
    assert len(again.log) < 2 * 120


def test_a_finished_search_is_not_done_again(tmp_path: Path) -> None:
    first = online(tmp_path, bench()).run(600.0)
    again = bench()
    outcome = online(tmp_path, again).run(600.0)
    assert again.log == []
    assert [p.tiles for p in outcome.picks] == [p.tiles for p in first.picks]


KILLED = """
import os, sys, signal
from pathlib import Path
from fake_gpu import FakeBench, FakeClock, online
class Slow(FakeBench):
    def sample(self, plan, task, point):
        us = super().sample(plan, task, point)
        if len(self.sampled()) == 12:
            print("ready", flush=True)
            signal.pause()
        return us
online(Path(sys.argv[1]), Slow(FakeClock())).run(600.0)
"""


def test_a_search_that_was_killed_continues(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    folders = [root / ".pyroot", root / "tests", Path(__file__).parent]
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, folders))}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    known = [r["tiles"] for r in Store(tmp_path).records("time")]
    assert len(known) == 11
    path = next(tmp_path.glob("*.jsonl"))
    with path.open("a") as file:
        file.write('{"kind":"time","key":{"ker')  # what a kill can leave behind
    again = bench()
    assert winner(online(tmp_path, again).run(600.0)) == FAST
    in_use = FWD.default.numbers("triton")
    slow = [t for t in known if t != in_use and speed(FWD, t) > 1300.0]
    assert slow
    assert not [t for t in slow if tuple(t[name] for name in FAST) in again.sampled()]


# ---- stores of others


def test_two_searches_on_one_store_do_not_disturb_each_other(tmp_path: Path) -> None:
    one, two = (online(tmp_path, bench()) for _ in range(2))
    inner = one.watch

    def interleave(step: str, outcome: Outcome) -> None:
        nonlocal inner
        if step == "first sample" and inner is None:
            inner = interleave
            two.run(600.0)

    one.watch = interleave
    assert winner(one.run(600.0)) == FAST
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == 2
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert sum(line["kind"] == "pick" for line in lines) == 6


@pytest.mark.parametrize(
    "other",
    [
        {"device": replace(HERE, id="nvidia-h100-80gb-hbm3", family="h100")},
        {"device": replace(HERE, processors=60)},
        {"toolchain": Toolchain("3.7.1", "of triton 3.7.1")},
    ],
    ids=["another GPU", "a share of the GPU", "another toolchain"],
)
def test_a_store_from_elsewhere_is_a_hint_and_no_measurement(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    online(tmp_path, bench(time_of=lambda t, p: 3000.0 - speed(t, p)), **other).run(600.0)
    fake = bench()
    outcome = online(tmp_path, fake).run(600.0)
    assert winner(outcome) == FAST
    assert tuple(FAST.values()) in fake.sampled()


def test_a_folder_that_cannot_be_written_keeps_the_results_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "tuned"
    blocked.write_text("a file stands where the folder should be")
    search = online(blocked, bench())
    assert winner(search.run(600.0)) == FAST
    assert len(caplog.records) == 1
    assert "records of this process are kept in memory alone" in caplog.text
    assert search.store.table().picks[-1].key.role == "fwd"
    assert len(search.store.unwritten) > 100


def test_time_on_the_fake_clock_is_not_real_time(tmp_path: Path) -> None:
    begin = time.monotonic()
    fake = bench(fate=fates(timeout=FAST))
    online(tmp_path, fake).run(600.0)
    assert fake.clock() > 20.0
    assert time.monotonic() - begin < 20.0

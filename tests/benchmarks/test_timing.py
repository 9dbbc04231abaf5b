"""How a figure is made, with a clock that says what time it is."""

from itertools import groupby

import pytest
from fake_clock import FakeClock, Work, failing, job

from gnomon.benchmarks.timing import Absent, CpuClock, Job, Run, interleaved, reason, sample


@pytest.mark.parametrize("ms", [0.3, 7.0, 100.0, 900.0])
def test_a_sample_is_long_enough_and_comes_after_a_warm_up(ms: float) -> None:
    clock = FakeClock()
    assert sample(clock, Work("a", ms), sample_ms=250, warm_ms=60) == pytest.approx(ms)
    *warm, timed = [length for _, length in clock.log]
    assert sum(warm) >= 60
    assert sum(warm) <= 70 + ms
    assert timed >= 250
    assert timed <= 270 + ms


def test_a_sample_that_was_too_short_is_taken_anew() -> None:
    """The warm-up was slow, so that too few calls were thought to be enough."""

    class Warming(FakeClock):
        def time(self, run: Run, count: int) -> float:
            work.ms = 50.0 if len(self.log) < 2 else 1.0
            return super().time(run, count)

    clock, work = Warming(), Work("a", 50.0)
    assert sample(clock, work, sample_ms=250, warm_ms=60) == pytest.approx(1.0)
    lengths = [length for _, length in clock.log]
    assert lengths[-1] >= 250
    assert [length >= 250 for length in lengths[2:]] == [False, True]


def test_a_call_that_takes_no_time_does_not_hang() -> None:
    class Coarse(FakeClock):
        def time(self, run: Run, count: int) -> float:
            elapsed = super().time(run, count)
            return 0.0 if count < 8 else elapsed

    assert sample(Coarse(), Work("a", 1.0), sample_ms=20, warm_ms=0) == pytest.approx(1.0)


def test_rounds_are_interleaved_and_every_second_one_runs_backwards() -> None:
    clock = FakeClock()
    jobs = [job(Work(name, 10.0)) for name in "abc"]
    assert interleaved(jobs, clock, rounds=3, sample_ms=50, warm_ms=10) == ""
    order = "".join(name for name, _ in groupby(name for name, _ in clock.log))
    assert order == "abcbabc"
    assert [len(x.samples) for x in jobs] == [3, 3, 3]
    assert [x.peak_mib for x in jobs] == [12.0] * 3


def test_median_and_quartiles() -> None:
    one = Job("fox", "gnomon", lambda: print, samples=[5.0, 1.0, 2.0, 4.0, 9.0])
    assert one.median_ms == 4.0
    assert one.spread_ms == 3.0  # from 2 to 5
    one.samples = [3.0]
    assert (one.median_ms, one.spread_ms) == (3.0, 0.0)
    empty = Job("fox", "gnomon", lambda: print)
    assert (empty.median_ms, empty.spread_ms) == (None, None)


def test_one_that_fails_is_out_and_the_others_go_on() -> None:
    clock = FakeClock()
    good, bad = job(Work("good", 1.0)), job(Work("bad", 1.0, fails_at=1))
    late = job(Work("late", 1.0, fails_at=80))
    gone = Job("fox", "gone", failing(Absent("not on this card")))
    missing = Job("fox", "missing", failing(ModuleNotFoundError("No module named 'fla'")))
    interleaved([bad, good, gone, late, missing], clock, rounds=5, sample_ms=25, warm_ms=5)
    assert len(good.samples) == 5
    assert good.median_ms == 1.0
    assert (bad.error, bad.absent, bad.samples) == ("ValueError: first line", "", [])
    assert late.error == "ValueError: first line"
    assert 0 < len(late.samples) < 5
    assert (late.median_ms, late.spread_ms) == (None, None)
    assert (gone.absent, gone.error) == ("not on this card", "")
    assert missing.absent == "No module named 'fla'"
    assert clock.recovered == 4


def test_a_lost_device_ends_the_rounds_and_everything_says_so() -> None:
    jobs = [job(Work("a", 1.0)), job(Work("b", 1.0, fails_at=1)), job(Work("c", 1.0))]
    lost = interleaved(jobs, FakeClock(lost_by="launch failure"), rounds=5)
    assert lost == "launch failure"
    assert [x.error for x in jobs] == [
        "the device was lost before: launch failure",
        "ValueError: first line",
        "the device was lost before: launch failure",
    ]


def test_a_reason_names_no_folder_of_the_machine() -> None:
    error = FileNotFoundError("no compiler at /opt/cuda-12.8/bin/nvcc for 1/2 of it\nmore")
    assert reason(error) == "FileNotFoundError: no compiler at nvcc for 1/2 of it"
    assert reason(RuntimeError()) == "RuntimeError"


def test_the_clock_of_the_process() -> None:
    calls: list[int] = []
    assert CpuClock().time(lambda: calls.append(sum(range(10000))), 5) > 0
    assert len(calls) == 5
    assert CpuClock().peak_mib(lambda: calls.append(1)) is None
    assert len(calls) == 6

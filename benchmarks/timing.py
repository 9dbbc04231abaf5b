"""How a figure is made: warm-up, back-to-back calls, interleaved rounds, medians, peak memory.

The GPU is power limited, so that the time of a kernel depends on what ran before it: everything
that shall be compared is sampled once a round, and every second round runs backwards.
"""

import gc
import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

Run = Callable[[], Any]
ROUNDS, SAMPLE_MS, WARM_MS = 5, 250.0, 60.0
FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.@+-]+/)+")
MARGIN = 1.05
"""More calls than a sample needs by the estimate: the clock rate falls while it lasts."""


class Absent(Exception):  # noqa: N818  a finding, no fault
    """A peer that is not here, or does not do what is asked; the text says why."""


class DeviceLost(Exception):  # noqa: N818
    """No call on the device works any more."""


class Clock(Protocol):
    """What knows the time and the memory of a device."""

    def time(self, run: Run, count: int) -> float:
        """The milliseconds of `count` calls, one right after another."""
        ...

    def peak_mib(self, run: Run) -> float | None:
        """The memory that one call takes beyond what was allocated before it."""
        ...

    def recover(self) -> None:
        """Frees what a failed call has left. Raises DeviceLost where nothing works any more."""
        ...


class CudaClock:
    """CUDA events on the current stream, and torch's allocator."""

    def time(self, run: Run, count: int) -> float:
        """The milliseconds of `count` calls, one right after another."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def peak_mib(self, run: Run) -> float | None:
        """The memory that one call takes beyond what was allocated before it."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        del result
        return peak / 2**20

    def recover(self) -> None:
        """Frees what a failed call has left. Raises DeviceLost where nothing works any more."""
        gc.collect()
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception as error:  # whatever a broken context raises
            raise DeviceLost(reason(error)) from error


class CpuClock:
    """The clock of the process; memory is not measured."""

    def time(self, run: Run, count: int) -> float:
        """The milliseconds of `count` calls, one right after another."""
        begin = time.perf_counter()
        for _ in range(count):
            run()
        return 1e3 * (time.perf_counter() - begin)

    def peak_mib(self, run: Run) -> float | None:
        """Runs it, so that whatever is made by a first call is there."""
        run()
        return None

    def recover(self) -> None:
        """Frees what a failed call has left."""
        gc.collect()


def sample(
    clock: Clock, run: Run, *, sample_ms: float = SAMPLE_MS, warm_ms: float = WARM_MS
) -> float:
    """The milliseconds of one call: back-to-back calls that last `sample_ms` after a warm-up."""
    count, each, spent = 1, 0.0, 0.0
    while spent < warm_ms:
        elapsed = clock.time(run, count)
        each, spent = elapsed / count, spent + elapsed
        count = enough(warm_ms - spent, each)
    count = enough(sample_ms, each)
    while (elapsed := clock.time(run, count)) < sample_ms:
        count = max(enough(sample_ms, elapsed / count), count + 1)
    return elapsed / count


def enough(milliseconds: float, each: float) -> int:
    """The number of calls that last so long; a call that seems to take no time is tried again."""
    return max(math.ceil(MARGIN * milliseconds / each), 1) if each > 0 else 1


@dataclass(slots=True)
class Job:
    """One implementation of one variant, and what came of it.

    make      gives the call that is timed; it may fail, as may the call
    samples   milliseconds of one call, a round each
    peak_mib  the memory that one call takes
    absent    why it is not here, or "";  error: how it failed, or ""
    """

    variant: str
    implementation: str
    make: Callable[[], Run]
    run: Run | None = None
    samples: list[float] = field(default_factory=list)
    peak_mib: float | None = None
    absent: str = ""
    error: str = ""

    @property
    def failed(self) -> bool:
        """Whether it is absent or in error."""
        return bool(self.absent or self.error)

    @property
    def median_ms(self) -> float | None:
        """The median of the samples; a job that failed in a later round has none."""
        return statistics.median(self.samples) if self.samples and not self.failed else None

    @property
    def spread_ms(self) -> float | None:
        """The distance between the quartiles."""
        if self.median_ms is None:
            return None
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return high - low

    def prepare(self, clock: Clock) -> None:
        """Make the call, run it once, and measure its memory in a second run."""
        self.run = self.make()
        self.run()
        self.peak_mib = clock.peak_mib(self.run)

    def take(self, clock: Clock, sample_ms: float, warm_ms: float) -> None:
        """Add a sample."""
        if self.run is not None:
            self.samples.append(sample(clock, self.run, sample_ms=sample_ms, warm_ms=warm_ms))

    def attempt(self, step: Callable[[], None], clock: Clock) -> None:
        """Do a step, or note why it failed. Raises DeviceLost where nothing works any more."""
        if not self.failed:
            try:
                step()
            except Exception as error:  # noqa: BLE001  whatever one job does, the others go on
                self.fail(error)
                clock.recover()

    def fail(self, error: Exception) -> None:
        """Note why it cannot be timed; a package that is not installed is absent, no error."""
        self.run = None
        if isinstance(error, Absent | ModuleNotFoundError):
            self.absent = str(error)
        else:
            self.error = reason(error)


def interleaved(
    jobs: Sequence[Job],
    clock: Clock,
    *,
    rounds: int = ROUNDS,
    sample_ms: float = SAMPLE_MS,
    warm_ms: float = WARM_MS,
) -> str:
    """Time the jobs round by round; how the device was lost, or "".

    A job that fails is out, and the others go on.
    """
    try:
        for job in jobs:
            job.attempt(partial(job.prepare, clock), clock)
        for number in range(rounds):
            for job in jobs if number % 2 == 0 else reversed(jobs):
                job.attempt(partial(job.take, clock, sample_ms, warm_ms), clock)
    except DeviceLost as lost:
        for job in jobs:
            if not job.failed and len(job.samples) < rounds:
                job.error = f"the device was lost before: {lost}"
        return str(lost) or "no reason given"
    finally:
        for job in jobs:
            job.run = None  # its tensors go before the next set is made
    return ""


def reason(error: Exception) -> str:
    """The class of an error and the first line of what it says, without folders of this machine."""
    lines = str(error).strip().splitlines()
    line = FOLDERS.sub("", lines[0])[:300] if lines else ""
    return f"{type(error).__name__}: {line}" if line else type(error).__name__

"""A clock that knows what each call takes, and calls that do nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gnomon.benchmarks.timing import DeviceLost, Job, Run


@dataclass
class Work:
    """A call of a known length; it counts its calls, and fails at one of them if it shall."""

    name: str
    ms: float
    fails_at: int | None = None
    calls: int = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.fails_at is not None and self.calls >= self.fails_at:
            raise ValueError("first line\nsecond line")


@dataclass
class FakeClock:
    """Time is what the calls say it is; `log` has the name and length of each stretch."""

    lost_by: str = ""
    log: list[tuple[str, float]] = field(default_factory=list)
    recovered: int = 0

    def time(self, run: Run, count: int) -> float:
        assert isinstance(run, Work)
        for _ in range(count):
            run()
        self.log.append((run.name, run.ms * count))
        return run.ms * count

    def peak_mib(self, run: Run) -> float | None:
        run()
        return 12.0

    def recover(self) -> None:
        self.recovered += 1
        if self.lost_by:
            raise DeviceLost(self.lost_by)


def job(work: Work) -> Job:
    return Job("fox", work.name, lambda: work)


def failing(error: Exception) -> Callable[[], Run]:
    """What makes no call."""

    def make() -> Run:
        raise error

    return make

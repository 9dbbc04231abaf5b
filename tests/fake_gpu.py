"""A GPU that does what a test says, on a clock that moves when it works; a compiler likewise."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon.autotune.bench import BenchError
from gnomon.autotune.compiling import Compiled, Failure
from gnomon.autotune.fleet import Search, tune_there
from gnomon.autotune.online import Effort, Online
from gnomon.autotune.plan import Plan, Problem, Task
from gnomon.autotune.space import Point
from gnomon.autotune.store import Store
from gnomon.dsl import catalogue
from gnomon.runtime.gpus import Device
from gnomon.runtime.offline import Report
from gnomon.runtime.tuned import Toolchain

HERE = Device("nvidia-h200", "h200", "sm_90", 132)
TOOLS = Toolchain("3.6.0", "of triton 3.6.0", "2.11.0", "580.1")
PLAN = Plan.of(Problem(catalogue.find("fox").node, 128), HERE)
FAST = {"BM": 128, "BN": 64, "num_warps": 8, "num_stages": 3}
NEXT = {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 2}
Fate = Callable[[Task, Point], str]


def fates(**given: Point) -> Fate:
    """The class of failure of some points of the forward kernel: fates(died=FAST)."""

    def fate(task: Task, point: Point) -> str:
        if task.role != "fwd":
            return ""
        return next((kind for kind, bad in given.items() if dict(bad) == dict(point)), "")

    return fate


def all_well(task: Task, point: Point) -> str:
    """Nothing fails."""
    return ""


def speed(task: Task, point: Point) -> float:
    """Microseconds: the point FAST is the best, NEXT 2 % behind, others far behind it."""
    if dict(point) == FAST:
        return 1000.0
    if dict(point) == NEXT:
        return 1020.0
    return 1100.0 + zlib.crc32(repr(sorted(point.items())).encode()) % 900


@dataclass
class FakeClock:
    """Seconds that pass when somebody works."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class FakeBench:
    """Fails as `fate` says: timeout, died, lost, launch, compile at the first launch; wrong."""

    clock: FakeClock
    fate: Fate = all_well
    time_of: Callable[[Task, Point], float] = speed
    noise: float = 0.0
    poison: bool = False
    stop_after: int | None = None
    log: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    fresh: bool = True
    poisoned: bool = False
    error: type[BaseException] = KeyboardInterrupt

    def _note(self, what: str, task: Task, point: Point, seconds: float) -> None:
        self.clock.seconds += seconds
        self.log.append((what, task.role, tuple(point.values())))
        if self.stop_after is not None and len(self.log) >= self.stop_after:
            raise self.error

    def first(
        self, plan: Plan, jobs: Iterable[tuple[Task, Point]], deadline: float
    ) -> Iterator[tuple[Task, Point, Failure | None]]:
        for task, point in jobs:
            if self.clock() >= deadline:
                return
            self._note("first", task, point, 0.2)
            kind = self.fate(task, point)
            failed = kind in ("compile", "resources")
            yield task, point, Failure(kind, f"{kind} of {task.role}") if failed else None

    def sample(self, plan: Plan, task: Task, point: Point) -> float:
        self._note("sample", task, point, 0.05)
        kind = self.fate(task, point)
        fresh, self.fresh = self.fresh, False
        if self.poisoned:
            self.poisoned, self.fresh = False, True
            raise BenchError(Failure("lost", "an illegal memory access"), fresh=False)
        if kind == "later":  # its error surfaces with the next one
            self.poisoned = True
        elif kind in ("timeout", "died", "lost", "launch"):
            self.clock.seconds += 20.0 * (kind == "timeout")
            self.fresh = True
            raise BenchError(Failure(kind, f"{kind} of {task.role}"), fresh=fresh)
        drift = zlib.crc32(f"{point} {len(self.log)}".encode()) % 200 - 100
        return self.time_of(task, point) * (1 + self.noise * drift / 100)

    def check(self, plan: Plan, task: Task, point: Point) -> Mapping[str, float]:
        self._note("check", task, point, 1.0)
        kind = self.fate(task, point)
        if kind == "wrong":
            raise BenchError(Failure("wrong", "dq 3.0e-01 of 8e-03 (384 tokens)"), fresh=False)
        return {"out": 1e-3, "dq": 2e-3}

    def close(self) -> None:
        self.log.append(("close", "", ()))

    def sampled(self, role: str = "fwd") -> list[tuple[int, ...]]:
        """The points that were sampled, in order."""
        return [point for what, of, point in self.log if (what, of) == ("sample", role)]


@dataclass
class FakeCompiler:
    """Takes half a second for each, and says what a kernel needs by a function."""

    clock: FakeClock
    needs: Callable[[Task, Point], tuple[int, int, int] | str]
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def compile(
        self, jobs: Iterable[tuple[Task, Point]], deadline: float, now: Callable[[], float]
    ) -> Iterator[Compiled]:
        for task, point in jobs:
            if now() >= deadline:
                return
            self.clock.seconds += 0.5
            self.asked.append((task.role, *point.values()))
            found = self.needs(task, point)
            if isinstance(found, str):
                yield Compiled(task, point, None, Failure(found, f"it {found}"))
            else:
                yield Compiled(task, point, Report(*found, (), (), 0.5, ""))


def online(folder: Path, bench: FakeBench, **given: object) -> Online:
    """A search by that bench, on its clock."""
    effort = given.pop("effort", Effort())
    options = {"device": HERE, "toolchain": TOOLS, "effort": effort, "now": bench.clock, **given}
    return Online(PLAN, Store(folder), bench, **options)  # type: ignore[arg-type]


def tune_there_by_a_fake(plan: Plan, known: Any, search: Search, budget: float) -> Any:
    """A task of Ray with a fake GPU; a process of Ray's imports it from here."""
    return tune_there(plan, known, search, budget, make=lambda gpu: FakeBench(FakeClock()))

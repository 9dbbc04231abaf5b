"""How close the tuner comes to the optimum: its picks beside an exhaustive search, on a GPU.

    python -m gnomon.benchmarks.tuner --store DIR --out tuner.json --budget 500

For each kernel of each variant every legal point (64 at most) is timed once, and those within a
tenth of the fastest round by round. The picks are then judged by these times:

    offline    what `gnomon tune --offline` would pick here: compiled and modelled, never timed
    online     what `gnomon tune` picks in 60 and in 300 seconds: the same search, replayed over the
               samples that were taken, with the seconds that launching, sampling and checking took

`--live` runs the online search itself instead, with an empty store. Everything measured is in the
store as it is measured: run it again to go on where the budget ended.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gnomon.autotune.bench import Bench, BenchError, GpuBench
from gnomon.autotune.compiling import Compiler, Failure, Processes
from gnomon.autotune.fleet import visible_gpus
from gnomon.autotune.offline import Offline, identity
from gnomon.autotune.online import Effort, Online, Outcome, Race
from gnomon.autotune.plan import Plan, Problem, Task
from gnomon.autotune.space import Point
from gnomon.autotune.store import Store
from gnomon.benchmarks import machine
from gnomon.dsl import catalogue
from gnomon.runtime.gpus import Device
from gnomon.runtime.here import device_of, toolchain
from gnomon.runtime.tuned import Toolchain

VARIANTS = ("nope", "fox", "alibi", "tapa", "t5", "sliding_window")
ALL = Effort(candidates=64, rounds=3, hopeless=1.1, compiling=0.7, checking=0.02)
BUDGETS = (60.0, 300.0)
MUST = {"offline": 1.15, "online_60": 1.05}
"""The largest share of the optimum's time that a pick may take."""
LEAST = 20.0
"""Seconds: a variant is not begun with less."""
Document = dict[str, Any]


@dataclass
class Costs:
    """Seconds that steps took: how many, and in all."""

    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, step: str, seconds: float, count: int = 1) -> None:
        """One more step of a kind."""
        self.counts[step] = self.counts.get(step, 0) + count
        self.seconds[step] = self.seconds.get(step, 0.0) + seconds

    def each(self, step: str, default: float) -> float:
        """Of one step; a default where none was done."""
        count = self.counts.get(step, 0)
        return self.seconds[step] / count if count else default


@dataclass
class Timed:
    """A bench that knows what its steps cost."""

    bench: Bench
    costs: Costs
    now: Callable[[], float] = time.monotonic

    def first(
        self, plan: Plan, jobs: Iterable[tuple[Task, Point]], deadline: float
    ) -> Iterator[tuple[Task, Point, Failure | None]]:
        """First launches, which many processes share: the cost is wall time by their number."""
        begin, count = self.now(), 0
        for result in self.bench.first(plan, jobs, deadline):
            count += 1
            yield result
        if count:
            self.costs.add("first", self.now() - begin, count)

    def sample(self, plan: Plan, task: Task, point: Point) -> float:
        """One sample."""
        begin = self.now()
        us = self.bench.sample(plan, task, point)
        self.costs.add("sample", self.now() - begin)
        return us

    def check(self, plan: Plan, task: Task, point: Point) -> Mapping[str, float]:
        """One check."""
        begin = self.now()
        errors = self.bench.check(plan, task, point)
        self.costs.add("check", self.now() - begin)
        return errors

    def close(self) -> None:
        """End what it started."""
        self.bench.close()


@dataclass
class Replay:
    """A bench that gives the samples of a race again, on a clock that moves by their costs."""

    races: Mapping[Any, Race]
    costs: Costs
    seconds: float = 0.0
    given: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def now(self) -> float:
        """Seconds since it began."""
        return self.seconds

    def first(
        self, plan: Plan, jobs: Iterable[tuple[Task, Point]], deadline: float
    ) -> Iterator[tuple[Task, Point, Failure | None]]:
        """As it went when it was measured."""
        for task, point in jobs:
            if self.seconds >= deadline:
                return
            self.seconds += self.costs.each("first", 0.3)
            entry = self.races[task.key].entries.get(identity(point))
            failure = Failure("launch", "not among the points") if entry is None else entry.failure
            yield task, point, failure

    def sample(self, plan: Plan, task: Task, point: Point) -> float:
        """The next sample of the point; BenchError where there is none."""
        self.seconds += self.costs.each("sample", 0.1)
        entry = self.races[task.key].entries[identity(point)]
        samples = list(entry.samples.values())
        if not samples:
            raise BenchError(Failure("launch", "it was never timed"), fresh=True)
        place = (task.key, *point.values())
        count = self.given.get(place, 0)
        self.given[place] = count + 1
        return samples[count % len(samples)]

    def check(self, plan: Plan, task: Task, point: Point) -> Mapping[str, float]:
        """Right, unless it was found wrong."""
        self.seconds += self.costs.each("check", 2.0)
        entry = self.races[task.key].entries[identity(point)]
        if entry.failure is not None:
            raise BenchError(entry.failure, fresh=True)
        return {}

    def close(self) -> None:
        """Nothing was started."""


@dataclass
class Trial:
    """The tuner against everything, on one device."""

    store: Store
    device: Device
    tools: Toolchain
    bench: Timed
    compiler: Compiler
    live: bool = False
    now: Callable[[], float] = time.monotonic

    def run(self, plan: Plan, budget: float) -> list[Document]:
        """A record for each kernel of a plan, and one for all of them together."""
        begin = self.now()
        search = Online(plan, self.store, self.bench, self.device, self.tools, ALL, now=self.now)
        races = search.run(budget).races
        ranked = Offline(plan, self.store, self.compiler, self.tools, now=self.now).run(
            max(begin + budget, self.now() + 30.0)
        )
        picks: dict[str, dict[Any, Point | None]] = {
            "offline": {r.task.key: r.best.point if r.best else None for r in ranked}
        }
        for seconds in BUDGETS:
            picks[f"online_{seconds:.0f}"] = self._online(plan, races, seconds)
        return _records(plan, races, picks, "live" if self.live else "replayed")

    def _online(self, plan: Plan, races: Sequence[Race], seconds: float) -> dict[Any, Point | None]:
        bench: Bench = self.bench
        now = self.now
        if not self.live:
            replay = Replay({race.task.key: race for race in races}, self.bench.costs)
            bench, now = replay, replay.now
        with tempfile.TemporaryDirectory() as folder:
            empty = Store(Path(folder))
            outcome: Outcome = Online(plan, empty, bench, self.device, self.tools, now=now).run(
                seconds
            )
        found = {pick.key: dict(pick.tiles) for pick in outcome.picks}
        return {race.task.key: found.get(race.task.key) for race in races}


def _records(
    plan: Plan, races: Sequence[Race], picks: Mapping[str, Mapping[Any, Point | None]], how: str
) -> list[Document]:
    """What each pick takes, and its ratio to the fastest of all points; null where unknown."""
    shape = {
        "variant": plan.problem.variant.name,
        "T": plan.problem.length,
        "D": plan.problem.dim,
        "dtype": plan.problem.dtype,
        "online": how,
    }
    records: list[Document] = []
    for race in races:
        alive = [e for e in race.entries.values() if e.failure is None and e.samples]
        if not alive:
            continue
        best = min(alive, key=lambda e: e.median)
        record = {
            **shape,
            "kernel": race.task.role,
            "points": len(race.entries),
            "timed": len(alive),
            "failed": race.failures(),
            "best_us": round(best.median, 2),
            "best": dict(best.point),
        }
        for name, chosen in picks.items():
            record |= _judged(name, chosen.get(race.task.key), race, best.median)
        records.append(record)
    total: Document = {**shape, "kernel": "all", "best_us": _sum(records, "best_us")}
    for name in picks:
        time_ = _sum(records, f"{name}_us")
        total[f"{name}_us"] = time_
        total[f"{name}_ratio"] = _ratio(time_, total["best_us"])
    return [*records, total]


def _judged(name: str, point: Point | None, race: Race, best: float) -> Document:
    entry = race.entries.get(identity(point)) if point is not None else None
    time_ = round(entry.median, 2) if entry is not None and entry.samples else None
    shown = None if point is None else dict(point)
    return {name: shown, f"{name}_us": time_, f"{name}_ratio": _ratio(time_, best)}


def _sum(records: Sequence[Document], name: str) -> float | None:
    values = [record[name] for record in records]
    return round(sum(values), 2) if values and None not in values else None


def _ratio(time_: float | None, best: float | None) -> float | None:
    return None if time_ is None or not best else round(time_ / best, 4)


def verdict(records: Sequence[Document]) -> list[str]:
    """A line for each variant: the ratios of all kernels together, and what is missed."""
    lines = []
    for record in records:
        if record["kernel"] != "all":
            continue
        parts = []
        for name in ("offline", *(f"online_{s:.0f}" for s in BUDGETS)):
            ratio = record.get(f"{name}_ratio")
            shown = "unknown" if ratio is None else f"{ratio:.3f}"
            most = MUST.get(name)
            missed = most is not None and (ratio is None or ratio > most)
            parts.append(f"{name} {shown}{f' (missed: {most})' if missed else ''}")
        lines.append(f"{record['variant']} T={record['T']} D={record['D']}: {', '.join(parts)}")
    return lines


def write(document: Document, out: Path) -> None:
    """The results, written whole."""
    beside = out.with_suffix(".tmp")
    beside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    beside.replace(out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the trial; results are written after each variant."""
    given = _options().parse_args(arguments)
    device, end = device_of(torch.device("cuda", 0)), time.monotonic() + given.budget
    given.store.mkdir(parents=True, exist_ok=True)
    gpu = (visible_gpus() or ["0"])[0]
    bench = GpuBench(gpu, processes=given.processes, log=given.store / "gpu.log")
    compiler = Processes(given.processes, given.store / "compiler.log")
    timed = Timed(bench, Costs())
    trial = Trial(Store(given.store), device, toolchain(), timed, compiler, given.live)
    document: Document = {
        "device": machine.device("cuda"),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "records": [],
    }
    names = given.variants.split(",")
    try:
        for place, name in enumerate(names):
            left = end - time.monotonic()
            if left < LEAST:
                print(f"the budget is over before {name}: run it again with the same store")
                break
            problem = Problem(catalogue.find(name).node, given.dim, given.length)
            found = trial.run(Plan.of(problem, device), left / (len(names) - place))
            document["records"] += found
            write(document, given.out)
            print("\n".join(verdict(found)), flush=True)
    finally:
        bench.close()
        compiler.close()


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=500.0)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--live", action="store_true")
    return parser


if __name__ == "__main__":
    main()

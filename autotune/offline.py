"""The best tiles without the GPU in the room: estimate, compile, read what it needs, drop, rank.

    found = Offline(plan, store, compiler).run(deadline)

Rules refuse what cannot load (autotune/space.py). Of the rest the model's favourites are compiled
first, so that the budget ends the search where least is lost. What the compiled kernel needs drops
more, each with its reason, and the model ranks what is left by the real registers and bytes.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from gnomon.autotune.compiling import Compiled, Compiler
from gnomon.autotune.model import Estimate, Needs, estimate
from gnomon.autotune.plan import Plan, Task
from gnomon.autotune.space import Point, Refusal, Space
from gnomon.autotune.store import Record, Store
from gnomon.runtime.gpus import Device
from gnomon.runtime.tuned import Fault, Pick, Toolchain

MOST = 64
"""Points of a kernel that are compiled at most: those that the model likes best."""
SPILLS = 512
"""Bytes that a thread may spill; what spills more has never been among the fastest."""
Watch = Callable[["Ranking", Compiled | None], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point that was compiled and may load, with its modelled time."""

    point: Point
    estimate: Estimate

    @property
    def microseconds(self) -> float:
        """The modelled time of a launch."""
        return self.estimate.microseconds


@dataclass(slots=True)
class Ranking:
    """What is known of the points of one task.

    guesses   legal points and the model's opinion of each before it was compiled
    compiled  point -> what it needs
    refusals  what cannot be, with rule and reason
    left_out  legal points beyond MOST
    """

    task: Task
    guesses: list[Candidate] = field(default_factory=list)
    compiled: dict[tuple[int, ...], Candidate] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    left_out: int = 0

    @property
    def ranked(self) -> list[Candidate]:
        """The compiled candidates, the fastest of the model first; ties in a fixed order."""
        found = self.compiled.values()
        return sorted(found, key=lambda c: (c.microseconds, identity(c.point)))

    @property
    def waiting(self) -> int:
        """Legal points that nobody has compiled."""
        known = set(self.compiled) | {identity(r.point) for r in self.refusals}
        return sum(identity(c.point) not in known for c in self.guesses)

    @property
    def best(self) -> Candidate | None:
        """The pick of the model."""
        ranked = self.ranked
        return ranked[0] if ranked else None


def identity(point: Point) -> tuple[int, ...]:
    """A point as something to look up and to sort by."""
    return tuple(point.values())


@dataclass(slots=True)
class Offline:
    """The search for a plan without its GPU."""

    plan: Plan
    store: Store
    compiler: Compiler
    toolchain: Toolchain
    watch: Watch | None = None
    now: Callable[[], float] = time.monotonic

    def run(self, deadline: float) -> list[Ranking]:
        """A ranking for each task; nothing is compiled that begins after the deadline."""
        rankings = [sifted(task) for task in self.plan.tasks]
        known = {r.task.key: r for r in rankings}
        for record in self.store.records("compiled"):
            self._recall(record, rankings)
        for done in self.compiler.compile(self._jobs(rankings), deadline, self.now):
            ranking = known[done.task.key]
            self._take(ranking, done)
            if self.watch is not None:
                self.watch(ranking, done)
        return rankings

    def _jobs(self, rankings: list[Ranking]) -> Iterator[tuple[Task, Point]]:
        """Points that are not compiled yet, the best of every task first."""
        rows = []
        for ranking in rankings:
            out = set(ranking.compiled) | {identity(r.point) for r in ranking.refusals}
            open_ = [c.point for c in ranking.guesses if identity(c.point) not in out]
            rows.append([(ranking.task, point) for point in open_])
        for row in zip_longest(*rows):
            yield from (job for job in row if job is not None)

    def _take(self, ranking: Ranking, done: Compiled) -> None:
        task, point = done.task, dict(done.point)
        if done.report is None:
            assert done.failure is not None
            ranking.refusals.append(Refusal(point, done.failure.kind, done.failure.reason))
            if done.failure.kind != "timeout":  # a slow machine is no property of the tiles
                self.store.append(
                    Fault(
                        task.key,
                        self.plan.device,
                        self.toolchain,
                        point,
                        done.failure.kind,
                        done.failure.reason,
                    ).record()
                )
            return
        needs = Needs(done.report.shared, done.report.registers, done.report.spills)
        settle(ranking, point, needs)
        self.store.append(self._record(task, point, needs, done.report.seconds))

    def _record(self, task: Task, point: Point, needs: Needs, seconds: float) -> Record:
        return {
            "kind": "compiled",
            **_compiled_key(task, self.toolchain),
            "tiles": dict(point),
            "shared": needs.shared,
            "registers": needs.registers,
            "spills": needs.spills,
            "seconds": round(seconds, 2),
        }

    def _recall(self, record: Mapping[str, Any], rankings: list[Ranking]) -> None:
        """What an earlier run compiled for the same text, target and toolchain."""
        for ranking in rankings:
            wanted = _compiled_key(ranking.task, self.toolchain)
            if any(record.get(name) != value for name, value in wanted.items()):
                continue
            point = record["tiles"]
            if any(dict(c.point) == point for c in ranking.guesses):
                needs = Needs(record["shared"], record["registers"], record["spills"])
                settle(ranking, {n: point[n] for n in ranking.guesses[0].point}, needs)


def _compiled_key(task: Task, toolchain: Toolchain) -> Record:
    """What decides what a compiler makes of a kernel: no length, no group size."""
    return {
        "kernel": task.key.kernel,
        "widths": task.key.widths,
        "io": task.key.io,
        "target": task.situation.target.name,
        "toolchain": {"triton": toolchain.triton, "assembler": toolchain.assembler},
    }


def sifted(task: Task, most: int = MOST) -> Ranking:
    """The legal points of a task with the model's guess, and the others with their reasons."""
    legal, refusals = Space.of(task.situation).sifted()
    guesses = [Candidate(point, estimate(task.situation, point)) for point in legal]
    guesses.sort(key=lambda c: (c.microseconds, identity(c.point)))
    return Ranking(task, guesses[:most], refusals=refusals, left_out=len(guesses[most:]))


def settle(ranking: Ranking, point: Point, needs: Needs) -> None:
    """Enter what a compiled kernel needs: it is ranked, or out with the reason."""
    s = ranking.task.situation
    if needs.shared > s.target.shared:
        reason = f"{needs.shared} bytes of shared memory, of {s.target.shared}"
        ranking.refusals.append(Refusal(point, "shared memory, compiled", reason))
    elif needs.spills > SPILLS:
        reason = f"{needs.spills} bytes of registers spilled, of {SPILLS}"
        ranking.refusals.append(Refusal(point, "spills", reason))
    else:
        ranking.compiled[identity(point)] = Candidate(point, estimate(s, point, needs))


def picks(plan: Plan, rankings: list[Ranking], device: Device, toolchain: Toolchain) -> list[Pick]:
    """The picks of the model; a task of which nothing fits has none."""
    found = []
    for ranking in rankings:
        best = ranking.best
        if best is None:
            continue
        needs = best.estimate.needs
        evidence = {
            "modelled_us": round(best.microseconds, 1),
            "shared": needs.shared,
            "registers": needs.registers,
            "spills": needs.spills,
            "compiled": len(ranking.compiled),
        }
        task = ranking.task
        found.append(
            Pick(
                task.key,
                device,
                toolchain,
                dict(best.point),
                "modelled",
                task.variant,
                task.formula,
                evidence,
            )
        )
    return found

"""The fastest tiles that are right, measured: first samples, rounds, ties, the gate.

    outcome = Online(plan, store, bench, device, toolchain).run(budget)

1. The model's favourites, the tiles in use and the default are compiled and launched once.
2. Each gets one sample; what is far behind is dropped, unless it is in use.
3. The others are sampled round by round, every second round backwards. A GPU that is limited by
   its power drifts: candidates are compared within a round, by the ratio to the fastest.
4. Whoever cannot be told from the fastest is a tie. Tiles in use win a tie; else the fastest.
5. The winner is checked against the oracle; one that is wrong is quarantined, the next one tried.

Every sample is on disk before the next is taken. A run that was killed, interrupted or out of time
is continued by running again: what is known is not measured again.
"""

import secrets
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from gnomon.autotune.bench import Bench, BenchError
from gnomon.autotune.compiling import Failure
from gnomon.autotune.offline import identity, sifted
from gnomon.autotune.plan import Plan, Task
from gnomon.autotune.space import Point
from gnomon.autotune.store import Store
from gnomon.runtime.gpus import Device
from gnomon.runtime.tuned import Fault, Pick, Query, Toolchain, look_up, same_tiles

Identity = tuple[int, ...]
Place = tuple[str, int]
"""A run and a round of it: samples of one place can be compared."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    candidates  of a kernel, the model's best
    rounds      of which each finalist has a sample
    hopeless    times the fastest first sample: what is slower is dropped
    noise       the least difference that counts, where no round has both
    compiling, checking   shares of the budget: until when candidates are compiled, and what is
                          kept for the gate
    """

    candidates: int = 24
    rounds: int = 5
    hopeless: float = 1.3
    noise: float = 0.03
    compiling: float = 0.5
    checking: float = 0.15


@dataclass(slots=True, eq=False)
class Entry:
    """One candidate: its samples by run and round, and how it failed, if it did."""

    point: Point
    samples: dict[Place, float] = field(default_factory=dict)
    failure: Failure | None = None
    dropped: str = ""
    launched: bool = False
    checked: bool = False

    @property
    def median(self) -> float:
        """Microseconds."""
        return statistics.median(self.samples.values())

    @property
    def alive(self) -> bool:
        """Whether it may still win."""
        return self.failure is None and not self.dropped


@dataclass(slots=True, eq=False)
class Race:
    """The candidates of one task."""

    task: Task
    incumbent: Point
    entries: dict[Identity, Entry]
    winner: Entry | None = None
    trouble: str = ""

    def alive(self) -> list[Entry]:
        """Who may still win and has a sample, the fastest first."""
        found = [e for e in self.entries.values() if e.alive and e.samples]
        return sorted(found, key=lambda e: (e.median, identity(e.point)))

    def failures(self) -> dict[str, int]:
        """How many failed, by class."""
        kinds = [e.failure.kind for e in self.entries.values() if e.failure is not None]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    @property
    def in_use(self) -> Entry:
        """The candidate that a look-up gives now."""
        return self.entries[identity(self.incumbent)]


@dataclass(slots=True)
class Outcome:
    """What a run came to; `stopped` says why it ended early, or is empty."""

    plan: Plan
    races: list[Race]
    picks: list[Pick] = field(default_factory=list)
    stopped: str = ""


def ratio(entry: Entry, leader: Entry, noise: float) -> tuple[float, float]:
    """Bounds of the time of an entry over that of the leader.

    By the rounds that have both: the order statistics that hold the median with 94 % or more (the
    extremes up to 7 rounds, one further in up to 10, ...). With fewer than three such rounds the
    quotient of the medians, give or take `noise`.
    """
    shared = [place for place in entry.samples if place in leader.samples]
    if len(shared) < 3:
        quotient = entry.median / leader.median
        return quotient / (1 + noise), quotient * (1 + noise)
    found = sorted(entry.samples[p] / leader.samples[p] for p in shared)
    inner = max(0, (len(found) - 5) // 3)
    return found[inner], found[-1 - inner]


def ties(race: Race, noise: float) -> list[Entry]:
    """The fastest, and those that no measurement tells from it."""
    alive = race.alive()
    return [e for e in alive if e is alive[0] or ratio(e, alive[0], noise)[0] <= 1.0]


@dataclass(slots=True)
class Online:
    """The search for a plan on its GPU."""

    plan: Plan
    store: Store
    bench: Bench
    device: Device
    toolchain: Toolchain
    effort: Effort = field(default_factory=Effort)
    watch: Callable[[str, Outcome], None] | None = None
    now: Callable[[], float] = time.monotonic
    run_name: str = field(default_factory=lambda: secrets.token_hex(4))

    def run(self, budget: float) -> Outcome:
        """Tune for so many seconds at most; Ctrl-C ends it early, and nothing is lost."""
        begin = self.now()
        outcome = Outcome(self.plan, [self._race(task) for task in self.plan.tasks])
        try:
            self._recall(outcome)
            self._launch(outcome, begin + budget * self.effort.compiling)
            self._measure(outcome, begin + budget * (1 - self.effort.checking))
            self._decide(outcome, begin + budget)
        except KeyboardInterrupt:
            outcome.stopped = "interrupted"
        if not outcome.stopped and self.now() >= begin + budget:
            outcome.stopped = "out of time"
        return outcome

    # ---- candidates

    def _race(self, task: Task) -> Race:
        """The tiles in use, the default, and the model's best."""
        found = look_up(self.store.table(), Query(task.key, self.device, self.toolchain))
        default = task.default.numbers("triton")
        order = list(sifted(task).guesses)
        names = list(order[0].point) if order else list(default)
        used = found.pick.tiles if found is not None else default
        incumbent = {name: used[name] for name in names}
        points = [incumbent, {name: default[name] for name in names}]
        points += [dict(c.point) for c in order[: self.effort.candidates]]
        return Race(task, incumbent, {identity(p): Entry(p) for p in points})

    def _recall(self, outcome: Outcome) -> None:
        """What the store knows: samples, checks and faults of this kernel, here, so compiled."""
        for record in self.store.records("time", "checked", "fault"):
            for race in outcome.races:
                entry = self._entry(race, record)
                if entry is None:
                    continue
                if record["kind"] == "time" and record["key"]["length"] == race.task.key.length:
                    entry.samples[str(record["run"]), int(record["round"])] = float(record["us"])
                elif record["kind"] == "checked":
                    entry.checked = True
                elif record["kind"] == "fault":
                    entry.failure = Failure(str(record["failure"]), "known: " + record["reason"])

    def _entry(self, race: Race, record: Mapping[str, Any]) -> Entry | None:
        """The candidate that a record is about. Only what speaks of this device and binary counts.

        A check or a fault holds for every length: the code is the same.
        """
        try:
            key, tools, device = record["key"], record["toolchain"], record["device"]
            own = race.task.key
            same_key = (key["kernel"], key["widths"], key["io"]) == (own.kernel, own.widths, own.io)
            same_key = same_key and (record["kind"] != "time" or key["groups"] == own.groups)
            binary = Toolchain(tools["triton"], tools["assembler"]).same_binary(self.toolchain)
            if not same_key or not binary or device["id"] != self.device.id:
                return None
            if device["processors"] != self.device.processors:
                return None
            return next(
                (e for e in race.entries.values() if same_tiles(e.point, record["tiles"])), None
            )
        except (KeyError, TypeError):
            return None

    # ---- measuring

    def _launch(self, outcome: Outcome, deadline: float) -> None:
        """Compile what shall be sampled, the best of every kernel first."""
        columns = [[(r.task, e.point) for e in self._to_sample(r)] for r in outcome.races]
        jobs = [job for row in zip_longest(*columns) for job in row if job is not None]
        races = {race.task.key: race for race in outcome.races}
        for task, point, failure in self.bench.first(self.plan, jobs, deadline):
            entry = races[task.key].entries[identity(point)]
            entry.launched = failure is None
            if failure is not None:
                self._fail(races[task.key], entry, failure)
            self._tell("compile", outcome)

    def _to_sample(self, race: Race) -> list[Entry]:
        """Nobody where everybody has all rounds; else all that are not far behind already."""
        self._drop_hopeless(race)
        self._drop_slower(race)
        alive = [e for e in race.entries.values() if e.alive]
        done = all(len(e.samples) > self.effort.rounds for e in alive)
        return [] if done else alive

    def _measure(self, outcome: Outcome, deadline: float) -> None:
        """First samples, then rounds; kernels are independent, rounds of them alternate."""
        for race in outcome.races:
            launched = [e for e in race.entries.values() if e.launched and e.failure is None]
            for entry in launched:
                if not entry.samples and self.now() < deadline:
                    self._sample(race, entry, 0)
                    self._tell("first sample", outcome)
            self._drop_hopeless(race)
        for number in range(1, self.effort.rounds + 1):
            if self.now() >= deadline:
                return
            for race in outcome.races:
                self._round(race, number)
                self._tell(f"round {number} of {self.effort.rounds}", outcome)

    def _round(self, race: Race, number: int) -> None:
        entries = [e for e in race.alive() if e.launched]
        measured = min((len(e.samples) for e in entries), default=0)
        if measured > self.effort.rounds:
            return
        for entry in entries if number % 2 else reversed(entries):
            self._sample(race, entry, number)
        self._drop_slower(race)

    def _drop_slower(self, race: Race) -> None:
        """Who was slower than the fastest in each of three rounds, or by the order statistics."""
        kept = {id(e) for e in ties(race, self.effort.noise)}
        alive = race.alive()
        for entry in alive:
            shared = sum(place in alive[0].samples for place in entry.samples if place[1] > 0)
            if shared >= 3 and id(entry) not in kept and entry is not race.in_use:
                entry.dropped = "slower in every round"

    def _drop_hopeless(self, race: Race) -> None:
        alive = race.alive()
        for entry in alive:
            if entry.median > self.effort.hopeless * alive[0].median and entry is not race.in_use:
                entry.dropped = f"{entry.median / alive[0].median:.2f} times the fastest"

    def _sample(self, race: Race, entry: Entry, number: int) -> None:
        """One sample, on disk at once; a failure is the candidate's in a fresh process alone."""
        try:
            us = self._tried(lambda: self.bench.sample(self.plan, race.task, entry.point))
        except BenchError as error:
            self._fail(race, entry, error.failure)
            return
        entry.samples[self.run_name, number] = us
        record = {"kind": "time", **self._about(race.task, entry), "us": round(us, 3)}
        self.store.append({**record, "run": self.run_name, "round": number})

    def _tried(self, step: Callable[[], Any]) -> Any:
        """A step, again in a fresh process where the first one was used before."""
        try:
            return step()
        except BenchError as error:
            if error.fresh or error.failure.kind in ("timeout", "wrong", "compile", "resources"):
                raise
            return step()

    def _fail(self, race: Race, entry: Entry, failure: Failure) -> None:
        entry.failure = failure
        about = race.task.key, self.device, self.toolchain, dict(entry.point)
        self.store.append(Fault(*about, failure.kind, failure.reason).record())

    # ---- deciding

    def _decide(self, outcome: Outcome, deadline: float) -> None:
        for race in outcome.races:
            race.winner = self._first_right(race, deadline)
            if race.winner is None:
                continue
            pick = self._pick(race, race.winner)
            outcome.picks.append(pick)
            self.store.append(pick.record())
            self._tell("check", outcome)

    def _first_right(self, race: Race, deadline: float) -> Entry | None:
        """The first in order that is right; None, with the trouble, where none is."""
        race.trouble = "nothing ran"
        for entry in self._in_order(race):
            if not entry.checked and self.now() >= deadline:
                race.trouble = "no time was left to check what was timed"
                return None
            if self._is_right(race, entry):
                race.trouble = ""
                return entry
            race.trouble = "nothing that was timed is right"
        return None

    def _in_order(self, race: Race) -> Iterable[Entry]:
        """The tiles in use where they tie with the fastest, then by speed; failures drop out."""
        tried: list[Entry] = []
        if any(e is race.in_use for e in ties(race, self.effort.noise)):
            tried.append(race.in_use)
            yield race.in_use
        # who was dropped was slower than one that may have turned out wrong
        timed = [e for e in race.entries.values() if e.samples and e.failure is None]
        for entry in sorted(timed, key=lambda e: (e.median, identity(e.point))):
            if all(entry is not t for t in tried):
                yield entry

    def _is_right(self, race: Race, entry: Entry) -> bool:
        """Forward, every gradient, the same bits twice, in poisoned memory; on disk."""
        if entry.checked:
            return True
        try:
            errors = self._tried(lambda: self.bench.check(self.plan, race.task, entry.point))
        except BenchError as error:
            self._fail(race, entry, error.failure)
            return False
        entry.checked = True
        shown = {name: float(f"{error:.3g}") for name, error in errors.items()}
        self.store.append({"kind": "checked", **self._about(race.task, entry), "errors": shown})
        return True

    def _pick(self, race: Race, winner: Entry) -> Pick:
        task, samples = race.task, sorted(winner.samples.values())
        default = race.in_use
        evidence = {
            "median_us": round(winner.median, 2),
            "low_us": round(samples[0], 2),
            "high_us": round(samples[-1], 2),
            "rounds": len(samples),
            "candidates": sum(bool(e.samples) for e in race.entries.values()),
        }
        if default.samples:
            evidence["in_use_us"] = round(default.median, 2)
        others = [e for e in ties(race, self.effort.noise) if e is not winner]
        return Pick(
            task.key,
            self.device,
            self.toolchain,
            dict(winner.point),
            "timed",
            task.variant,
            task.formula,
            evidence,
            tuple(dict(e.point) for e in others),
        )

    def _about(self, task: Task, entry: Entry) -> dict[str, Any]:
        """What a record says of a candidate."""
        pick = Pick(task.key, self.device, self.toolchain, dict(entry.point), "timed", task.variant)
        record = pick.record()
        return {n: record[n] for n in ("key", "device", "toolchain", "tiles", "variant")}

    def _tell(self, step: str, outcome: Outcome) -> None:
        if self.watch is not None:
            self.watch(step, outcome)

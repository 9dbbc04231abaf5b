"""Many plans on many GPUs: here one worker for each visible card, elsewhere whatever Ray has.

A plan stays on one card, since only samples of one card can be compared. No scheduler of our own:
a queue of plans, and threads or Ray tasks that take from it.
"""

import importlib
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gnomon.autotune.bench import Bench, GpuBench
from gnomon.autotune.online import Effort, Online, Outcome
from gnomon.autotune.plan import Plan
from gnomon.autotune.store import KINDS, Record, Store
from gnomon.dsl.errors import InputError
from gnomon.runtime.gpus import Device
from gnomon.runtime.tuned import Toolchain

LEAST = 5.0
"""Seconds: a plan is not begun with less."""


@dataclass(frozen=True, slots=True)
class Search:
    """What every plan is tuned with."""

    device: Device
    toolchain: Toolchain
    effort: Effort = field(default_factory=Effort)


class Executor(Protocol):
    """What runs the plans; outcomes come as they are ready."""

    def run(
        self,
        plans: Sequence[Plan],
        store: Store,
        search: Search,
        budget: float,
        watch: Callable[[str, Outcome], None] | None = None,
    ) -> Iterator[Outcome]:
        """Outcomes within so many seconds; a plan that found no time has none."""
        ...


def visible_gpus() -> list[str]:
    """The cards that this process may use, as CUDA_VISIBLE_DEVICES names them.

    Torch is not asked: it would take memory on a card that is to be measured.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip() not in ("", "-1")]
    try:
        done = subprocess.run(
            ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader"),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []


@dataclass
class Local:
    """One thread for each card; each has processes of its own, which it may kill."""

    gpus: Sequence[str]
    make: Callable[[str], Bench] = GpuBench
    now: Callable[[], float] = time.monotonic

    def run(
        self,
        plans: Sequence[Plan],
        store: Store,
        search: Search,
        budget: float,
        watch: Callable[[str, Outcome], None] | None = None,
    ) -> Iterator[Outcome]:
        """Outcomes as they are ready; Ctrl-C ends the running plans and begins no other."""
        if not self.gpus:
            raise InputError("--gpu", "a visible GPU", "none", "--offline needs none")
        deadline = self.now() + budget
        waiting: queue.SimpleQueue[Plan] = queue.SimpleQueue()
        for plan in plans:
            waiting.put(plan)
        shared = _Shared(waiting, deadline, store, search, watch, self)
        if len(self.gpus) == 1:  # in this thread, so that Ctrl-C reaches the search
            yield from shared.work(self.gpus[0])
            return
        ready: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()
        threads = [
            threading.Thread(target=_collect, args=(shared, gpu, ready), daemon=True)
            for gpu in self.gpus
        ]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                result = ready.get()
                if result is None:
                    running -= 1
                elif isinstance(result, BaseException):
                    raise result
                else:
                    yield result
        finally:
            shared.stopped.set()


def _collect(
    shared: "_Shared", gpu: str, ready: "queue.SimpleQueue[Outcome | BaseException | None]"
) -> None:
    try:
        for outcome in shared.work(gpu):
            ready.put(outcome)
    except BaseException as error:  # noqa: BLE001  it is raised again by who waits
        ready.put(error)
    ready.put(None)


@dataclass
class _Shared:
    """What the threads have in common."""

    waiting: "queue.SimpleQueue[Plan]"
    deadline: float
    store: Store
    search: Search
    watch: Callable[[str, Outcome], None] | None
    local: Local
    stopped: threading.Event = field(default_factory=threading.Event)

    def work(self, gpu: str) -> Iterator[Outcome]:
        """The plans that one card takes; each has an even share of the time that is left."""
        bench = self.local.make(gpu)
        try:
            while not self.stopped.is_set():
                left = self.deadline - self.local.now()
                share = left / max(-(-self.waiting.qsize() // len(self.local.gpus)), 1)
                if left < LEAST:
                    return
                try:
                    plan = self.waiting.get_nowait()
                except queue.Empty:
                    return
                outcome = Online(
                    plan,
                    self.store,
                    bench,
                    self.search.device,
                    self.search.toolchain,
                    self.search.effort,
                    self.watch,
                    self.local.now,
                ).run(max(share, LEAST))
                yield outcome
                if outcome.stopped == "interrupted":
                    return
        finally:
            bench.close()


# ---- Ray


@dataclass
class Ray:
    """Tasks of one GPU each, on a cluster or on this machine. InputError where Ray is not there."""

    ray: Any = None
    """The package; a test gives its own."""

    def run(
        self,
        plans: Sequence[Plan],
        store: Store,
        search: Search,
        budget: float,
        watch: Callable[[str, Outcome], None] | None = None,
    ) -> Iterator[Outcome]:
        """Outcomes as they are ready; what a task measured is added to the store with it."""
        ray = self.ray or _ray()
        ray.init(ignore_reinit_error=True)
        cards = max(int(ray.cluster_resources().get("GPU", 0)), 1)
        share = max(budget * cards / max(len(plans), 1), LEAST)
        task = ray.remote(num_gpus=1)(tune_there)
        known = list(store.records(*KINDS))
        running = [task.remote(plan, known, search, share) for plan in plans]
        try:
            while running:
                done, running = ray.wait(running, num_returns=1)
                for each in done:
                    outcome, records = ray.get(each)
                    store.append(*records)
                    if watch is not None:
                        watch("done", outcome)
                    yield outcome
        finally:
            for each in running:
                ray.cancel(each)


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError:
        raise InputError(
            "--executor", "local, or ray where it is installed", "ray", "pip install ray"
        ) from None


def tune_there(
    plan: Plan,
    known: Sequence[Record],
    search: Search,
    budget: float,
    make: Callable[[str], Bench] = GpuBench,
) -> tuple[Outcome, list[Record]]:
    """A task on another machine: the outcome, and the records that are new.

    It has a store of its own, with what the caller knows; nothing is shared but what is returned.
    """
    gpus = visible_gpus() or ["0"]
    with tempfile.TemporaryDirectory(prefix="gnomon-") as folder:
        before, own = Store(Path(folder)), Store(Path(folder))
        before.append(*known)
        bench = make(gpus[0])
        try:
            outcome = Online(plan, own, bench, search.device, search.toolchain, search.effort).run(
                budget
            )
        finally:
            bench.close()
        return outcome, own.own()

"""Candidates compiled for a target in processes of their own, which may crash, hang or be killed.

Threads would share one compiler's fate: LLVM aborts the process, ptxas may never end.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gnomon.autotune.plan import NAMES, Task
from gnomon.autotune.space import Point
from gnomon.lowering.emit.triton import print_module, printed
from gnomon.runtime.offline import ENVIRONMENT, Report, compile_kernel, specialise
from gnomon.runtime.worker import JobTimeoutError, Worker, WorkerDiedError, WorkerError

TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A class of failure (compile, timeout, died, launch, wrong, ...) and its words, one line."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """What came of one candidate: a report, or a failure."""

    task: Task
    point: Point
    report: Report | None
    failure: Failure | None = None


class Compiler(Protocol):
    """What compiles candidates, in whatever order they are ready."""

    def compile(
        self, jobs: Iterable[tuple[Task, Point]], deadline: float, now: Callable[[], float]
    ) -> Iterator[Compiled]:
        """Each as it is ready; none begins after the deadline."""
        ...


def failure_of(error: Exception) -> Failure:
    """The class of what a worker raised, and the last line of it that says something."""
    kinds: dict[type[Exception], str] = {JobTimeoutError: "timeout", WorkerDiedError: "died"}
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return Failure(kinds.get(type(error), "compile"), (lines[-1] if lines else "")[:300])


class Processes:
    """A pool of compiling processes; `log` gets what they print."""

    def __init__(
        self, count: int | None = None, log: Path | None = None, timeout: float = TIMEOUT
    ) -> None:
        self.count = count or max(os.cpu_count() or 1, 1)
        self.timeout = timeout
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._workers = [Worker(ENVIRONMENT, log) for _ in range(self.count)]
        for worker in self._workers:
            self._idle.put(worker)
        self._stopped = threading.Event()

    def compile(
        self,
        jobs: Iterable[tuple[Task, Point]],
        deadline: float,
        now: Callable[[], float] = time.monotonic,
    ) -> Iterator[Compiled]:
        """Each as it is ready; none begins after the deadline."""

        def one(task: Task, point: Point) -> Compiled | None:
            if now() >= deadline or self._stopped.is_set():
                return None
            worker = self._idle.get()
            try:
                return compiled(task, point, worker, min(self.timeout, deadline - now() + 20.0))
            finally:
                self._idle.put(worker)

        with ThreadPoolExecutor(self.count) as threads:
            waiting: list[Future[Compiled | None]] = [threads.submit(one, *job) for job in jobs]
            try:
                for future in as_completed(waiting):
                    result = future.result()
                    if result is not None:
                        yield result
            finally:
                for future in waiting:
                    future.cancel()

    def close(self) -> None:
        """End every process."""
        self._stopped.set()
        for worker in self._workers:
            worker.close()


def compiled(task: Task, point: Point, worker: Worker, timeout: float) -> Compiled:
    """One candidate, compiled for the target of its situation."""
    s = task.situation
    constants = {**s.sizes, **point}
    how = specialise(printed(s.kernel, descriptors=s.descriptors).arguments, NAMES[s.io], constants)
    try:
        report = compile_kernel(
            print_module([s.kernel], s.kernel.doc, descriptors=s.descriptors),
            s.kernel.name,
            how.signature,
            how.constexprs,
            s.target.name,
            num_warps=point["num_warps"],
            num_stages=point["num_stages"],
            divisible=how.divisible,
            fuses=s.kernel.fuses,
            timeout=timeout,
            worker=worker,
        )
    except WorkerError as error:
        return Compiled(task, point, None, failure_of(error))
    return Compiled(task, point, report)

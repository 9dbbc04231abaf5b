"""A GPU as the tuner sees it: first launches in many processes, samples and checks in one.

The process that times may hang, crash, or lose its device: it is killed and started anew, and the
candidate is told apart from its surroundings by whether the process was fresh.
"""

import os
import queue
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Protocol

from gnomon.autotune.compiling import Failure
from gnomon.autotune.plan import Plan, Task
from gnomon.autotune.space import Point
from gnomon.runtime.worker import JobTimeoutError, Worker, WorkerDiedError, WorkerError

_JOB = Path(__file__).with_name("gpu_job.py")
FIRST, SAMPLE, CHECK = 90.0, 20.0, 120.0
"""Seconds that a first launch, a sample and a check may take; the first job of a process more."""
IMPORTS = 60.0


class BenchError(RuntimeError):
    """A candidate failed. `fresh`: the process had done nothing before, so that it is to blame."""

    def __init__(self, failure: Failure, *, fresh: bool) -> None:
        super().__init__(failure.reason)
        self.failure, self.fresh = failure, fresh


class Bench(Protocol):
    """What launches, times and checks candidates of a plan."""

    def first(
        self, plan: Plan, jobs: Iterable[tuple[Task, Point]], deadline: float
    ) -> Iterator[tuple[Task, Point, Failure | None]]:
        """Compile and launch each once; none begins after the deadline."""
        ...

    def sample(self, plan: Plan, task: Task, point: Point) -> float:
        """Microseconds of a launch. Raises BenchError."""
        ...

    def check(self, plan: Plan, task: Task, point: Point) -> Mapping[str, float]:
        """The worst error of each tensor, this kernel with the point. Raises BenchError."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...


_HEADER = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|OutOfResources))(?:: (.*))?$")
"""The line of a traceback that names what was raised; its words may go on for lines."""
_KINDS = {
    "DeviceLostError": "lost",
    "WrongResultError": "wrong",
    "OutOfResources": "resources",
    "CompilationError": "compile",
    "CompileTimeAssertionFailure": "compile",
    "PTXASError": "compile",
}


def classify(error: WorkerError) -> Failure:
    """The class of what a job raised: timeout, died, lost, wrong, resources, compile or launch."""
    text = str(error).strip()
    if isinstance(error, JobTimeoutError | WorkerDiedError):
        return Failure("timeout" if isinstance(error, JobTimeoutError) else "died", text)
    headers = [found for line in text.splitlines() if (found := _HEADER.match(line))]
    if not headers:
        return Failure("launch", text[-300:])
    name, words = headers[-1][1].rpartition(".")[2], headers[-1][2] or ""
    kind = "compile" if "PassManager::run failed" in words else _KINDS.get(name, "launch")
    shown = words if kind in ("lost", "wrong", "resources") else f"{name}: {words}"
    return Failure(kind, shown[:300])


class GpuBench:
    """One GPU of this machine, by its index among the visible ones."""

    def __init__(
        self,
        gpu: str = "0",
        *,
        processes: int | None = None,
        log: Path | None = None,
        sample_ms: float = 20.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        environment: dict[str, str | None] = {
            "CUDA_VISIBLE_DEVICES": gpu,
            "TRITON_INTERPRET": None,
            "CUDA_DEVICE_MAX_CONNECTIONS": None,
        }
        self.sample_ms, self.now = sample_ms, now
        self._timer = Worker(environment, log)
        count = processes or max(1, min((os.cpu_count() or 2) - 2, 14))
        self._makers = [Worker(environment, log) for _ in range(count)]
        self._done: set[tuple[object, ...]] = set()
        self._problem: object = None

    def first(
        self, plan: Plan, jobs: Iterable[tuple[Task, Point]], deadline: float
    ) -> Iterator[tuple[Task, Point, Failure | None]]:
        """Compile and launch each once, on few tokens: the compiler's cache then has it."""
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._makers:
            idle.put(worker)

        def one(task: Task, point: Point) -> tuple[Task, Point, Failure | None] | None:
            made = (task.key.kernel, task.key.widths, task.key.io, *point.values())
            if made in self._done:
                return task, point, None
            if self.now() >= deadline:
                return None
            worker = idle.get()
            try:
                failure = self._launch(worker, plan, task, point)
            finally:
                idle.put(worker)
            if failure is None:
                self._done.add(made)
            return task, point, failure

        with ThreadPoolExecutor(len(self._makers)) as threads:
            waiting = [threads.submit(one, *job) for job in jobs]
            try:
                for future in as_completed(waiting):
                    result = future.result()
                    if result is not None:
                        yield result
            finally:
                for future in waiting:
                    future.cancel()

    def _launch(self, worker: Worker, plan: Plan, task: Task, point: Point) -> Failure | None:
        """A first launch, and a second try in a fresh process where the first was used."""
        for _ in range(2):
            fresh = not worker.is_running()
            timeout = FIRST + IMPORTS * fresh
            args = plan.problem, task.names[0], dict(point)
            try:
                worker.run(_JOB, "first_launch", *args, timeout=timeout)
            except WorkerError as error:
                failure = classify(error)
                if failure.kind == "lost":
                    worker.close()
                if fresh or failure.kind in ("compile", "resources", "timeout"):
                    return failure
                worker.close()
            else:
                return None
        return failure

    def sample(self, plan: Plan, task: Task, point: Point) -> float:
        """Microseconds of a launch. Raises BenchError."""
        args = plan.problem, task.names[0], dict(point), self.sample_ms
        return float(self._run("sample", *args, timeout=SAMPLE))

    def check(self, plan: Plan, task: Task, point: Point) -> Mapping[str, float]:
        """The worst error of each tensor, this kernel with the point. Raises BenchError."""
        tiles = {name: dict(point) for name in task.names}
        found: dict[str, float] = self._run("verify", plan.problem, tiles, timeout=CHECK)
        return found

    def _run(self, function: str, *args: object, timeout: float) -> Any:
        fresh = not self._timer.is_running()
        # a first job imports torch, makes the tensors of its problem, and compiles the defaults
        first = fresh or args[0] is not self._problem
        self._problem = args[0]
        try:
            return self._timer.run(_JOB, function, *args, timeout=timeout + IMPORTS * first)
        except WorkerError as error:
            failure = classify(error)
            if failure.kind in ("lost", "launch"):
                self._timer.close()  # whatever it left behind is not the next one's
            raise BenchError(failure, fresh=fresh) from None

    def close(self) -> None:
        """End every process."""
        for worker in (self._timer, *self._makers):
            worker.close()

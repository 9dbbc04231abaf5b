"""Many plans on several cards, here and on Ray; a process of a GPU that hangs, crashes, is lost."""

import importlib.util
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import HERE, PLAN, TOOLS, FakeBench, FakeClock, tune_there_by_a_fake

from gnomon.autotune import bench as benches
from gnomon.autotune import fleet
from gnomon.autotune.bench import BenchError, GpuBench, classify
from gnomon.autotune.fleet import Local, Ray, Search, tune_there, visible_gpus
from gnomon.autotune.plan import Plan, Problem
from gnomon.autotune.store import Store
from gnomon.dsl import catalogue
from gnomon.dsl.errors import InputError
from gnomon.runtime.worker import JobTimeoutError, WorkerDiedError, WorkerError

SEARCH = Search(HERE, TOOLS)
PLANS = [PLAN, Plan.of(Problem(catalogue.find("fox").node, 64), HERE)]


def fake(gpu: str) -> FakeBench:
    return FakeBench(FakeClock())


# ---- here


def test_each_plan_is_tuned_once_on_one_of_the_cards(tmp_path: Path) -> None:
    made: dict[str, FakeBench] = {}

    def make(gpu: str) -> FakeBench:
        made[gpu] = fake(gpu)
        return made[gpu]

    store = Store(tmp_path)
    outcomes = list(Local(["0", "1"], make).run(PLANS, store, SEARCH, 600.0))
    assert sorted(o.plan.problem.dim for o in outcomes) == [64, 128]
    assert all(len(o.picks) == 3 for o in outcomes)
    assert len(list(store.records("pick"))) == 6
    assert all(bench.log[-1][0] == "close" for bench in made.values())


def test_plans_share_the_time_that_is_left(tmp_path: Path) -> None:
    clock = FakeClock()
    benches = [FakeBench(clock)]
    local = Local(["0"], lambda gpu: benches[0], now=clock)
    outcomes = list(local.run(PLANS, Store(tmp_path), SEARCH, 60.0))
    assert len(outcomes) == 2
    assert clock() <= 62.0


def test_a_plan_without_time_is_not_begun(tmp_path: Path) -> None:
    assert list(Local(["0"], fake).run(PLANS, Store(tmp_path), SEARCH, 1.0)) == []


def test_an_interruption_ends_the_plan_and_begins_no_other(tmp_path: Path) -> None:
    local = Local(["0"], lambda gpu: FakeBench(FakeClock(), stop_after=30))
    outcomes = list(local.run(PLANS, Store(tmp_path), SEARCH, 600.0))
    assert [o.stopped for o in outcomes] == ["interrupted"]


def test_what_a_thread_raises_reaches_the_caller(tmp_path: Path) -> None:
    local = Local(["0", "1"], lambda gpu: FakeBench(FakeClock(), stop_after=3, error=OSError))
    with pytest.raises(OSError, match=r"^$"):
        list(local.run(PLANS, Store(tmp_path), SEARCH, 600.0))


def test_no_card_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--gpu: expected a visible GPU; got none"):
        list(Local([]).run(PLANS, Store(tmp_path), SEARCH, 600.0))


@pytest.mark.parametrize(
    ("named", "found"), [("0,2", ["0", "2"]), ("", []), ("-1", []), ("GPU-8f", ["GPU-8f"])]
)
def test_cards_are_those_that_the_environment_shows(
    named: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == found


# ---- on Ray


class FakeRay:
    """What the executor asks of Ray; arguments and results are pickled, as they would be."""

    def __init__(self, cards: int) -> None:
        self.cards, self.asked, self.cancelled = cards, list[Any](), list[Any]()

    def init(self, *, ignore_reinit_error: bool) -> None:
        assert ignore_reinit_error

    def cluster_resources(self) -> dict[str, float]:
        return {"GPU": float(self.cards), "CPU": 8.0}

    def remote(self, *, num_gpus: int) -> Callable[[Any], Any]:
        assert num_gpus == 1
        ray = self

        def wrap(function: Any) -> Any:
            class Task:
                @staticmethod
                def remote(*args: Any) -> bytes:
                    ray.asked.append(args)
                    given = pickle.loads(pickle.dumps(args))
                    return pickle.dumps(function(*given, make=fake))

            return Task

        return wrap

    def wait(self, running: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return running[:num_returns], running[num_returns:]

    def get(self, task: bytes) -> Any:
        return pickle.loads(task)

    def cancel(self, task: Any) -> None:
        self.cancelled.append(task)


def test_ray_runs_the_same_queue(tmp_path: Path) -> None:
    store, ray = Store(tmp_path), FakeRay(2)
    outcomes = list(Ray(ray).run(PLANS, store, SEARCH, 300.0))
    assert [len(o.picks) for o in outcomes] == [3, 3]
    assert len(list(store.records("pick"))) == 6
    assert [share for *_, share in ray.asked] == [300.0, 300.0]
    again = list(Ray(FakeRay(2)).run(PLANS, store, SEARCH, 300.0))
    assert all(o.picks for o in again)
    fresh = list(store.records("time"))
    assert len(fresh) == len({str(r) for r in fresh})


def test_what_is_left_is_cancelled_when_somebody_stops_listening(tmp_path: Path) -> None:
    ray = FakeRay(1)
    outcomes = Ray(ray).run(PLANS, Store(tmp_path), SEARCH, 300.0)
    next(iter(outcomes))
    outcomes.close()  # type: ignore[attr-defined]
    assert len(ray.cancelled) == 1


def test_a_task_there_returns_what_is_new_and_knows_what_is_old(tmp_path: Path) -> None:
    store = Store(tmp_path)
    outcome, records = tune_there(PLAN, [], SEARCH, 600.0, make=fake)
    assert len(outcome.picks) == 3
    again, nothing = tune_there(PLAN, records, SEARCH, 600.0, make=fake)
    assert {r["kind"] for r in nothing} == {"pick"}
    assert [p.tiles for p in again.picks] == [p.tiles for p in outcome.picks]
    assert list(store.records()) == []


def test_ray_that_is_not_installed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="--executor: expected local, or ray where it is"):
        list(Ray().run(PLANS, Store(tmp_path), SEARCH, 300.0))


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_a_local_ray_runs_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray: Any = importlib.import_module("ray")
    ray.init(num_cpus=1, num_gpus=1, include_dashboard=False)
    try:
        monkeypatch.setattr(fleet, "tune_there", tune_there_by_a_fake)
        outcomes = list(Ray().run([PLAN], Store(tmp_path), SEARCH, 300.0))
        assert [len(o.picks) for o in outcomes] == [3]
    finally:
        ray.shutdown()


# ---- the process of a GPU

TASK = PLAN.tasks[0]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (JobTimeoutError("sample took more than 20 s; its process is gone"), "timeout"),
        (WorkerDiedError("the process of sample died with exit status -11"), "died"),
        (WorkerError("Trace\ngpu_job.DeviceLostError: CUDA error: an illegal access"), "lost"),
        (WorkerError("Trace\ngpu_job.WrongResultError: dq 3e-1 of 8e-3 (384 tokens)"), "wrong"),
        (WorkerError("Trace\ntriton.OutOfResources: out of resource: shared memory"), "resources"),
        (
            WorkerError("Trace\ntriton.errors.CompilationError: at 3:4:\n    x = y\n    ^"),
            "compile",
        ),
        (WorkerError("Trace\nRuntimeError: PassManager::run failed"), "compile"),
        (
            WorkerError("Trace\nKeyError: 1\n\nDuring it\n\ngpu_job.DeviceLostError: x\nmore"),
            "lost",
        ),
        (WorkerError("Trace\nRuntimeError: Triton Error [CUDA]: invalid argument"), "launch"),
        (WorkerError(""), "launch"),
    ],
)
def test_the_class_of_a_failure(error: WorkerError, kind: str) -> None:
    assert classify(error).kind == kind


JOB = """
import os, time
calls = 0
class DeviceLostError(RuntimeError): pass
def sample(problem, kernel, tiles, milliseconds):
    global calls
    calls += 1
    if tiles["BM"] == 16: os.kill(os.getpid(), 11)
    if tiles["BM"] == 32: time.sleep(600)
    if tiles["BM"] == 64: raise DeviceLostError("CUDA error: an illegal memory access")
    return float(calls)
def first_launch(problem, kernel, tiles):
    sample(problem, kernel, tiles, 1.0)
def verify(problem, tiles):
    return {"out": 1e-3}
"""


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuBench]:
    """A GPU whose job is the script above: real processes, which really die."""
    job = tmp_path / "gpu_job.py"
    job.write_text(JOB)
    monkeypatch.setattr(benches, "_JOB", job)
    monkeypatch.setattr(benches, "SAMPLE", 3.0)
    monkeypatch.setattr(benches, "FIRST", 3.0)
    monkeypatch.setattr(benches, "IMPORTS", 3.0)
    made = GpuBench("0", processes=2, log=tmp_path / "log")
    yield made
    made.close()


def point(height: int) -> dict[str, int]:
    return {"BM": height, "BN": 64, "num_warps": 4, "num_stages": 2}


@pytest.mark.parametrize(("height", "kind"), [(16, "died"), (32, "timeout"), (64, "lost")])
def test_a_process_that_fails_is_replaced(gpu: GpuBench, height: int, kind: str) -> None:
    assert gpu.sample(PLAN, TASK, point(128)) == 1.0
    with pytest.raises(BenchError) as error:
        gpu.sample(PLAN, TASK, point(height))
    assert (error.value.failure.kind, error.value.fresh) == (kind, False)
    assert gpu.sample(PLAN, TASK, point(128)) == 1.0  # the first call of a new process
    assert gpu.sample(PLAN, TASK, point(128)) == 2.0
    assert gpu.check(PLAN, TASK, point(128)) == {"out": 1e-3}


def test_a_failure_in_a_fresh_process_is_the_candidates(gpu: GpuBench) -> None:
    with pytest.raises(BenchError) as error:
        gpu.sample(PLAN, TASK, point(16))
    assert error.value.fresh


def test_first_launches_run_beside_each_other_and_report_their_failures(gpu: GpuBench) -> None:
    jobs = [(TASK, point(height)) for height in (128, 16, 64, 256)]
    found = {p["BM"]: failure for _, p, failure in gpu.first(PLAN, jobs, deadline=1e18)}
    assert {height: failure and failure.kind for height, failure in found.items()} == {
        128: None,
        16: "died",
        64: "lost",
        256: None,
    }


def test_what_was_launched_is_not_launched_again(gpu: GpuBench) -> None:
    jobs = [(TASK, point(128))]
    assert len(list(gpu.first(PLAN, jobs, deadline=1e18))) == 1
    gpu.close()
    assert [failure for *_, failure in gpu.first(PLAN, jobs, deadline=-1.0)] == [None]
    assert list(gpu.first(PLAN, [(TASK, point(256))], deadline=-1.0)) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="the launch would succeed")
def test_the_real_job_reaches_the_driver(tmp_path: Path) -> None:
    """Everything up to CUDA: the problem is unpickled, the job imported, the module printed."""
    made = GpuBench("0", processes=1, log=tmp_path / "log")
    try:
        ((_, _, failure),) = made.first(PLAN, [(TASK, point(64))], deadline=1e18)
    finally:
        made.close()
    assert failure is not None
    assert failure.kind in ("launch", "lost")
    assert "NVIDIA" in failure.reason or "CUDA" in failure.reason

"""A job may raise, crash or hang: the parent says which, and the next job runs."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnomon.runtime.worker import Worker, WorkerError

JOBS = """
import os, signal, sys, time


def double(x):
    print("what a job prints is no answer")
    return 2 * x


def refuse():
    raise KeyError("nothing of that name")


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def hang():
    time.sleep(60)


def variable(name):
    return os.environ.get(name)


def modules():
    return sorted(sys.modules)
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worker") / "jobs.py"
    path.write_text(JOBS)
    return path


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker({"GNOMON_A": "1", "HOME": None}) as made:
        yield made


def test_the_result_comes_back(worker: Worker, jobs: Path) -> None:
    assert worker.run(jobs, "double", 21) == 42
    assert worker.run(jobs, "double", b"ab" * 500_000) == b"ab" * 1_000_000


def test_an_error_arrives_as_its_traceback(worker: Worker, jobs: Path) -> None:
    with pytest.raises(WorkerError, match=r"(?s)in refuse.*KeyError: 'nothing of that name'"):
        worker.run(jobs, "refuse")
    assert worker.run(jobs, "double", 1) == 2


def test_a_crash_costs_one_process(worker: Worker, jobs: Path) -> None:
    with pytest.raises(WorkerError, match=r"the process of crash died with exit status -11"):
        worker.run(jobs, "crash")
    assert worker.run(jobs, "double", 1) == 2


def test_a_job_that_hangs_is_killed_in_time(worker: Worker, jobs: Path) -> None:
    worker.run(jobs, "double", 1)
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"hang took more than 0.2 s"):
        worker.run(jobs, "hang", timeout=0.2)
    assert time.monotonic() - begin < 10
    assert worker.run(jobs, "double", 1) == 2


def test_the_environment_differs_where_it_is_told_to(worker: Worker, jobs: Path) -> None:
    assert worker.run(jobs, "variable", "GNOMON_A") == "1"
    assert worker.run(jobs, "variable", "HOME") is None
    assert worker.run(jobs, "variable", "PATH") == os.environ["PATH"]


def test_a_process_starts_without_torch(worker: Worker, jobs: Path) -> None:
    assert not {"torch", "gnomon"} & set(worker.run(jobs, "modules"))

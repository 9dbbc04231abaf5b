"""The search without a GPU, with a fake compiler: order, drops with reasons, budget, continuing."""

import io
from pathlib import Path
from typing import Any

from fake_gpu import PLAN, TOOLS, FakeClock, FakeCompiler

from gnomon.autotune import compiling, report
from gnomon.autotune.compiling import Processes, failure_of
from gnomon.autotune.offline import MOST, Offline, Ranking, identity, picks, sifted
from gnomon.autotune.plan import Task
from gnomon.autotune.space import Point
from gnomon.autotune.store import Store
from gnomon.runtime import offline
from gnomon.runtime.gpus import device_of_table, gpu
from gnomon.runtime.tuned import Table
from gnomon.runtime.worker import JobTimeoutError, WorkerDiedError, WorkerError


def modest(task: Task, point: Point) -> tuple[int, int, int]:
    return 50_000, 128, 0


def search(folder: Path, compiler: FakeCompiler) -> Offline:
    return Offline(PLAN, Store(folder), compiler, TOOLS, now=compiler.clock)


def test_the_best_of_every_kernel_is_compiled_first(tmp_path: Path) -> None:
    compiler = FakeCompiler(FakeClock(), modest)
    search(tmp_path, compiler).run(2.0)
    best = [identity(sifted(task).guesses[0].point) for task in PLAN.tasks]
    assert [asked[1:] for asked in compiler.asked[:3]] == best


def test_a_budget_ends_it_and_what_waits_is_counted(tmp_path: Path) -> None:
    compiler = FakeCompiler(FakeClock(), modest)
    rankings = search(tmp_path, compiler).run(5.0)
    assert sum(len(r.compiled) for r in rankings) == 10
    assert sum(r.waiting for r in rankings) == sum(len(r.guesses) for r in rankings) - 10


def test_running_again_compiles_only_what_was_not(tmp_path: Path) -> None:
    first, second = (FakeCompiler(FakeClock(), modest) for _ in range(2))
    search(tmp_path, first).run(5.0)
    rankings = search(tmp_path, second).run(1000.0)
    assert not set(first.asked) & set(second.asked)
    assert all(r.waiting == 0 for r in rankings)
    assert all(len(r.guesses) <= MOST for r in rankings)


def test_another_toolchain_compiles_everything_anew(tmp_path: Path) -> None:
    search(tmp_path, FakeCompiler(FakeClock(), modest)).run(5.0)
    compiler = FakeCompiler(FakeClock(), modest)
    other = Offline(
        PLAN, Store(tmp_path), compiler, type(TOOLS)("3.7.1", "of triton 3.7.1"), now=compiler.clock
    )
    other.run(5.0)
    assert len(compiler.asked) == 10


def needy(task: Task, point: Point) -> Any:
    """Each kind of trouble by the number of stages."""
    return {
        1: (300_000, 128, 0),
        2: (50_000, 255, 4000),
        3: "died",
        4: (50_000, 128, 0),
    }[point["num_stages"]]


def test_what_does_not_fit_is_dropped_with_its_reason(tmp_path: Path) -> None:
    rankings = search(tmp_path, FakeCompiler(FakeClock(), needy)).run(1000.0)
    for ranking in rankings:
        assert {c.point["num_stages"] for c in ranking.ranked} == {4}
        reasons = {r.point["num_stages"]: (r.rule, r.reason) for r in ranking.refusals if r.rule in
                   ("shared memory, compiled", "spills", "died")}  # fmt: skip
        assert reasons == {
            1: ("shared memory, compiled", "300000 bytes of shared memory, of 232448"),
            2: ("spills", "4000 bytes of registers spilled, of 512"),
            3: ("died", "it died"),
        }
    kinds = {fault.failure for fault in Table.read(tmp_path).faults}
    assert kinds == {"died"}


def test_a_slow_machine_is_no_fault_of_the_tiles(tmp_path: Path) -> None:
    search(tmp_path, FakeCompiler(FakeClock(), lambda task, point: "timeout")).run(1000.0)
    assert Table.read(tmp_path).faults == ()


def test_the_picks_say_that_they_are_modelled(tmp_path: Path) -> None:
    device = device_of_table(gpu("h200"))
    rankings = search(tmp_path, FakeCompiler(FakeClock(), modest)).run(1000.0)
    found = picks(PLAN, rankings, device, TOOLS)
    assert [(p.source, p.variant, p.device.id) for p in found] == [("modelled", "fox", "h200")] * 3
    for pick, ranking in zip(found, rankings, strict=True):
        times = [c.microseconds for c in ranking.ranked]
        assert times == sorted(times)
        assert pick.tiles == ranking.ranked[0].point
        assert pick.evidence["shared"] == 50_000


def test_where_nothing_fits_there_is_no_pick(tmp_path: Path) -> None:
    rankings = search(tmp_path, FakeCompiler(FakeClock(), lambda t, p: (300_000, 9, 0))).run(1e4)
    assert picks(PLAN, rankings, device_of_table(gpu("h200")), TOOLS) == []


def test_the_report_and_the_landscape(tmp_path: Path) -> None:
    from rich.console import Console

    rankings = search(tmp_path, FakeCompiler(FakeClock(), needy)).run(1000.0)
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(report.offline(rankings))
    text = console.export_text()
    assert "fox, fwd: " in text
    assert "limited by" in text
    assert "bytes of registers spilled, of 512" in text
    report.plot(rankings, tmp_path / "land.png")
    assert (tmp_path / "land.png").read_bytes().startswith(b"\x89PNG")


def test_classes_of_what_a_worker_raises() -> None:
    for error, kind in (
        (JobTimeoutError("compile_source took more than 60 s"), "timeout"),
        (WorkerDiedError("the process of compile_source died with exit status -11"), "died"),
        (WorkerError("Traceback ...\n  File x\nRuntimeError: PassManager::run failed"), "compile"),
    ):
        assert failure_of(error).kind == kind
    assert failure_of(error).reason == "RuntimeError: PassManager::run failed"


def test_processes_compile_for_a_gpu_that_is_not_here_and_a_crash_costs_one(
    tmp_path: Path, monkeypatch: Any
) -> None:
    task = PLAN.tasks[0]
    points = [c.point for c in sifted(task).guesses[:2]]
    real = offline.compile_kernel

    def crashing(*args: Any, worker: Any, num_stages: int, **given: Any) -> Any:
        if num_stages == points[0]["num_stages"]:
            job = tmp_path / "job.py"
            job.write_text("import os\ndef die():\n    os.kill(os.getpid(), 11)\n")
            worker.run(job, "die")
        return real(*args, worker=worker, num_stages=num_stages, **given)

    first = {**points[0], "num_stages": points[0]["num_stages"]}
    second = {**points[0], "BM": 64, "BN": 64, "num_stages": first["num_stages"] % 4 + 1}
    monkeypatch.setattr(compiling, "compile_kernel", crashing)
    pool = Processes(1, tmp_path / "log")
    try:
        found = list(pool.compile([(task, first), (task, second)], deadline=1e18, now=lambda: 0.0))
    finally:
        pool.close()
    assert found[0].failure is not None
    assert found[0].failure.kind == "died"
    assert found[1].report is not None
    assert found[1].report.shared > 0


def test_a_ranking_knows_what_is_left(tmp_path: Path) -> None:
    ranking: Ranking = sifted(PLAN.tasks[0], most=5)
    assert len(ranking.guesses) == 5
    assert ranking.left_out > 0
    assert ranking.best is None

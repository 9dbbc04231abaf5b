"""`gnomon tune`: the fastest tiles that are right, found with or without the GPU in the room."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from gnomon.dsl.errors import InputError, UnsupportedError
from gnomon.runtime.commands import tune_store
from gnomon.runtime.commands.console import (
    FAILED,
    console,
    examples,
    progress_console,
    write_json,
)
from gnomon.runtime.commands.tune_options import (
    MAIN,
    Budget,
    Candidates,
    Dims,
    Dtype,
    ExecutorName,
    GpuName,
    Groups,
    Json,
    Lengths,
    Names,
    Offline,
    Packed,
    Plot,
    Processes,
    StoreDir,
    device_of_name,
    store_of,
)
from gnomon.runtime.commands.variants import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gnomon.autotune.offline import Ranking
    from gnomon.autotune.online import Outcome
    from gnomon.autotune.plan import Plan
    from gnomon.autotune.store import Store
    from gnomon.runtime.gpus import Device

EXAMPLES = examples(
    ("gnomon tune fox --gpu h200 --offline", "compile and rank for a GPU that is not here"),
    ("gnomon tune fox --gpu auto", "measure on the GPU that is"),
    ("gnomon tune --gpu auto --budget 500 --store DIR", "the main variants; run again to go on"),
    ("gnomon tune table --store DIR --to DIR", "tables as they are shipped"),
    ("gnomon tune explain fox --gpu h200", "which tiles a call gets, and why"),
    ("gnomon tune merge DIR OTHER", "add the records of another store"),
    ("gnomon tune diff DIR OTHER", "where two stores disagree"),
    ("gnomon tune gc", "one file of many, without what was replaced"),
    ("gnomon tune formats --as fla --to DIR", "for Triton's or FLA's own readers"),
)
INTERRUPTED = 130
OFFLINE_BUDGET, ONLINE_BUDGET = 150.0, 300.0
PANELS = 6


class Tune(TyperGroup):
    """`gnomon tune fox` is `gnomon tune run fox`: what is no command of the group is a variant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command in front where none is named."""
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["run", *args]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    cls=Tune,
    help="Find the fastest tiles that are right. Without a command: tune VARIANT.",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXAMPLES,
)


@app.command("run", hidden=True)
def run(
    variants: Names = None,
    gpu: GpuName = "auto",
    offline: Offline = False,
    dims: Dims = "128",
    lengths: Lengths = "8192",
    groups: Groups = "1",
    dtype: Dtype = "bf16",
    packed: Packed = False,
    budget: Budget = None,
    store: StoreDir = None,
    plot: Plot = None,
    processes: Processes = None,
    executor: ExecutorName = "local",
    candidates: Candidates = 24,
    as_json: Json = False,
) -> None:
    """Find the fastest tiles of each kernel of a variant that are right.

    With --offline every kernel is compiled for the GPU that is named, what cannot run there is
    dropped with the reason, and a model ranks the rest. Else the best of the model are timed on the
    GPU that is here, in processes that may crash, and the winners checked against the oracle.
    Ctrl-C saves and reports; running again continues.
    """
    shapes = _numbers("--dims", dims), _numbers("--lengths", lengths), _numbers("--groups", groups)
    device = device_of_name(gpu, offline=offline)
    plans = _plans(variants or list(MAIN), shapes, dtype, packed, device)
    chosen_store = store_of(store)
    if offline:
        found = _run_offline(plans, device, chosen_store, budget or OFFLINE_BUDGET, processes, plot)
        if as_json:
            write_json([pick.record() for pick in found])
        return
    outcomes = _run_online(
        plans, device, chosen_store, budget or ONLINE_BUDGET, (executor, processes, candidates)
    )
    _conclude(outcomes, as_json=as_json)


def _conclude(outcomes: "list[Outcome]", *, as_json: bool) -> None:
    """The exit code: interrupted, or nothing that was timed is right."""
    if as_json:
        write_json([pick.record() for outcome in outcomes for pick in outcome.picks])
    if any(outcome.stopped == "interrupted" for outcome in outcomes):
        raise typer.Exit(INTERRUPTED)
    if any(race.trouble == "nothing that was timed is right" for o in outcomes for race in o.races):
        raise typer.Exit(FAILED)


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(option, "whole numbers with commas between them", repr(text)) from None


def _plans(
    names: list[str],
    shapes: tuple[list[int], list[int], list[int]],
    dtype: str,
    packed: bool,
    device: "Device",
) -> "list[Plan]":
    """A plan for each variant and shape, kernels that several share in the first alone."""
    from dataclasses import replace

    from gnomon.autotune.plan import Plan, Problem

    plans: list[Plan] = []
    known: set[object] = set()
    for name in names:
        node = find(name).node
        for dim in shapes[0]:
            for length in shapes[1]:
                for group in shapes[2]:
                    problem = Problem(node, dim, length, group, dtype, packed)
                    try:
                        plan = Plan.of(problem, device)
                    except UnsupportedError as error:
                        progress_console().print(f"{name}: {error.what}", style="yellow")
                        continue
                    own = tuple(task for task in plan.tasks if task.key not in known)
                    known |= {task.key for task in own}
                    if own:
                        plans.append(replace(plan, tasks=own))
    return plans


# ---- offline


def _run_offline(
    plans: "list[Plan]",
    device: "Device",
    store: "Store",
    budget: float,
    processes: int | None,
    plot: Path | None,
) -> list[Any]:
    """The picks of the model; a report of each plan is printed as soon as it is ready."""
    from gnomon.autotune import report
    from gnomon.autotune.offline import picks
    from gnomon.runtime import configs
    from gnomon.runtime.here import toolchain

    board, found, rankings = progress_console(), [], []
    try:
        for plan, made in _ranked(plans, store, budget, processes):
            own = picks(plan, made, device, toolchain())
            store.append(*(pick.record() for pick in own))
            found += own
            rankings += made
            title = f"{plan.problem} on {device.id} ({device.target}), offline"
            console().print(f"\n[bold]{title}[/]")
            console().print(report.offline(made))
    except KeyboardInterrupt:
        board.print("interrupted: what was compiled is kept, running again continues")
    if plot is not None and rankings:
        report.plot(rankings[:PANELS], plot)
        board.print(f"the landscape is in {plot}")
    configs.forget()
    return found


def _ranked(
    plans: "list[Plan]", store: "Store", budget: float, processes: int | None
) -> "Iterator[tuple[Plan, list[Ranking]]]":
    """Each plan with the rankings of its kernels; all have an even share of what is left."""
    from gnomon.autotune.compiling import Processes
    from gnomon.autotune.offline import Offline
    from gnomon.runtime.here import toolchain

    end = time.monotonic() + budget
    store.folder.mkdir(parents=True, exist_ok=True)
    compiler = Processes(processes, store.folder / "compiler.log")
    count = 0
    try:
        with progress_console().status("estimating") as status:

            def watch(ranking: "Ranking", done: object) -> None:
                nonlocal count
                count += 1
                left = max(end - time.monotonic(), 0)
                name = f"{ranking.task.variant} {ranking.task.role}"
                status.update(f"{name}: {count} kernels compiled, {left:.0f} s left")

            for place, plan in enumerate(plans):
                now = time.monotonic()
                deadline = now + (end - now) / (len(plans) - place)
                yield plan, Offline(plan, store, compiler, toolchain(), watch).run(deadline)
    finally:
        compiler.close()


# ---- online


def _run_online(
    plans: "list[Plan]",
    device: "Device",
    store: "Store",
    budget: float,
    how: tuple[str, int | None, int],
) -> "list[Outcome]":
    """Outcomes by an executor, with so many compiling processes and candidates of a kernel."""
    from gnomon.autotune import report
    from gnomon.autotune.bench import GpuBench
    from gnomon.autotune.fleet import Executor, Local, Ray, Search, visible_gpus
    from gnomon.autotune.online import Effort
    from gnomon.runtime import configs
    from gnomon.runtime.here import toolchain

    executor, processes, candidates = how
    if executor not in ("local", "ray"):
        raise InputError("--executor", "local or ray", repr(executor))
    search = Search(device, toolchain(), Effort(candidates=candidates))
    board, outcomes = progress_console(), []
    store.folder.mkdir(parents=True, exist_ok=True)
    log, end = store.folder / "gpu.log", time.monotonic() + budget

    def bench(gpu: str) -> GpuBench:
        return GpuBench(gpu, processes=processes, log=log)

    chosen: Executor = Ray() if executor == "ray" else Local(visible_gpus() or ["0"], bench)
    with board.status(f"{len(plans)} plans") as status:

        def watch(step: str, outcome: "Outcome") -> None:
            status.update(report.line(step, outcome, end - time.monotonic()))

        for outcome in chosen.run(plans, store, search, budget, watch):
            outcomes.append(outcome)
            console().print(report.online(outcome))
    done = sum(bool(o.picks) for o in outcomes)
    if done < len(plans):
        board.print(f"{done} of {len(plans)} plans are decided; running again continues")
    configs.forget()
    return outcomes


for command in (
    tune_store.merge,
    tune_store.gc,
    tune_store.diff,
    tune_store.explain,
    tune_store.table,
    tune_store.formats,
):
    app.command(command.__name__)(command)

"""`gnomon tune merge | gc | diff | explain | table | formats`: what was found before."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnomon.dsl.errors import InputError
from gnomon.runtime.commands.console import console, write
from gnomon.runtime.commands.tune_options import (
    Dtype,
    GpuName,
    StoreDir,
    To,
    device_of_name,
    option,
    store_of,
)
from gnomon.runtime.commands.variants import find

if TYPE_CHECKING:
    from gnomon.autotune.store import Store


def merge(
    into: Annotated[Path, typer.Argument(metavar="DIR", file_okay=False)],
    others: Annotated[list[Path], typer.Argument(metavar="OTHER...", exists=True)],
) -> None:
    """Add to a store what others (folders or files) have and it has not."""
    from gnomon.autotune.store import merge as merged

    write(f"{merged(into, *others)} records added to {into}")


def gc(
    folder: Annotated[Path | None, typer.Argument(metavar="[DIR]", file_okay=False)] = None,
    triton: Annotated[str, option("--triton", "Keep these versions alone.", "V,V,...")] = "",
) -> None:
    """Make one file of a store, without doubles and without picks that were replaced."""
    from gnomon.autotune.store import collect
    from gnomon.runtime import configs

    versions = [part for part in triton.split(",") if part]
    counted = collect(folder or configs.store(), toolchains=versions)
    write(f"{counted.after} of {counted.before} records stay")


def diff(
    first: Annotated[Path, typer.Argument(metavar="DIR", exists=True, file_okay=False)],
    second: Annotated[Path, typer.Argument(metavar="OTHER", exists=True, file_okay=False)],
) -> None:
    """Show where two stores, or two folders of tables, have other tiles."""
    from gnomon.autotune import report
    from gnomon.autotune.store import difference
    from gnomon.runtime.tuned import Table

    found = difference(Table.read(first), Table.read(second))
    if found:
        console().print(report.differences(found, (first.name, second.name)))
    write(f"{len(found)} keys differ")


def explain(
    variant: Annotated[str, typer.Argument(metavar="VARIANT")],
    gpu: GpuName = "auto",
    dim: Annotated[int, option("--dim", "Channels of a head.")] = 128,
    length: Annotated[int, option("--length", "Tokens.")] = 8192,
    group: Annotated[int, option("--group", "Query heads to a key head.")] = 1,
    dtype: Dtype = "bf16",
    store: StoreDir = None,
) -> None:
    """Show which tiles a call gets, by which step of the look-up, and what lost to them."""
    from gnomon.autotune import report
    from gnomon.autotune.plan import Plan, Problem
    from gnomon.lowering.config import Tiles
    from gnomon.runtime.configs import Chosen
    from gnomon.runtime.gpus import device_of_table
    from gnomon.runtime.gpus import gpu as card
    from gnomon.runtime.here import toolchain
    from gnomon.runtime.tuned import SHIPPED, Query, Table, group_bucket, length_bucket, look_up

    device = device_of_name(gpu) if gpu == "auto" else device_of_table(card(gpu))
    bucket = length_bucket(length), group_bucket(group)
    plan = Plan.of(Problem(find(variant).node, dim, *bucket, dtype), device)
    own = store_of(store)
    table = Table.read(own.folder, SHIPPED)
    chosen, losers = {}, {}
    for task in plan.tasks:
        found = look_up(table, Query(task.key, device, toolchain(), task.formula))
        spare = Chosen(task.role, task.default, "default: nothing was tuned for it")
        name = task.names[0]
        chosen[name] = spare
        if found is not None:
            chosen[name] = Chosen(task.role, Tiles(**found.pick.tiles), found.reason, found)
        losers[name] = _losers(own, task.key, found)
    console().print(report.explained(chosen, losers))


def _losers(store: "Store", key: Any, found: Any) -> list[str]:
    """What was timed for the key and was slower, with the margin; and what failed."""
    from statistics import median

    from gnomon.autotune.report import tiles
    from gnomon.runtime.tuned import Key, built

    times: dict[str, list[float]] = {}
    lines = []
    for record in store.records("time", "fault"):
        if built(Key, record["key"]) != key:
            continue
        shown = tiles(record["tiles"])
        if record["kind"] == "time":
            times.setdefault(shown, []).append(record["us"])
        else:
            lines.append(f"failed: {shown}: {record['failure']}: {record['reason']}")
    best = tiles(found.pick.tiles) if found is not None else ""
    if best in times:
        base = median(times[best])
        order = sorted((median(us) / base, shown) for shown, us in times.items() if shown != best)
        lines = [f"{margin:.3f} of its time: {shown}" for margin, shown in order[:5]] + lines
    return lines


def table(to: To, store: StoreDir = None) -> None:
    """Write the picks of a store as tables that are shipped: a file for each device."""
    from gnomon.autotune.formats import shipped

    for path in shipped(store_of(store).table().picks[::-1], to):
        write(str(path))


def formats(
    to: To,
    kind: Annotated[str, option("--as", "triton or fla.")] = "triton",
    store: StoreDir = None,
) -> None:
    """Write what was found for Triton's autotuner, or for flash-linear-attention's config cache."""
    from gnomon.autotune import formats as made

    own = store_of(store)
    if kind not in ("triton", "fla"):
        raise InputError("--as", "triton or fla", repr(kind))
    if kind == "triton":
        paths = made.write(made.triton(own.records("time")), to)
    else:
        picks = own.table().picks
        devices = {pick.device.id for pick in picks}
        paths = [
            path
            for device in sorted(devices)
            for path in made.write(
                made.fla([p for p in picks if p.device.id == device], device), to
            )
        ]
    for path in paths:
        write(str(path))

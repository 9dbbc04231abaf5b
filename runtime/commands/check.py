"""`gnomon check`: output and gradients of the compiled kernels against the float64 oracle."""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gnomon.dsl.errors import InputError, UnsupportedError
from gnomon.dsl.nodes import Variant as Node
from gnomon.runtime.commands.console import (
    FAILED,
    console,
    examples,
    progress_console,
    write_json,
)
from gnomon.runtime.commands.variants import find

if TYPE_CHECKING:
    from gnomon.runtime.check import Record

EXAMPLES = examples(
    ("gnomon check fox", "a minute the first time"),
    ("gnomon check mine.py:f --quick", "a variant of yours, fp32 alone"),
    ("gnomon check mine.py:f --range x=0.1:0.9", "where x stands in a logarithm"),
    ("gnomon check fox --on cuda --json", "on a GPU, for a program"),
    ("gnomon check --all --quick", "every variant that is lowered"),
)


class Place(StrEnum):
    """Where kernels run."""

    CPU = "cpu"
    CUDA = "cuda"
    INTERPRETER = "interpreter"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The records of one variant, and the seconds they took; `unsupported` says why none exist."""

    variant: Node
    records: list["Record"]
    seconds: float
    unsupported: str = ""

    @property
    def passed(self) -> bool:
        """Whether every tensor is within its bound."""
        return all(record.passed for record in self.records)


Name = Annotated[
    str | None,
    typer.Argument(
        metavar="VARIANT",
        help="A name of the catalogue, or [cyan]file.py:name[/].",
        show_default=False,
    ),
]


def check(
    variant: Name = None,
    on: Annotated[Place, typer.Option("--on", help="Where the kernels run.")] = Place.CPU,
    quick: Annotated[bool, typer.Option("--quick", help="fp32 alone.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Every variant of the catalogue that is lowered.")
    ] = False,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="NAME=LOW:HIGH", help="Values of an input."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the random inputs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Every error, as an object.")] = False,
) -> None:
    """Compare the compiled kernels with the float64 oracle.

    The output, the log-sum-exp and every gradient, on a grid of shapes.
    The oracle is the same formula in plain torch.
    The exit code is 1 where an error is larger than its bound.
    """
    if (variant is None) != everything:
        raise InputError("VARIANT", "a variant, or --all", variant or "none")
    if on is Place.INTERPRETER:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    given = dict(map(_range, ranges or []))
    if variant is not None:
        _known(given, find(variant).node)
    outcomes = list(_outcomes(variant, on, quick, seed, given, quiet=as_json))
    if as_json:
        objects = [_object(outcome, on) for outcome in outcomes]
        write_json(objects if everything else objects[0])
    elif not everything:
        print_one(outcomes[0], on)
    if everything and not as_json:
        _print_all(outcomes)
    if not all(outcome.passed for outcome in outcomes):
        raise typer.Exit(FAILED)


def _range(text: str) -> tuple[str, tuple[float, float]]:
    name, _, numbers = text.partition("=")
    low, _, high = numbers.partition(":")
    try:
        return name, (float(low), float(high))
    except ValueError:
        raise InputError("--range", "NAME=LOW:HIGH, as in f=0.1:0.9", repr(text)) from None


def _known(ranges: dict[str, tuple[float, float]], node: Node) -> None:
    """Ranges are for inputs that the variant has."""
    names = [item.name for item in node.inputs]
    unknown = [name for name in ranges if name not in names]
    if unknown:
        expected = f"an input of {node.name}: {', '.join(names)}"
        raise InputError("--range", expected, ", ".join(unknown))


def _outcomes(
    variant: str | None,
    on: Place,
    quick: bool,
    seed: int,
    ranges: dict[str, tuple[float, float]],
    *,
    quiet: bool,
) -> Iterator[Outcome]:
    if variant is not None:
        yield check_one(find(variant).node, on, quick, seed, ranges, quiet=quiet)
        return
    from gnomon.dsl import catalogue

    for entry in catalogue.ENTRIES:
        if entry.declaration is None:
            continue
        node = entry.declaration.node
        try:
            outcome = check_one(node, on, quick, seed, ranges, quiet=quiet)
        except UnsupportedError as error:
            outcome = Outcome(node, [], 0.0, error.what)
        if not quiet:
            _print_line(outcome)
        yield outcome


def check_one(
    node: Node,
    on: Place,
    quick: bool,
    seed: int = 0,
    ranges: dict[str, tuple[float, float]] | None = None,
    *,
    quiet: bool = False,
) -> Outcome:
    """Check one variant, with progress on stderr unless `quiet`."""
    begin = time.perf_counter()
    columns = (
        TextColumn("{task.fields[variant]}", style="cyan"),
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    out = progress_console()
    quiet = quiet or not out.is_terminal
    with Progress(*columns, console=out, transient=True, disable=quiet) as board:
        task = board.add_task("importing torch", total=None, variant=node.name)
        from gnomon.runtime.check import compare, function_under_test
        from gnomon.runtime.grid import cases

        place: Any = str(on)
        function = function_under_test(node, place)
        grid = cases(node, place, quick=quick)
        board.update(task, total=len(grid))
        records: list[Record] = []
        for case in grid:
            board.update(task, description=f"{case.dtype}, {case.name}")
            records += compare(function, node, case, on=place, seed=seed, ranges=ranges)
            board.advance(task)
    return Outcome(node, records, time.perf_counter() - begin)


def worst(records: list["Record"]) -> list["Record"]:
    """For each dtype and tensor, the record that is farthest from its bound."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        key = (record.dtype, record.tensor)
        if key not in found or _distance(record) > _distance(found[key]):
            found[key] = record
    return list(found.values())


def _distance(record: "Record") -> float:
    if record.passed:
        return record.error / record.bound if record.bound else 0.0
    return math.inf


# ---- output


def print_one(outcome: Outcome, on: Place) -> None:
    """The table of one variant: for each tensor the error nearest to its bound."""
    cases = len({(record.dtype, record.case) for record in outcome.records})
    table = Table(
        box=None,
        header_style="bold",
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name in ("dtype", "tensor", "error", "bound", "", "worst case"):
        table.add_column(name, justify="right" if name in ("error", "bound") else "left")
    dtype = ""
    for record in worst(outcome.records):
        if record.dtype != dtype and dtype:
            table.add_section()
        table.add_row(
            record.dtype if record.dtype != dtype else "",
            Text(record.tensor, style="cyan"),
            f"{record.error:.1e}",
            f"{record.bound:.0e}",
            _mark(record.passed),
            Text(record.case + (f": {record.note}" if record.note else "")),
        )
        dtype = record.dtype
    out = console()
    title = f"{outcome.variant.name} on {on}: relative RMS errors against the float64 oracle"
    out.print(Text(title, style="bold"))
    out.print(table)
    verdict = (
        Text("passed", style="bold green") if outcome.passed else Text("FAILED", style="bold red")
    )
    out.print(Text("\n") + verdict + Text(f"  {cases} cases in {outcome.seconds:.0f} s"))


def _mark(passed: bool) -> Text:
    return Text("ok", style="green") if passed else Text("WRONG", style="bold red")


def _print_line(outcome: Outcome) -> None:
    """One variant on one line, as soon as it is known."""
    line = Text(f"{outcome.variant.name:<26}", style="cyan")
    if outcome.unsupported:
        line.append("not lowered yet", style="yellow")
    else:
        line.append(
            "ok    " if outcome.passed else "WRONG ", style="green" if outcome.passed else "red"
        )
        largest = max(worst(outcome.records), key=_distance)
        line.append(
            f"{outcome.seconds:4.0f} s  nearest to its bound: {largest.tensor} "
            f"{largest.error:.1e} of {largest.bound:.0e} ({largest.dtype}, {largest.case})",
            style="",
        )
        if largest.note:
            line.append(f"\n    {largest.note}", style="red")
    console().print(line, soft_wrap=True)


def _print_all(outcomes: list[Outcome]) -> None:
    lowered = [outcome for outcome in outcomes if not outcome.unsupported]
    right = sum(outcome.passed for outcome in lowered)
    console().print(
        f"\n{right} of {len(lowered)} lowered variants are right; "
        f"{len(outcomes) - len(lowered)} are not lowered yet"
    )


def _object(outcome: Outcome, on: Place) -> dict[str, Any]:
    from gnomon.dsl.show import digest

    return {
        "name": outcome.variant.name,
        "digest": digest(outcome.variant),
        "on": str(on),
        "passed": outcome.passed if not outcome.unsupported else None,
        "unsupported": outcome.unsupported or None,
        "seconds": round(outcome.seconds, 2),
        "records": [
            {
                "dtype": record.dtype,
                "case": record.case,
                "tensor": record.tensor,
                "error": record.error if math.isfinite(record.error) else None,
                "bound": record.bound,
                "passed": record.passed,
                "note": record.note,
            }
            for record in outcome.records
        ],
    }

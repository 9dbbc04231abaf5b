"""`gnomon list`: the published variants, what each is, and where it runs today."""

from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from gnomon.dsl.errors import InputError
from gnomon.runtime.commands.console import (
    console,
    examples,
    progress_console,
    write_json,
)

RUN, PRINTED = ("numba", "triton"), ("tilelang", "gluon")
EXAMPLES = examples(
    ("gnomon list", "all rows"),
    ("gnomon list gate rope", "those that mention one of the words"),
    ("gnomon list --on triton", "those that lower to Triton"),
    ("gnomon list --json", "the same for a program"),
)


def list_variants(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="Only rows with one of these words."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="TARGET", help="Only variants that lower to it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects.")] = False,
) -> None:
    """List the published variants and what each lowers to today.

    gnomon.compile runs Numba and Triton; for the other targets there are kernels alone.
    """
    if on is not None and on not in (*RUN, *PRINTED):
        raise InputError("--on", f"one of {', '.join((*RUN, *PRINTED))}", repr(on))
    named = [row for row in catalogue_rows() if _named(row, words or [])]
    if not named:
        raise InputError("WORD", "a word of some row", ", ".join(words or []))
    rows = [x for x in named if on is None or on in (*x["targets"], *x["printed"])]
    if as_json:
        write_json(rows)
        return
    out = console()
    out.print(_table(rows))
    out.print(Text(_summary(rows), style="dim"))


def _table(rows: list[dict[str, Any]]) -> Table:
    """Family by family, in the order of their first rows."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("row", justify="right", style="dim")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("formula", ratio=1)
    table.add_column("lowers to", no_wrap=True)
    families = dict.fromkeys(row["family"] for row in rows if not row["refused"])
    for family in (*families, "refused"):
        mine = [row for row in rows if row["family"] == family]
        if mine:
            table.add_row()
            table.add_row("", Text(family, style="bold default"))
        for row in mine:
            table.add_row(str(row["row"]), row["name"], _formula(row), _targets(row))
    return table


def _formula(row: dict[str, Any]) -> Text:
    if row["refused"]:
        return Text(row["formula"]) + Text(f"\n{row['refused']}", style="red")
    return Text(row["formula"], overflow="ellipsis", no_wrap=True)


def catalogue_rows() -> list[dict[str, Any]]:
    """One object for each declaration and each refused row, in the order of the rows.

    row, name, family, formula, source; inputs: name -> shape; targets: what gnomon.compile runs it
    on today; printed: other languages that its kernels print to; unsupported: target -> why not;
    refused: the law that refuses it, or None.
    """
    from gnomon.dsl import catalogue
    from gnomon.dsl.show import digest
    from gnomon.runtime.targets import verdicts

    nodes = {e.name: e.declaration.node for e in catalogue.ENTRIES if e.declaration is not None}
    columns = SpinnerColumn(), TextColumn("lowering every variant, once: {task.description}")
    out = progress_console()
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task("")
        found = verdicts(nodes.values(), lambda name: progress.update(task, description=name))
    rows = []
    for entry in catalogue.ENTRIES:
        verdict = found[digest(nodes[entry.name])] if entry.name in nodes else {}
        rows.append(
            {
                "row": entry.row,
                "name": entry.name,
                "family": entry.family,
                "formula": entry.formula,
                "source": entry.source,
                "inputs": dict(entry.inputs),
                "targets": [t for t, reason in verdict.items() if not reason and t in RUN],
                "printed": [t for t, reason in verdict.items() if not reason and t not in RUN],
                "unsupported": {target: reason for target, reason in verdict.items() if reason},
                "refused": entry.reason,
            }
        )
    return rows


def _named(row: dict[str, Any], words: list[str]) -> bool:
    text = " ".join(str(row[key]) for key in ("name", "family", "formula", "source")).lower()
    return not words or any(word.lower() in text for word in words)


def _targets(row: dict[str, Any]) -> Text:
    if row["refused"]:
        return Text("")
    if not row["targets"]:
        return Text("not yet", style="yellow")
    return Text(" ".join([*row["targets"], *row["printed"]]), style="green")


def _summary(rows: list[dict[str, Any]]) -> str:
    declared = [row for row in rows if not row["refused"]]
    lowered = [row for row in declared if row["targets"]]
    numbers = len({row["row"] for row in declared}), len({row["row"] for row in lowered})
    return (
        f"\n{numbers[0]} rows declared under {len(declared)} names, {numbers[1]} of them lowered; "
        f"{len(rows) - len(declared)} refused"
    )

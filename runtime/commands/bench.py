"""`gnomon bench`: our kernels and their peers, timed in one run on one GPU."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gnomon.dsl.errors import InputError
from gnomon.runtime.commands.console import (
    FAILED,
    console,
    examples,
    progress_console,
    write_json,
)
from gnomon.runtime.commands.variants import find

if TYPE_CHECKING:
    from gnomon.benchmarks.run import Document, Plan

EXAMPLES = examples(
    ("gnomon bench --out results.json", "everything, with what is installed"),
    ("gnomon bench fox --lengths 8192 --passes fwd", "one variant, one shape"),
    ("gnomon bench fox --peers cudnn,flex", "two peers"),
    ("gnomon bench --budget 480 --sample-ms 100", "eight minutes"),
)
TRIAL = {"tokens": 256, "channels": 64}
"""B * T and H * D on the CPU, where only the benchmark itself is tried out."""
LEAST_ROUNDS = 5


def _option(name: str, what: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=what, metavar=metavar)


def _folder(name: str, what: str) -> Any:
    return typer.Option(name, help=what, metavar="DIR", file_okay=False, exists=True)


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[VARIANT]...",
        help="Names, or [cyan]file.py:name[/]; by default fox, tapa, alibi, rope and nope.",
        show_default=False,
    ),
]
Device = Annotated[str, _option("--device", "cuda; cpu is a trial at tiny shapes.")]
Lengths = Annotated[str, _option("--lengths", "Tokens of a sequence, T.", "T,T,...")]
Dims = Annotated[str, _option("--dims", "Channels of a head, D.", "D,D,...")]
Passes = Annotated[str, _option("--passes", "fwd, fwd_bwd.", "PASS,...")]
Groups = Annotated[int, _option("--groups", "Query heads to a key head.")]
Rounds = Annotated[int, _option("--rounds", "Interleaved rounds, at least 5.")]
SampleMs = Annotated[float, _option("--sample-ms", "Milliseconds of a sample.")]
Peers = Annotated[str | None, _option("--peers", "By default all.", "NAME,...")]
FoxOfficial = Annotated[Path | None, _folder("--fox-official", "Code of the FoX paper.")]
TapaRelease = Annotated[Path | None, _folder("--tapa-release", "Code of the TAPA paper.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", dir_okay=False, help="As JSON.")]
Budget = Annotated[float | None, _option("--budget", "No shape begins after them.", "SECONDS")]


def bench(
    variants: Names = None,
    device: Device = "cuda",
    lengths: Lengths = "2048,8192,16384,32768",
    dims: Dims = "128,64",
    passes: Passes = "fwd,fwd_bwd",
    groups: Groups = 1,
    rounds: Rounds = LEAST_ROUNDS,
    sample_ms: SampleMs = 250.0,
    peers: Peers = None,
    fox_official: FoxOfficial = None,
    tapa_release: TapaRelease = None,
    out: Out = None,
    budget: Budget = None,
    as_json: Annotated[bool, typer.Option("--json", help="The results as one object.")] = False,
) -> None:
    """Time the kernels and their peers in one run on one GPU.

    A kernel that disagrees with the float64 oracle is not timed, and the exit code is 1.
    A peer that is not installed is in the results, with the reason.
    """
    options = {
        "device": device,
        "lengths": numbers("--lengths", lengths),
        "dims": numbers("--dims", dims),
        "passes": words(passes),
        "groups": groups,
        "rounds": rounds,
        "sample_ms": sample_ms,
        "peers": None if peers is None else words(peers),
        "budget": budget,
    }
    document = measured(plan_of(variants, options, fox_official, tapa_release), out)
    show(document, as_json)


def plan_of(
    variants: list[str] | None,
    options: dict[str, Any],
    fox_official: Path | None,
    tapa_release: Path | None,
) -> "Plan":
    """What shall be measured."""
    if options["rounds"] < LEAST_ROUNDS:
        raise InputError("--rounds", f"at least {LEAST_ROUNDS}", str(options["rounds"]))
    with progress_console().status("importing torch"):
        from gnomon.benchmarks.run import VARIANTS, Plan

    given = {"fox_official": fox_official, "tapa_release": tapa_release}
    folders = {name: path for name, path in given.items() if path is not None}
    nodes = [find(name).node for name in variants or VARIANTS]
    sizes = TRIAL if options["device"] == "cpu" else {}
    return Plan(nodes, folders=folders, **{**options, **sizes})


def words(text: str) -> list[str]:
    """The words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(option: str, text: str) -> list[int]:
    """The numbers between commas, each above 0."""
    found = words(text)
    if not found or not all(word.isdecimal() and int(word) > 0 for word in found):
        raise InputError(option, "numbers above 0, as in 2048,8192", repr(text))
    return [int(word) for word in found]


def measured(plan: "Plan", out: Path | None) -> "Document":
    """The results. The file is written after each set: a run that is killed leaves what it has."""
    from gnomon.benchmarks.run import run

    board, begin, told = progress_console(), time.monotonic(), 0
    document: Document = {}
    for document in run(plan):
        if out is not None:
            save(document, out)
        new = document["records"][told:]
        told += len(new)
        if new:
            timed = sum(r["median_ms"] is not None for r in new)
            line = f"{shape_of(new[0])}: {timed} of {len(new)} timed"
            board.print(f"{time.monotonic() - begin:5.0f} s  {line}", markup=False)
    for left in document["left_out"]:
        board.print(f"left out: {shape_of(left)}: {left['reason']}", markup=False)
    if out is not None:
        board.print(f"wrote {out}", markup=False, soft_wrap=True)
    return document


def save(document: "Document", out: Path) -> None:
    """Write a file as a whole: whoever reads it meanwhile gets the one before."""
    out.parent.mkdir(parents=True, exist_ok=True)
    new = out.with_name(f"{out.name}.new")
    new.write_text(json.dumps(document, indent=1) + "\n")
    new.replace(out)


def shape_of(record: dict[str, Any]) -> str:
    """The shape and pass of a record on a line."""
    sizes = " ".join(f"{name}={record[name]}" for name in ("T", "D", "B", "H"))
    shared = f" groups={record['groups']}" if record["groups"] > 1 else ""
    return f"{sizes}{shared} {record['pass']}"


def show(document: "Document", as_json: bool) -> None:
    """Print the results; exit code 1 where a kernel of ours is wrong or failed."""
    if as_json:
        write_json(document)
    else:
        out = console()
        out.print(Text(f"{document['device']['name']}, commit {document['commit']}", style="bold"))
        out.print(table(document["records"]))
    if any(r["implementation"] == "gnomon" and "error" in r for r in document["records"]):
        raise typer.Exit(FAILED)


def table(records: list[dict[str, Any]]) -> Table:
    """A block a set: milliseconds, the ratio to cuDNN's plain attention, memory, what is wrong."""
    found = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    found.add_column("variant", style="cyan", no_wrap=True)
    found.add_column("implementation", no_wrap=True)
    for name in ("ms", "spread", "of cuDNN", "MiB"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("")
    last = ""
    for record in records:
        if shape_of(record) != last:
            last = shape_of(record)
            found.add_row()
            found.add_row(Text(last, style="bold default"))
        cells = [
            "" if record[name] is None else format(record[name], form)
            for name, form in (
                ("median_ms", ".3f"),
                ("spread", ".3f"),
                ("ratio_to_cudnn", ".2f"),
                ("peak_mib", ".0f"),
            )
        ]
        why = Text(record.get("error", ""), style="red") + Text(record.get("absent", ""), "dim")
        found.add_row(record["variant"], record["implementation"], *cells, why)
    return found

"""`gnomon lower`: a variant at any stage of the compiler, or as the source of a target."""

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from gnomon.dsl.errors import InputError
from gnomon.dsl.nodes import Variant as Node
from gnomon.runtime.commands.console import (
    console,
    examples,
    progress_console,
    refused,
    write,
    write_json,
)
from gnomon.runtime.commands.variants import Variant, find

if TYPE_CHECKING:
    from gnomon.runtime.reports import KernelReport

EXAMPLES = examples(
    ("gnomon lower fox --to triton", "the kernels in Triton"),
    ("gnomon lower fox --to triton --gpu h200", "compiled: registers, spills, memory"),
    ("gnomon lower fox --to numba --module", "what gnomon.compile imports"),
    ("gnomon lower fox --list", "the passes, in order"),
    ("gnomon lower fox --after split_prologue", "the variant after a pass"),
    ("gnomon lower fox --explain", "choices, alternatives, their costs"),
)
DTYPES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}


To = Annotated[
    str, typer.Option("--to", metavar="TARGET", help="triton, numba, tilelang, gluon or torch.")
]
After = Annotated[
    str | None, typer.Option("--after", metavar="PASS", help="Show the program after this pass.")
]
Passes = Annotated[bool, typer.Option("--list", help="List the passes.")]
Explain = Annotated[bool, typer.Option("--explain", help="Explain the choices of the compiler.")]
Kernels = Annotated[
    list[str] | None,
    typer.Option("--kernel", metavar="ROLE", help="Only fwd, bwd_rows or bwd_columns."),
]
Module = Annotated[
    bool, typer.Option("--module", help="The whole module: launches and autograd too.")
]
Packed = Annotated[bool, typer.Option("--packed", help="For packed sequences.")]
Positions = Annotated[bool, typer.Option("--positions", help="For calls that give positions.")]
Gpu = Annotated[
    str | None,
    typer.Option("--gpu", metavar="GPU", help="Compile for it: h200, a100, sm_90, ..."),
]
Channels = Annotated[int, typer.Option("--dim", help="Channels, for --gpu and --module.")]
Dtype = Annotated[
    str, typer.Option("--dtype", help="bf16, fp16 or fp32, for --gpu, numba and --module.")
]


def lower(
    variant: Variant,
    to: To = "triton",
    after: After = None,
    list_passes: Passes = False,
    explain: Explain = False,
    kernel: Kernels = None,
    module: Module = False,
    packed: Packed = False,
    positions: Positions = False,
    gpu: Gpu = None,
    dim: Channels = 64,
    dtype: Dtype = "",
    as_json: Annotated[bool, typer.Option("--json", help="One object.")] = False,
) -> None:
    """Print a variant at any stage of the compiler, or the source of it.

    Where neither a stage nor a target is named, the Triton kernels are printed.
    """
    node = find(variant).node
    if dtype not in ("", *DTYPES):
        raise InputError("--dtype", f"one of {', '.join(DTYPES)}", repr(dtype))
    if list_passes:
        _list(node, as_json)
    elif explain:
        _explain(node, to, dim, positions, as_json)
    elif after is not None:
        from gnomon.runtime import stages

        _print(stages.after(node, after, kernel or []), "text", as_json)
    else:
        _source(
            node, Request(to, kernel or [], packed, positions, dim, dtype, module, gpu), as_json
        )


@dataclass(frozen=True, slots=True)
class Request:
    """What shall be printed."""

    to: str
    kernels: list[str]
    packed: bool
    positions: bool
    dim: int
    dtype: str
    module: bool
    gpu: str | None


def _source(node: Node, request: Request, as_json: bool) -> None:
    """The source, and what its kernels need of a GPU."""
    from gnomon.runtime import stages

    if request.gpu is not None and request.to != "triton":
        raise InputError("--gpu", "--to triton", f"--to {request.to}")
    found = [] if request.gpu is None else _compiled(node, request, request.gpu)
    rows = [_report(each, request.gpu) for each in found]
    io: Any = DTYPES[request.dtype or "fp32"]
    if request.module:
        text = _module(node, request, io)
    elif found:
        text = _as_compiled(node, found)
    else:
        text = stages.source(
            node,
            request.to,
            packed=request.packed,
            positions=request.positions,
            io=io,
            roles=request.kernels,
        )
    if as_json:
        write_json({"text": text, "reports": rows})
        return
    _print(text, "python", as_json=False)
    if rows:
        title = f"on {request.gpu} ({rows[0]['target']}), {request.dtype or 'bf16'}, "
        write(f"\n\n{_comments(f'{title}{request.dim} channels', rows)}")


def _as_compiled(node: Node, found: "list[KernelReport]") -> str:
    """The kernels as the GPU gets them: with descriptors where it copies tiles by hardware."""
    from gnomon.lowering.emit.triton import print_module
    from gnomon.runtime.stages import header

    by_descriptor = all(each.by_descriptor for each in found)
    programs = [each.program for each in found]
    return print_module(programs, header(node), descriptors=by_descriptor)


def _module(node: Node, request: Request, io: Any) -> str:
    """The module that gnomon.compile would import."""
    from gnomon.runtime.compile import Attention, Form

    if request.to not in ("numba", "triton"):
        raise InputError("--module", "--to numba or --to triton", f"--to {request.to}")
    target: Any = request.to
    widths = request.dim, request.dim
    form = Form(target, io, request.packed, request.positions, widths)
    return Attention(node, target, None).source(form)


def _compiled(node: Node, request: Request, gpu: str) -> "list[KernelReport]":
    """Each kernel compiled: tiles, registers, spills, shared memory."""
    from gnomon.lowering.pipelines import lower as lowered
    from gnomon.runtime import reports
    from gnomon.runtime.stages import known_roles
    from gnomon.runtime.worker import WorkerError

    target, roles = reports.gpu(gpu), known_roles(request.kernels)
    io: Any = request.dtype or "bf16"
    kernels = lowered(node, packed=request.packed, positions=request.positions).kernels
    with progress_console().status(f"compiling for {target.name}"):
        try:
            dims = request.dim, request.dim
            return list(reports.reports(kernels, target, io, *dims, roles=roles))
        except WorkerError as error:
            raise refused(f"Triton cannot compile it for {target.name}:\n{error}") from None


def _report(row: "KernelReport", gpu: str | None) -> dict[str, Any]:
    from gnomon.runtime import reports

    report, target = row.report, reports.gpu(gpu or "")
    return {
        "kernel": row.kernel,
        "target": target.name,
        **row.tiles,
        "registers": report.registers,
        "spills": report.spills,
        "shared": report.shared,
        "fits": report.fits(target),
        "instructions": list(report.kinds),
        "warnings": list(report.warnings),
    }


def _comments(title: str, rows: list[dict[str, Any]]) -> str:
    """The reports as comments, so that what is printed stays a module."""
    lines = [["kernel", "BM x BN", "warps", "stages", "registers", "spills", "shared", "uses"]]
    for row in rows:
        shared = f"{row['shared'] / 1024:.0f} KiB" + ("" if row["fits"] else ": TOO MUCH")
        cells = f"{row['BM']} x {row['BN']}", row["num_warps"], row["num_stages"], row["registers"]
        uses = " ".join(row["instructions"])
        lines.append([row["kernel"], *map(str, cells), f"{row['spills']} B", shared, uses])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join(f"# {line}" for line in [title, *table])


def _print(text: str, language: str, as_json: bool) -> None:
    """Coloured for a reader, as it is for a pipe."""
    if as_json:
        write_json({"text": text})
    elif console().is_terminal and language == "python":
        syntax = Syntax(text.rstrip("\n"), language, theme="ansi_dark", background_color="default")
        console().print(syntax)
    else:
        write(text)


def _list(node: Node, as_json: bool) -> None:
    from gnomon.runtime.stages import passes

    rows = list(dict.fromkeys(passes(node)))
    if as_json:
        write_json([{"name": name, "purpose": purpose} for name, purpose in rows])
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("pass", style="cyan", no_wrap=True)
    table.add_column("purpose")
    for name, purpose in rows:
        table.add_row(name, Text(purpose))
    console().print(table)


def _explain(node: Node, to: str, dim: int, positions: bool, as_json: bool) -> None:
    """A table of choices: what was taken and why, then what else there was; costs of a pair."""
    from gnomon.lowering.cost import Cost
    from gnomon.lowering.explain import explain
    from gnomon.runtime.configs import look_up

    config = look_up("numba" if to == "numba" else "triton", dim, dim).config
    choices = explain(node, config, sizes={"D0": dim, "DV": dim}, positions=positions)
    if as_json:
        write_json([asdict(choice) for choice in choices])
        return
    kinds = [field.name for field in fields(Cost)]
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("choice", style="cyan", no_wrap=True)
    table.add_column("taken, and what else there was", ratio=1)
    for kind in kinds:
        table.add_column(kind, justify="right", no_wrap=True)

    def numbers(cost: object) -> list[str]:
        return ["" if cost is None else f"{getattr(cost, kind):.4g}" for kind in kinds]

    for choice in choices:
        taken = Text(choice.chosen) + Text(f"\n{choice.why}", style="dim")
        table.add_row(Text(choice.subject), taken, *numbers(choice.cost))
        for other in choice.alternatives:
            what = Text("or ", style="yellow") + Text(other.what, style="default")
            what += Text(f"\n{other.note}" if other.note else "", style="dim")
            table.add_row("", what, *numbers(other.cost))
    out = console()
    out.print(table)
    out.print(Text("\nwork for one pair of a query and a key, modelled", style="dim"))

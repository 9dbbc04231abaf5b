"""`gnomon lower`: a variant at any stage of the compiler, or as the source of a target."""

from typing import Annotated, Any

import typer
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from gnomon.dsl.errors import GnomonError, InputError
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

EXAMPLES = examples(
    ("gnomon lower fox --to triton", "the kernels in Triton"),
    ("gnomon lower fox --to triton --gpu h200", "compiled: registers, spills, memory"),
    ("gnomon lower fox --to numba --module", "what gnomon.compile imports"),
    ("gnomon lower fox --list", "the passes, in order"),
    ("gnomon lower fox --after split_prologue", "the variant after a pass"),
    ("gnomon lower fox --explain", "each choice, its alternatives, their cost"),
)
DTYPES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}


def lower(
    variant: Variant,
    to: Annotated[
        str,
        typer.Option("--to", metavar="TARGET", help="triton, numba, tilelang, gluon or torch."),
    ] = "triton",
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="PASS", help="Show the program after this pass."),
    ] = None,
    list_passes: Annotated[bool, typer.Option("--list", help="List the passes.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain the choices of the compiler.")
    ] = False,
    kernel: Annotated[
        list[str] | None,
        typer.Option("--kernel", metavar="ROLE", help="Only fwd, bwd_rows or bwd_columns."),
    ] = None,
    module: Annotated[
        bool, typer.Option("--module", help="The whole module: launches and autograd too.")
    ] = False,
    packed: Annotated[bool, typer.Option("--packed", help="For packed sequences.")] = False,
    positions: Annotated[
        bool, typer.Option("--positions", help="For calls that give positions.")
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="GPU", help="Compile for it: h200, a100, sm_90, ..."),
    ] = None,
    dim: Annotated[int, typer.Option("--dim", help="Channels, for --gpu and --module.")] = 64,
    dtype: Annotated[
        str, typer.Option("--dtype", help="bf16, fp16 or fp32, for --gpu, numba and --module.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One object.")] = False,
) -> None:
    """Lower a variant: print a stage of the compiler, or the source for a target."""
    node = find(variant).node
    if dtype not in ("", *DTYPES):
        raise InputError("--dtype", f"one of {', '.join(DTYPES)}", repr(dtype))
    if list_passes:
        _list(node, as_json)
    elif explain:
        _explain(node, as_json)
    elif after is not None:
        from gnomon.runtime import stages

        _print(stages.after(node, after, kernel or []), "text", as_json)
    elif gpu is not None:
        _reports(node, gpu, dim, dtype or "bf16", as_json, packed)
    elif module:
        _print(_module(node, to, packed, positions, dim, dtype or "fp32"), "python", as_json)
    else:
        from gnomon.runtime import stages

        io: Any = DTYPES[dtype or "fp32"]
        text = stages.source(
            node, to, packed=packed, positions=positions, io=io, roles=kernel or []
        )
        _print(text, "python", as_json)


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


def _module(node: Node, to: str, packed: bool, positions: bool, dim: int, dtype: str) -> str:
    """The module that gnomon.compile would import."""
    from gnomon.runtime.compile import Attention, Form

    if to not in ("numba", "triton"):
        raise InputError("--module", "--to numba or --to triton", f"--to {to}")
    target: Any = to
    io: Any = DTYPES[dtype]
    return Attention(node, target, None).source(Form(target, io, packed, positions, (dim, dim)))


def _reports(node: Node, gpu: str, dim: int, dtype: str, as_json: bool, packed: bool) -> None:
    from gnomon.lowering.pipelines import lower as lowered
    from gnomon.runtime import reports
    from gnomon.runtime.worker import WorkerError

    target, io = reports.gpu(gpu), dtype
    rows = []
    with progress_console().status(f"compiling for {target.name}"):
        try:
            made: Any = reports.reports(lowered(node, packed=packed).kernels, target, io, dim, dim)
            rows = list(made)
        except WorkerError as error:
            raise refused(f"Triton cannot compile it for {target.name}:\n{error}") from None
    if as_json:
        write_json([_report_object(row, target) for row in rows])
        return
    out = console()
    title = f"{node.name} on {gpu} ({target.name}), {dtype}, {dim} channels"
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for name in ("kernel", "BM x BN", "warps", "stages", "registers", "spills", "shared", "uses"):
        table.add_column(name, justify="left" if name in ("kernel", "uses") else "right")
    for row in rows:
        tiles, report = row.tiles, row.report
        fits = report.fits(target)
        table.add_row(
            Text(row.kernel, style="cyan"),
            f"{tiles['BM']} x {tiles['BN']}",
            str(tiles["num_warps"]),
            str(tiles["num_stages"]),
            str(report.registers),
            Text(f"{report.spills} B", style="yellow" if report.spills else "green"),
            Text(f"{report.shared / 1024:.0f} KiB", style="" if fits else "red"),
            " ".join(report.kinds),
        )
    out.print(table)
    out.print(
        f"[dim]a program has {target.shared // 1024} KiB, a thread {target.registers} registers[/]"
    )


def _report_object(row: Any, target: Any) -> dict[str, Any]:
    report = row.report
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


def _explain(node: Node, as_json: bool) -> None:
    raise GnomonError(f"{node.name} {as_json}")

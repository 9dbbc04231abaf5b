"""`gnomon export`: a variant as files that another repository can own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from gnomon.dsl.errors import InputError
from gnomon.dsl.nodes import Variant as Node
from gnomon.runtime.commands.console import (
    FAILED,
    console,
    examples,
    progress_console,
    write_json,
)
from gnomon.runtime.commands.variants import Variant, find

EXAMPLES = examples(
    ("gnomon export fox --to DIR", "for CPU and GPU"),
    ("gnomon export fox --to DIR --target triton", "for a GPU alone"),
    ("gnomon export fox --to DIR --gpu h200", "with what an H200 copies by hardware"),
    ("gnomon export fox --to DIR --licence FILE", "its text heads each file"),
    ("gnomon export fox --to DIR --test", "and run the tests there"),
)
TARGETS = ("numba", "triton")
DIM = 64


Licence = Annotated[
    Path | None,
    typer.Option("--licence", metavar="FILE", help="A header for every file.", exists=True),
]

Gpu = Annotated[
    str, typer.Option("--gpu", metavar="NAME", help="Kernels of this GPU too, as h200.")
]

Dim = Annotated[
    int,
    typer.Option(
        "--dim",
        metavar="D",
        help="Channels of a head that tiles, and the kernels of transports, are for.",
        min=1,
    ),
]


def export(
    variant: Variant,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder.", file_okay=False)],
    form: Annotated[
        str, typer.Option("--as", metavar="FORM", help="Only standalone, so far.")
    ] = "standalone",
    target: Annotated[
        str, typer.Option("--target", metavar="TARGETS", help="numba, triton or both.")
    ] = "numba,triton",
    gpu: Gpu = "",
    dim: Dim = DIM,
    licence: Licence = None,
    test: Annotated[bool, typer.Option("--test", help="Run the exported tests.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The files, as an object.")] = False,
) -> None:
    """Write a variant as files that another repository can own.

    Kernels, launcher, autograd function, reference and tests, without gnomon.
    """
    if form != "standalone":
        raise InputError("--as", "standalone", repr(form))
    targets = [name.strip() for name in target.split(",") if name.strip()]
    unknown = [name for name in targets if name not in TARGETS]
    if unknown or not targets:
        raise InputError("--target", " or ".join((*TARGETS, ",".join(TARGETS))), repr(target))
    again = _command(variant, to, target, gpu, dim)
    written = write(find(variant).node, to, targets, licence, again, gpu, dim)
    passed = run_tests(to, quiet=as_json) if test else None
    if as_json:
        write_json({"files": [str(path) for path in written], "tests_passed": passed})
    else:
        out = console()
        for path in written:
            out.print(Text(f"{path}", style="cyan"))
        if test:
            out.print("[green]the tests passed[/]" if passed else "[red]the tests FAILED[/]")
        else:
            out.print(Text(f"try: python -m pytest {to}", style="dim"))
    if passed is False:
        raise typer.Exit(FAILED)


def write(
    node: Node,
    folder: Path,
    targets: list[str],
    licence: Path | None,
    command: str,
    gpu: str = "",
    dim: int = DIM,
) -> list[Path]:
    """Write the files; their paths. Raises UnsupportedError where no lowering exists.

    For a `gpu` that copies tiles by hardware there are kernels that let it, beside the others;
    those that move queries and keys through a transport are for heads of `dim` channels.
    """
    from gnomon.dsl.show import digest
    from gnomon.lowering.emit.module import Provenance
    from gnomon.lowering.export.standalone import Standalone, write_standalone
    from gnomon.runtime.compile import installed_version
    from gnomon.runtime.reports import gpu as find_gpu

    descriptors = bool(gpu) and find_gpu(gpu).has_descriptors
    text = licence.read_text() if licence is not None else ""
    origin = Provenance(digest(node), command, installed_version(), text)
    modules = [_module(node, name, origin, dim, descriptors=descriptors) for name in targets]
    return write_standalone(Standalone(modules), folder)


def _module(node: Node, target: Any, origin: Any, dim: int, *, descriptors: bool) -> Any:
    """The kernels for one target."""
    from gnomon.lowering.emit.module import Module
    from gnomon.lowering.pipelines import lower
    from gnomon.runtime.compile import tiles_by_name
    from gnomon.runtime.configs import default_config

    padded, packed = lower(node), lower(node, packed=True)
    config = default_config(padded.kernels, (dim, dim), "bf16", target).config
    by_descriptor = descriptors and target == "triton"
    return Module(
        padded.program,
        padded.kernels,
        packed.kernels,
        target,
        "f32",
        tiles_by_name(padded.kernels, config, target),
        origin,
        descriptors=by_descriptor,
        leaf=config.leaf,
        width=dim if by_descriptor else None,
    )


def _command(variant: str, to: Path, target: str, gpu: str, dim: int) -> str:
    """What writes the files anew; the folder by its name, since a path belongs to one machine."""
    name = Path(variant).name if ".py" in variant else variant
    chosen = "" if target == ",".join(TARGETS) else f" --target {target}"
    chosen += f" --gpu {gpu}" if gpu else ""
    chosen += f" --dim {dim}" if dim != DIM else ""
    return f"gnomon export {name} --to {to.name or '.'}{chosen}"


def run_tests(folder: Path, *, quiet: bool) -> bool:
    """Whether the tests pass in a process of their own, which knows the folder alone."""
    # what a repository around the folder asks of its own tests is not asked of these
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    command = [sys.executable, "-m", "pytest", *options, "."]
    with progress_console().status("running the exported tests"):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not quiet or done.returncode:
        progress_console().print(done.stdout + done.stderr, markup=False)
    return done.returncode == 0

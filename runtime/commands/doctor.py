"""`gnomon doctor`: what is installed, which targets work here, and why others do not."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gnomon.runtime import probes
from gnomon.runtime.commands.console import (
    FAILED,
    console,
    examples,
    progress_console,
    write_json,
)
from gnomon.runtime.settings import settings

EXAMPLES = examples(
    ("gnomon doctor", "a table; some seconds"),
    ("gnomon doctor --json", "the same for a program, or for a report of an error"),
)
PACKAGES = ("torch", "triton", "numba", "numpy", "scipy", "tilelang")
NEEDED = ("numba", "triton")
PATIENCE = 120.0


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One object.")] = False,
) -> None:
    """Say what is installed, what works here, and why the rest does not.

    Every target compiles or runs a small kernel in a process of its own.
    The exit code is 1 where Numba or Triton do not work at all.
    """
    board = progress_console()
    with board.status("asking torch") as status:
        found: dict[str, Any] = {"installed": installed(), "machine": machine()}
        targets = {}
        for name in probes.PROBES:
            status.update(f"trying {name}")
            works, what = attempt(name)
            targets[name] = {"works": works, "what": what}
        found |= {"targets": targets, "settings": environment()}
    if as_json:
        write_json(found)
    else:
        _print(console(), found)
    if not all(targets[name]["works"] for name in NEEDED):
        raise typer.Exit(FAILED)


def installed() -> dict[str, str | None]:
    """Versions of Python and of what the targets need; None where a package is missing."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("gnomon", *PACKAGES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def machine() -> dict[str, Any]:
    """Processor, GPU, CUDA compiler, BLAS."""
    import threadpoolctl
    import torch
    from scipy import linalg  # whose BLAS Numba calls

    pools = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
    has_gpu = torch.cuda.is_available()
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if has_gpu
        else [],
        "cuda of torch": torch.version.cuda,
        "nvcc": _nvcc(),
        "blas": [
            f"{x['internal_api']} {x['version']}, {x['num_threads']} threads"
            for x in pools
            if linalg
        ],
    }


def _nvcc() -> str | None:
    """The version of the CUDA compiler on the search path."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        return None
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "release" in line]
    return lines[0].partition("release ")[2].partition(",")[0] if lines else "unknown version"


def attempt(name: str) -> tuple[bool, str]:
    """Whether a target works here, and what was done or why not."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    if name == "triton interpreter":
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, str(Path(probes.__file__)), name]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer in {PATIENCE:g} s"
    lines = [line.strip() for line in (done.stdout or "").splitlines() if line.strip()]
    if done.returncode == 0 and lines:
        return True, lines[-1]
    errors = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return False, errors[-1] if errors else f"the process died with exit status {done.returncode}"


def environment() -> dict[str, Any]:
    """The settings of gnomon, and what lies in its cache."""
    now = settings()
    kernels = list((now.cache / "kernels").glob("*.py"))
    return {
        "GNOMON_CACHE": str(now.cache),
        "kernels in the cache": len(kernels),
        "GNOMON_DUMP": None if now.dump is None else str(now.dump),
        "GNOMON_KERNEL_DIR": None if now.kernel_dir is None else str(now.kernel_dir),
        "GNOMON_LOG": now.log,
    }


# ---- output


def _print(out: Console, found: dict[str, Any]) -> None:
    out.print(_table("installed", _plain(found["installed"], "not installed")))
    out.print(_table("machine", _plain(found["machine"], "none")))
    marks = (
        (
            name,
            Text("works  " if x["works"] else "no     ", "green" if x["works"] else "yellow")
            + Text(x["what"], "default"),
        )
        for name, x in found["targets"].items()
    )
    out.print(_table("targets", marks))
    out.print(_table("settings", _plain(found["settings"], "not set")))


def _plain(values: dict[str, Any], nothing: str) -> Iterator[tuple[str, Text]]:
    for name, value in values.items():
        if isinstance(value, list):
            yield name, Text("; ".join(value) or nothing)
        else:
            yield name, Text(nothing if value is None else str(value))


def _table(title: str, rows: Iterator[tuple[str, Text]]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        show_header=False,
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 2),
    )
    table.add_column(min_width=22, style="cyan", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, value)
    return table

"""What the commands of `gnomon tune` share: options, the store and the device that are meant."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnomon.dsl.errors import InputError

if TYPE_CHECKING:
    from gnomon.autotune.store import Store
    from gnomon.runtime.gpus import Device

MAIN = ("nope", "fox", "alibi", "tapa", "t5", "sliding_window")
"""The variants whose tables are shipped first; rows that lower to their kernels have them too."""


def option(name: str, what: str, metavar: str | None = None) -> Any:
    """An option of a command."""
    return typer.Option(name, help=what, metavar=metavar)


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[VARIANT]...",
        help=f"Names, or [cyan]file.py:name[/]; by default {', '.join(MAIN)}.",
        show_default=False,
    ),
]
GpuName = Annotated[str, option("--gpu", "auto, or h200, a100, ..., for --offline.", "GPU")]
Offline = Annotated[bool, option("--offline", "Compile and rank; nothing is measured.")]
Dims = Annotated[str, option("--dims", "Channels of a head, D.", "D,D,...")]
Lengths = Annotated[str, option("--lengths", "Tokens, T: 2048, 8192, 32768.", "T,T,...")]
Groups = Annotated[str, option("--groups", "Query heads to a key head: 1, 4, 8.", "G,...")]
Dtype = Annotated[str, option("--dtype", "bf16, fp16 or fp32.")]
Packed = Annotated[bool, option("--packed", "For packed sequences.")]
Budget = Annotated[float | None, option("--budget", "In all; 150 offline, else 300.", "SECONDS")]
StoreDir = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", file_okay=False, help="Of records; by default yours."),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", dir_okay=False, help="The landscape, as PNG or SVG."),
]
Processes = Annotated[int | None, option("--processes", "That compile at a time.", "N")]
ExecutorName = Annotated[str, option("--executor", "local, or ray where it is installed.")]
Candidates = Annotated[int, option("--candidates", "Of each kernel, measured.", "N")]
Json = Annotated[bool, typer.Option("--json", help="The picks, as JSON.")]
To = Annotated[Path, typer.Option("--to", metavar="DIR", file_okay=False, help="Where files go.")]


def store_of(folder: Path | None) -> "Store":
    """The store of a folder; of the user where none is named."""
    from gnomon.autotune.store import Store
    from gnomon.runtime import configs

    return Store(folder or configs.store())


def device_of_name(gpu: str, *, offline: bool = False) -> "Device":
    """The device that is meant; InputError where it is not here and shall be measured."""
    from gnomon.runtime.gpus import device_of_table
    from gnomon.runtime.gpus import gpu as card

    if offline and gpu != "auto":
        return device_of_table(card(gpu))
    import torch

    if not torch.cuda.is_available():
        fix = "--gpu h200 --offline compiles and ranks without one"
        raise InputError("--gpu", "a CUDA device", f"{gpu}; torch finds none", fix)
    from gnomon.runtime.here import device_of

    here = device_of(torch.device("cuda", 0))
    others = {device_of(torch.device("cuda", n)) for n in range(torch.cuda.device_count())}
    if len(others) > 1:
        shown = ", ".join(sorted(other.id for other in others))
        raise InputError("--gpu", "GPUs of one kind (CUDA_VISIBLE_DEVICES chooses)", shown)
    if gpu != "auto" and card(gpu).family != here.family:
        raise InputError("--gpu", f"auto or {here.family}, which is here", repr(gpu))
    return here

"""This machine as a look-up asks for it: the device of a tensor, and the toolchain.

What is asked once is kept, and nothing here starts a process or takes more than milliseconds.
"""

import re
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from gnomon.runtime.gpus import Device, identify
from gnomon.runtime.tuned import Toolchain

_DRIVER = Path("/proc/driver/nvidia/version")


def device_of(device: torch.device) -> Device:
    """The GPU that a tensor is on: of several cards each has its own."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    return _device(index)


@lru_cache(maxsize=64)
def _device(index: int) -> Device:
    card = torch.cuda.get_device_properties(index)
    architecture = str(getattr(card, "gcnArchName", "")).partition(":")[0]
    is_hip = torch.version.hip is not None and bool(architecture)
    target = architecture if is_hip else f"sm_{card.major}{card.minor}"
    return identify(card.name, target, card.multi_processor_count)


@lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """The versions that make a binary here."""
    return Toolchain(_version("triton"), assembler(), torch.__version__, driver())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def assembler() -> str:
    """The version of the ptxas that Triton brings along, read off the files beside it.

    Another one, named by TRITON_PTXAS_PATH, is called by its path: it makes another binary.
    """
    import os

    other = os.environ.get("TRITON_PTXAS_PATH", "")
    return f"ptxas at {Path(other).name}" if other else f"of triton {_version('triton')}"


def driver() -> str:
    """The version of the NVIDIA driver; "" where there is none."""
    try:
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)*)\s", _DRIVER.read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def is_capturing() -> bool:
    """Whether the current stream records a graph: nothing may be compiled or measured then."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()

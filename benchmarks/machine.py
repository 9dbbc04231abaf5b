"""What a figure was measured on: the device, the versions, the commit."""

import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from gnomon.runtime.settings import settings

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"triton": "triton", "fla": "fla-core", "tilelang": "tilelang"}


def device(name: str) -> dict[str, Any]:
    """The card, or the processor."""
    if name != "cuda":
        return {"name": processor()}
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": card.name,
        "capability": f"sm_{card.major}{card.minor}",
        "memory_mib": card.total_memory // 2**20,
    }


def processor() -> str:
    """The name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions() -> dict[str, str | None]:
    """Of Python, torch, CUDA, the driver and the packages; None for what is not there."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": _driver(),
    }
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = None
    return found


def _driver() -> str | None:
    """The version of the NVIDIA driver."""
    command = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    lines = _output(command).splitlines()
    return lines[0].strip() if lines else None


def commit() -> str:
    """The commit of the checkout, "-dirty" where tracked files differ from it.

    GNOMON_COMMIT says it for a copy without git; "unknown" where nobody does.
    """
    given = settings().commit
    if given is not None:
        return given
    git = ("git", "-C", str(ROOT))
    top = _output((*git, "rev-parse", "--show-toplevel")).strip()
    if not top or Path(top).resolve() != ROOT:  # a copy inside of somebody else's repository
        return "unknown"
    changed = _output((*git, "status", "--porcelain", "--untracked-files=no"))
    return _output((*git, "rev-parse", "--short=12", "HEAD")).strip() + "-dirty" * bool(changed)


def _output(command: Sequence[str]) -> str:
    """What a program prints; "" where it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""

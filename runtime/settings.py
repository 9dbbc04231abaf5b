"""The environment variables, read in one place; a wrong value is refused with what is allowed.

GNOMON_CACHE       folder of generated modules; by default in the user's cache folder
GNOMON_COMMIT      the commit that results name, for a copy of the tree without git
GNOMON_DUMP        folder for the text of every stage; by default none is written
GNOMON_KERNEL_DIR  folder whose modules win over generated ones of the same name (experiments)
GNOMON_LOG         debug, info, warning or error; by default warning
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says now."""

    cache: Path
    dump: Path | None
    kernel_dir: Path | None
    log: str
    commit: str | None = None


def settings() -> Settings:
    """The settings of this process. ValueError names the variable, what is allowed, what came."""
    level = os.environ.get("GNOMON_LOG", "warning")
    if level not in LEVELS:
        raise ValueError(f"GNOMON_LOG: expected one of {', '.join(LEVELS)}; got {level!r}")
    known = {"GNOMON_CACHE", "GNOMON_COMMIT", "GNOMON_DUMP", "GNOMON_KERNEL_DIR", "GNOMON_LOG"}
    for name in os.environ:
        if name.startswith("GNOMON_") and name not in known:
            raise ValueError(f"{name}: no such setting; known are {', '.join(sorted(known))}")
    kernels = _folder("GNOMON_KERNEL_DIR")
    if kernels is not None and not kernels.is_dir():
        raise ValueError(f"GNOMON_KERNEL_DIR: expected a folder; got {str(kernels)!r}")
    return Settings(
        _folder("GNOMON_CACHE") or _default_cache(),
        _folder("GNOMON_DUMP"),
        kernels,
        level,
        os.environ.get("GNOMON_COMMIT") or None,
    )


def logger() -> logging.Logger:
    """The logger of the package, at the level of the settings."""
    log = logging.getLogger("gnomon")
    log.setLevel(settings().log.upper())
    return log


def _folder(name: str) -> Path | None:
    value = os.environ.get(name)
    if value is None:
        return None
    if not value:
        raise ValueError(f"{name}: expected a folder; got an empty string")
    return Path(value).expanduser()


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gnomon"

"""Which targets a variant lowers to today: found by printing its kernels, and remembered.

The answers lie in the cache folder under a digest of the compiler's own sources, so that a changed
compiler asks again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import gnomon.dsl
import gnomon.lowering
from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.nodes import Variant
from gnomon.dsl.show import digest
from gnomon.lowering.emit.prologue import body
from gnomon.lowering.pipelines import lower
from gnomon.lowering.tile import Kernel
from gnomon.runtime import stages
from gnomon.runtime.settings import logger, settings

NAMES = ("numba", "triton", "tilelang", "gluon")
"""All targets; the first two have whole modules, which gnomon.compile and export use."""

Verdict = Mapping[str, str]
"""Target -> why the variant does not lower to it, or "" where it does."""


def verdicts(
    variants: Iterable[Variant], watch: Callable[[str], None] | None = None
) -> dict[str, Verdict]:
    """The verdict on each variant by its digest; `watch` is told the name of each that is tried."""
    path = settings().cache / "targets.json"
    stamp = compiler_stamp()
    known = _read(path, stamp)
    found, news = {}, False
    for variant in variants:
        key = digest(variant)
        if key not in known:
            if watch is not None:
                watch(variant.name)
            known[key], news = try_targets(variant), True
        found[key] = known[key]
    if news:
        _write(path, stamp, known)
    return found


def try_targets(variant: Variant) -> Verdict:
    """The verdict on one variant, by lowering it and printing its kernels."""
    try:
        lowered = lower(variant)
        body(lowered.program)  # what torch does around the kernels, for every target
    except UnsupportedError as error:
        return dict.fromkeys(NAMES, error.what)
    kernels = [kernel for each in lowered.kernels for kernel in each.all()]
    return {name: _refusal(name, kernels) for name in NAMES}


def _refusal(target: str, kernels: Sequence[Kernel]) -> str:
    """Why the kernels cannot be printed for a target, or nothing."""
    try:
        stages.print_kernels(target, kernels, "Kernels of one variant.")
    except UnsupportedError as error:
        return error.what
    except Exception as error:  # noqa: BLE001  a bug in one printer leaves the others listed
        return f"bug in the compiler: {type(error).__name__}: {error}"
    return ""


def compiler_stamp() -> str:
    """A digest of the sources of the language, the lowering, and of what asks them."""
    found = hashlib.sha256()
    sources = [Path(__file__), Path(stages.__file__)]
    for package in (gnomon.dsl, gnomon.lowering):
        sources += sorted(Path(package.__path__[0]).rglob("*.py"))
    for path in sources:
        found.update(f"{path.name}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _read(path: Path, stamp: str) -> dict[str, Verdict]:
    try:
        kept = json.loads(path.read_text())
        return dict(kept["verdicts"]) if kept["stamp"] == stamp else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # none yet, or not ours: asked anew


def _write(path: Path, stamp: str, known: Mapping[str, Verdict]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(
            f".{os.getpid()}.tmp"
        )  # it appears whole, as other processes read
        beside.write_text(json.dumps({"stamp": stamp, "verdicts": known}, indent=1))
        beside.replace(path)
    except OSError as error:
        logger().warning("%s cannot be written (%s): targets are tried anew", path, error)

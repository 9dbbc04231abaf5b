"""Which versions of Triton the kernels are for, and what is said where another is installed.

Checked before the first kernel is made, not at import: a machine without kernels needs no Triton.
"""

import re
from importlib.metadata import PackageNotFoundError, version

from gnomon.dsl.errors import UnsupportedError

OLDEST, BEFORE = (3, 6), (3, 10)
"""Triton from 3.6 on, before 3.10: pyproject.toml says the same."""
TESTED = {"2.11": "3.6", "2.13": "3.7"}
"""torch -> the Triton that it brings, of the pairs that the tests and the benchmarks ran with."""


def check_triton() -> None:
    """Raises UnsupportedError where Triton is missing, or of a version that no kernel was for."""
    wanted = f"triton >= {_shown(OLDEST)}, < {_shown(BEFORE)}"
    pairs = ", ".join(f"torch {torch} brings triton {triton}" for torch, triton in TESTED.items())
    fix = f"install {wanted}: {pairs}"
    try:
        found = version("triton")
    except PackageNotFoundError:
        raise UnsupportedError("the kernels of a GPU need triton, which is missing", fix) from None
    numbers = tuple(int(n) for n in re.findall(r"\d+", found)[:2])
    if not OLDEST <= numbers < BEFORE:
        what = f"triton {found} with torch {_torch()}: the kernels are for {wanted}"
        raise UnsupportedError(what, fix)


def _shown(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "missing"

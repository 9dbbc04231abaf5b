"""Dependencies point one way: dsl <- lowering <- runtime <- autotune <- benchmarks."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = ("dsl", "lowering", "runtime", "autotune", "benchmarks")
DEVICE_LIBRARIES = {"torch", "triton", "numba", "tilelang"}
ORACLE = tuple(
    str(path.relative_to(ROOT))
    for path in (ROOT / "dsl").glob("*.py")
    if path.name.startswith(("reference", "evaluate_"))
)


def imports(path: Path) -> set[str]:
    """Every module that a file names in an import, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def offenders(part: str, banned: set[str], but: tuple[str, ...] = ()) -> set[str]:
    """`file imports module` for each import of a banned module, or of one inside it."""
    return {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / part).rglob("*.py")
        if str(path.relative_to(ROOT)) not in but
        for name in imports(path)
        if any(name == ban or name.startswith(f"{ban}.") for ban in banned)
    }


@pytest.mark.parametrize("part", ORDER)
def test_a_part_imports_nothing_above_it(part: str) -> None:
    above = ORDER[ORDER.index(part) + 1 :]
    # the command line is the top of everything, although its folder is in runtime
    commands = {str(p.relative_to(ROOT)) for p in (ROOT / "runtime/commands").rglob("*.py")}
    assert offenders(part, {f"gnomon.{name}" for name in above}, but=tuple(commands)) == set()


@pytest.mark.parametrize("part", ORDER)
def test_nobody_imports_the_generated_kernels(part: str) -> None:
    assert offenders(part, {"gnomon.kernels_generated"}) == set()


@pytest.mark.parametrize("part", ["dsl", "lowering"])
def test_below_the_runtime_only_the_oracle_needs_a_device_library(part: str) -> None:
    assert offenders(part, DEVICE_LIBRARIES, but=ORACLE) == set()


@pytest.mark.parametrize("part", ORDER)
def test_imports_name_the_package(part: str) -> None:
    assert offenders(part, set(ORDER) | {"kernels_generated"}) == set()

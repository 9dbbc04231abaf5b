"""The package in a checkout, in a wheel and before a type checker is one and the same."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("autotune", "benchmarks", "dsl", "kernels_generated", "lowering", "runtime")
FRONT = ("__init__.py", "__main__.py", "py.typed")
FILE_LINES, FUNCTION_LINES = 400, 40
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def sources(*parts: str) -> list[Path]:
    return sorted(path for part in parts for path in (ROOT / part).rglob("*.py"))


def test_every_package_is_listed() -> None:
    found = {
        ".".join(("gnomon", *path.parent.relative_to(ROOT).parts))
        for path in sources(*PARTS)
        if path.name == "__init__.py"
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == {"gnomon"} | found


def test_every_module_lies_in_a_package() -> None:
    # generated files are for other repositories: nothing imports them here
    parts = [part for part in PARTS if part != "kernels_generated"]
    strays = [path for path in sources(*parts) if not (path.parent / "__init__.py").exists()]
    assert strays == []


def test_no_stray_module_beside_the_front_door() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_type_checkers_see_every_part() -> None:
    links = {
        link.name: link.resolve()
        for link in (ROOT / ".pyroot" / "gnomon").iterdir()
        if link.is_symlink()
    }
    assert links == {name: ROOT / name for name in PARTS + FRONT}


@pytest.mark.parametrize("part", [part for part in PARTS if part != "kernels_generated"])
def test_files_and_functions_keep_to_the_budget_of_lines(part: str) -> None:
    too_long = {}
    for path in sources(part):
        text, name = path.read_text(), str(path.relative_to(ROOT))
        if len(text.splitlines()) > FILE_LINES:
            too_long[name] = len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    too_long[f"{name}:{node.lineno} {node.name}"] = lines
    assert too_long == {}


def test_no_tracked_file_names_a_machine() -> None:
    """No folder of one machine and no package index: each clone is its own world."""
    folders = "|".join(("work", "farm", "root", "tmp"))
    hosts = "|".join(("index-url", r"py\.?pi\.", r"pythonhosted\."))
    machine = re.compile(rf"(?<![\w.$)}}~-])/(?:{folders})/|{hosts}")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert len(files) > 20
    named = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        if path.is_file() and path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if machine.search(line)
    ]
    assert named == []


@pytest.mark.parametrize("part", ["lowering", "kernels_generated"])
def test_no_kernel_uses_what_triton_has_removed(part: str) -> None:
    removed = re.compile(r"make_block_ptr|tl\.advance")
    assert [path for path in sources(part) if removed.search(path.read_text())] == []


def test_every_golden_file_belongs_to_a_test() -> None:
    golden = ROOT / "tests" / "golden"
    orphans = []
    for path in golden.rglob("*.*"):
        module = ROOT / "tests" / path.parent.relative_to(golden).with_suffix(".py")
        tests = re.findall(r"def (test_\w+)", module.read_text()) if module.exists() else []
        if not path.stem.startswith(tuple(tests)):
            orphans.append(path.relative_to(golden))
    assert orphans == []

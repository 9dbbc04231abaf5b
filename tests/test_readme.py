"""What the documents say works: each Python block runs, each make target exists."""

import re
from pathlib import Path

import pytest

from gnomon.benchmarks import report

ROOT = Path(__file__).parents[1]
FOLDERS = (
    ".",
    "autotune",
    "benchmarks",
    "dsl",
    "examples",
    "kernels_generated",
    "lowering",
    "runtime",
)
DOCUMENTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md"))
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """The (line, text) of every block of a language."""
    text = path.read_text()
    found = [match for match in BLOCK.finditer(text) if match[1] == language]
    return [(text.count("\n", 0, match.start(2)), match[2]) for match in found]


WITH_PYTHON = [path for path in DOCUMENTS if blocks(path, "python")]


@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_blocks_run_one_after_another(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "readme"}
    for line, text in blocks(path, "python"):
        # blank lines in front: errors and the variant's own lines point into the document
        exec(compile("\n" * line + text, str(path), "exec"), scope)


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (path.name, target)
        for path in DOCUMENTS
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text(), re.MULTILINE)
    }
    assert {target for _, target in named} >= {"demo", "test"}
    assert {(name, target) for name, target in named if target not in targets} == set()


def test_figures_are_those_of_the_results() -> None:
    """`python -m gnomon.benchmarks.report` writes them; nobody types one."""
    text = (ROOT / "README.md").read_text()
    between = text.partition(report.BEGIN)[2].partition(report.END)[0]
    assert between == report.figures()

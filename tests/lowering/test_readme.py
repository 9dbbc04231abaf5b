"""lowering/README.md against the compiler: what it shows of FoX is what each pass leaves.

`--update-golden` writes the blocks anew; read the difference before you commit it.
"""

import re
from pathlib import Path

import pytest

import gnomon as gn
from gnomon.lowering.pipelines import stages
from gnomon.lowering.show import kernel_text, stage_text
from gnomon.lowering.tile import Kernel

FOLDER = Path(__file__).parents[2] / "lowering"
README, DECISIONS = FOLDER / "README.md", FOLDER / "DECISIONS.md"
BLOCK = re.compile(r"^```text (.*)\n((?:.*\n)*?)```$", re.MULTILINE)


def shown(what: str) -> str:
    """The text for `after PASS`, `KERNEL after PASS` or `loop of KERNEL after PASS`."""
    subject, _, name = what.rpartition("after ")
    (left,) = [stage.left for stage in stages(gn.catalogue.fox.node) if stage.name == name]
    if not subject:
        return stage_text(left)
    assert isinstance(left, tuple)
    wanted = subject.split()[-1]
    (kernel,) = [k for k in left if isinstance(k, Kernel) and k.name == wanted]
    text = kernel_text(kernel)
    return first_loop(text) if subject.startswith("loop of") else text


def first_loop(text: str) -> str:
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("for "))
    inside = [line.startswith("    ") for line in lines[start + 1 :]]
    return "\n".join(lines[start : start + 1 + inside.index(False)])


def test_each_block_is_what_the_pass_leaves(request: pytest.FixtureRequest) -> None:
    text = README.read_text()
    made = BLOCK.sub(lambda m: f"```text {m[1]}\n{shown(m[1]).rstrip()}\n```", text)
    if request.config.getoption("--update-golden"):
        README.write_text(made)
    assert len(BLOCK.findall(text)) == 4
    assert README.read_text() == made


def test_every_pass_is_told_of() -> None:
    text = README.read_text()
    for stage in stages(gn.catalogue.fox.node):
        assert f"**{stage.name}" in text, stage.name


def test_the_files_of_the_table_exist_and_none_is_forgotten() -> None:
    table = [line for line in README.read_text().splitlines() if line.startswith("| `")]
    folder, named = FOLDER, set()
    for line in table:
        for name in re.findall(r"`([\w/]+(?:\.py|\.md|/))`", line.split("|")[1]):
            folder = FOLDER / "schedules" if "schedules/" in line.split("|")[1] else FOLDER
            path = folder / name if (folder / name).exists() else FOLDER / name
            assert path.exists(), name
            named.add(name.rstrip("/"))
    missing = {
        path.name
        for path in FOLDER.iterdir()
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists())
    } - named
    assert missing <= {"__init__.py", "__pycache__"}, missing


def test_a_decision_takes_about_ten_lines() -> None:
    entries = [part for part in DECISIONS.read_text().split("\n\n") if part.startswith("**")]
    assert len(entries) >= 15
    for entry in entries:
        assert re.match(r"\*\*.+\.\*\* ", entry), entry[:60]
        assert len(entry.splitlines()) <= 10

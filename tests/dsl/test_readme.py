"""dsl/README.md against the code: all words, all laws, all files; its programs run."""

import ast
import re
from pathlib import Path

import gnomon as gn
from gnomon.dsl.words import REFUSED, WORDS

FOLDER = Path(gn.dsl.words.__file__).parent
TEXT = (FOLDER / "README.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def law_names() -> set[str]:
    """What stands first in every LawError(...) of the folder."""
    names = {law for law, _, _ in REFUSED.values()}
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "LawError":
                first = node.args[0]
                names |= {str(first.value)} if isinstance(first, ast.Constant) else set()
    return names | {"skipped keys are negligible"}


def test_every_word_is_listed_and_every_listed_word_exists() -> None:
    cells = " ".join(line for line in section("Words").splitlines() if line.startswith("|"))
    listed = set(re.findall(r"`(\w+)[`(]", cells)) - {"abs"}
    assert listed == set(WORDS)
    assert set(WORDS) <= set(gn.__all__)


def test_every_law_is_listed_and_every_listed_law_exists() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", section("Laws"), re.MULTILINE)
    assert {row for row in rows if not row.startswith("law of")} == law_names()


def test_the_files_exist() -> None:
    names = re.findall(r"`([\w/]+(?:\.py|/))`", TEXT.split("\n## ")[0])
    assert len(names) > 15
    assert all((FOLDER / name).exists() for name in names)


def test_its_programs_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 5
    scope: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    assert isinstance(scope["path_fox"], gn.Declaration)

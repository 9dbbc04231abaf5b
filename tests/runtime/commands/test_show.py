"""`gnomon show`, and the ways in which a variant is named."""

import json
from pathlib import Path

import pytest
from command_line import refusal, text
from conftest import Golden

import gnomon as gn
from gnomon.dsl import show

MINE = """\
import gnomon as gn
from gnomon import Head, Token
from neighbour import CAP


@gn.variant
def mine(q, k, log_f: Token[Head], *, cap=CAP):
    "cap tanh(q_i . k_j / cap) + sum log f"
    return gn.softmax(cap * gn.tanh(gn.dot(q, k) / cap) + gn.decay(log_f), mask=gn.causal())


def plain(q, k):
    return q
"""
WRONG = {
    "law": "import gnomon as gn\n\n\n@gn.variant\ndef law(q, k):\n    "
    "return gn.softmax(gn.dot(q, q), mask=gn.causal())\n",
    "crash": "def helper():\n    return missing\n\n\nvalue = helper()\n",
    "syntax": "import gnomon as gn\n\ndef f(:\n",
    "exit": "import sys\n\nsys.exit(3)\n",
    "empty": "",
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    Path("neighbour.py").write_text("CAP = 30.0\n")
    for name, source in WRONG.items():
        Path(f"{name}.py").write_text(source)


def test_a_row_of_the_catalogue() -> None:
    assert text("show", "fox") == show.text(gn.catalogue.fox.node)
    assert text("show", "fox", "--latex") == show.latex(gn.catalogue.fox.node).rstrip("\n") + "\n"


def test_the_graph_goes_to_a_file() -> None:
    assert text("show", "fox", "--svg", "fox.svg") == ""
    assert Path("fox.svg").read_text() == show.svg(gn.catalogue.fox.node)


def test_an_object_for_a_program() -> None:
    found = json.loads(text("show", "tapa", "--json"))
    assert found["digest"] == show.digest(gn.catalogue.tapa.node)
    assert found["inputs"]["v"] == ["batch", "time_k", "KVHead", "d_v"]
    assert found["hyperparameters"] == {"alpha": 0.1, "theta": 0.5}


def test_a_variant_of_the_users_file_and_its_neighbours() -> None:
    assert text("show", "mine.py:mine").startswith("mine(q, k, v, log_f, cap=30.0)\n")
    assert text("show", "mine.py") == text("show", "mine.py:mine")


@pytest.mark.parametrize(
    "name",
    [
        *("law.py:law", "crash.py:value", "syntax.py:f", "exit.py:x", "empty.py:x"),
        *("mine.py:mind", "mine.py:plain", "mine.py:CAP", "none.py:x", "foxx", "dape"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(name: str, golden: Golden) -> None:
    assert refusal("show", name) == golden


def test_a_file_without_a_variant_says_so() -> None:
    assert refusal("show", "empty.py").endswith("empty.py declares no variant\n")

"""The text of a variant: golden for a few, complete for all, and what the conventions say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Golden

import gnomon as gn
from gnomon import Dim, Head, KVHead, Param, Query, Token
from gnomon.dsl import show
from gnomon.dsl.canonical import canonical
from gnomon.dsl.catalogue import ENTRIES
from gnomon.dsl.nodes import Expr, Input, Variant, walk
from gnomon.dsl.outline import outline

ROOT = Path(__file__).parents[2]
DECLARED = [e.declaration.node for e in ENTRIES if e.declaration is not None]
Q = Query[Head, Dim]
K = Token[KVHead, Dim]


def text(name: str) -> str:
    return show.text(gn.catalogue.find(name).node)


def conventions(name: str) -> list[str]:
    """The lines of the conventions, their columns one space apart."""
    section = text(name).split("conventions\n")[1].split("\n\n")[0]
    return [" ".join(line.split()) for line in section.splitlines()]


@pytest.mark.parametrize("name", ["path_fox", "tapa", "wall", "fire", "retention", "differential"])
def test_text(name: str, golden: Golden) -> None:
    assert text(name) == golden


def test_graph_lines(golden: Golden) -> None:
    """What a digest is made of: a change here makes all tuned configurations strangers."""
    assert "\n".join(show.graph_lines(canonical(gn.catalogue.path_fox.node))) == golden


@pytest.mark.parametrize("variant", DECLARED, ids=lambda v: v.name)
def test_every_variant_has_a_text(variant: Variant) -> None:
    for v in (variant, canonical(variant)):
        shown = show.text(v)
        used = {n.name for n in walk(v.output) if isinstance(n, Input)}
        for name in used | {"v"}:
            assert f"\n    {name} " in shown.split("formula")[0] + shown
        assert all(len(line) == len(line.rstrip()) for line in shown.splitlines())
        found = outline(v)
        names = [line.name for line in found.lines]
        assert len(set(names)) == len(names)
        assert not {*names} & {x.name for x in v.inputs} - {"v"}
        assert names[-1] == "output"


def test_a_text_is_the_same_in_another_process() -> None:
    code = (
        "import gnomon as gn; from gnomon.dsl import show; print(show.text(gn.catalogue.fire.node))"
    )
    paths = {**os.environ, "PYTHONPATH": str(ROOT / ".pyroot"), "PYTHONHASHSEED": "7"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=paths, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == text("fire").strip()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("path", "score through step[i] @ ... @ step[j + 1]: s in (j, i], "
                 "the query's own step first; transition"),
        ("xpos", "score through shrink ** distance(): s in (j, i], "
                 "the query's own step first; diagonal"),
        ("gla", "score contracting if log <= 0"),
        ("wall", "score keys expanded to query heads"),
        ("fox", "log_decay sum of log_f[s] over s in (j, i]: "
                "the own step of the query in, of the key out"),
        ("grape_ap", "path sum over visible keys l in (j, last visible key of i]"),
        ("cope", "scan sum over visible keys l in [j, last visible key of i]"),
        ("t5", "score scaled by nothing"),
        ("nope", "score scaled by dim(d) ** -0.5"),
        ("path_fox_fla", "score scaled by dim(d) ** -0.5"),
        ("yarn", "score scaled by 1.6313902266748685 * dim(d) ** -0.5"),
        ("tupe", "place scaled by (2 * dim(d)) ** -0.5"),
        ("softmax_off_by_one", "output e^s / (e^0.0 + sum e^s) over the visible keys: j <= i"),
        ("streaming", "output e^s / sum e^s over the visible keys: j <= i and "
                      "(|i - j| < 4096 or j < 4)"),
        ("documents", "output e^s / sum e^s over the visible keys: j <= i and ids[i] == ids[j]"),
        ("rope_axial", "position given by the call for x, y; masks count in memory order"),
    ],
)  # fmt: skip
def test_conventions(name: str, line: str) -> None:
    assert line in conventions(name)


def test_only_wall_expands_its_keys() -> None:
    told = {v.name for v in DECLARED if "keys expanded to query heads" in show.text(v)}
    assert {"wall"} <= told
    assert not told & {"path_fox", "gla", "rope", "fire", "kda"}


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("beta", "[batch, time_k, KVHead] token fp32 fp32, because it is summed: beta.float()"),
        ("w", "[batch, time_k, KVHead, d] token as given bf16, fp16, fp32"),
        ("q", "[batch, time_q, Head, d] row as given q, k, v alike"),
    ],
)
def test_what_a_tensor_is_held_in(name: str, held: str) -> None:
    lines = [" ".join(line.split()) for line in text("path").splitlines()]
    assert f"{name} {held}" in lines


def test_names_come_from_the_users_lines() -> None:
    @gn.variant
    def named(q: Q, k: K, slope: Param[Head]) -> Expr:
        near = gn.dot(q, k) * gn.rsqrt_dim(q)
        slow, fast = slope * gn.distance(), gn.exp(slope)
        return gn.softmax(near + slow + slow * fast, mask=gn.causal())

    names = [line.name for line in outline(named.node).lines]
    # one value for one name; the two of `slow, fast = ...` could be taken for each other
    assert names == ["score", "near", "product", "logit", "output"]


def test_equal_names_are_told_apart() -> None:
    @gn.variant
    def twice(q: Q, k: K, p: Token[KVHead, Dim]) -> Expr:
        (q1, q2), (k1, k2) = gn.split(q), gn.split(k)
        apart = gn.dot(q1, k1) + gn.dot(q2, k2) + gn.dot(q, p)
        score = apart * gn.tanh(gn.dot(q1, k2)) * gn.tanh(gn.dot(q2, k1))
        return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())

    names = [line.name for line in outline(twice.node).lines]
    assert len(set(names)) == len(names)
    assert {"apart", "score", "logit", "output"} <= {*names}


def test_a_long_formula_is_broken() -> None:
    for v in DECLARED:
        for line in show.text(v).split("formula    ")[1].split("\n\n")[0].splitlines():
            assert len(line.split("#")[0].rstrip()) <= 110, v.name


def test_numbers_are_shown_with_the_name() -> None:
    shown = show.text(gn.catalogue.tapa.bind(alpha=0.5))
    assert shown.startswith("tapa(q, k, v, alpha=0.5, theta=0.5)\n")
    assert "distance() ** 0.5" in shown

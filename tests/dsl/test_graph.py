"""The drawing of a variant: golden for two, and for all: whole, apart, left to right."""

import os
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import pytest
from conftest import Golden

import gnomon as gn
from gnomon.dsl.catalogue import ENTRIES
from gnomon.dsl.graph import COLOURS, svg
from gnomon.dsl.layout import place
from gnomon.dsl.nodes import Variant
from gnomon.dsl.outline import outline
from gnomon.dsl.show import svg as shown

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
DECLARED = [e.declaration.node for e in ENTRIES if e.declaration is not None]


@pytest.mark.parametrize("name", ["path_fox", "tapa"])
def test_drawing(name: str, golden: Golden) -> None:
    assert svg(gn.catalogue.find(name).node) == golden


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    group = root.find(f"{SVG}g")
    assert group is not None
    names = ("x", "y", "width", "height")
    return [
        tuple(float(r.attrib[n]) for n in names)  # type: ignore[misc]
        for r in group.findall(f"{SVG}rect")
    ]


@pytest.mark.parametrize("variant", DECLARED, ids=lambda v: v.name)
def test_every_variant_is_drawn(variant: Variant) -> None:
    root = ElementTree.fromstring(svg(variant))
    words = [t.text or "" for t in root.iter(f"{SVG}text")]
    for name in (variant.name, "v", *(x.name for x in variant.inputs)):
        assert name in words
    for line in outline(variant).lines:
        assert line.name in words
    placed = boxes(root)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert width < 4000
    assert height < 2000
    for (x, y, w, h), (x2, y2, w2, h2) in combinations(placed, 2):
        assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y
    for x, y, w, h in placed:
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height


def test_text_fits_into_its_box() -> None:
    """A character of the formula's font is 0.602 of its size wide."""
    root = ElementTree.fromstring(svg(gn.catalogue.fire.node))
    placed = boxes(root)
    group = root.find(f"{SVG}g")
    assert group is not None
    for words in group.findall(f"{SVG}text"):
        if "Mono" in words.attrib["font-family"]:
            left = float(words.attrib["x"])
            right = left + 0.602 * float(words.attrib["font-size"]) * len(words.text or "")
            y = float(words.attrib["y"])
            assert any(x < left and right < x + w and b < y < b + h for x, b, w, h in placed)


def test_an_edge_for_each_part_of_a_formula() -> None:
    drawn = svg(gn.catalogue.path_fox.node)
    # w, beta -> step; q, k, step -> score; log_f -> log_decay; both -> logit; logit, v -> output
    assert len(re.findall("<path ", drawn)) == 2 + 3 + 1 + 2 + 2


def test_the_legend_names_every_place() -> None:
    drawn = svg(gn.catalogue.nope.node)
    for _, _, words in COLOURS.values():
        assert f">{words}<" in drawn


def test_the_same_bytes_in_another_process() -> None:
    code = (
        "import sys, gnomon as gn; from gnomon.dsl.graph import svg; "
        "sys.stdout.write(svg(gn.catalogue.rerope.node))"
    )
    paths = {**os.environ, "PYTHONPATH": str(ROOT / ".pyroot"), "PYTHONHASHSEED": "3"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=paths, capture_output=True, text=True, check=True
    )
    assert run.stdout == svg(gn.catalogue.rerope.node) == shown(gn.catalogue.rerope.node)


def test_words_are_escaped() -> None:
    drawn = svg(gn.catalogue.self_extend.node)
    assert "distance() &lt;= 512" in drawn
    ElementTree.fromstring(drawn)


def test_layers_go_left_to_right_and_edges_around_boxes() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph([("a", "b"), ("b", "c"), ("a", "c"), ("d", "c")])
    placed = place(graph, dict.fromkeys(graph, (40.0, 20.0)))
    left = {n: x for n, (x, _) in placed.corners.items()}
    assert left["a"] < left["b"] == left["d"] < left["c"]
    passing = placed.edges["a", "c"]
    (bx, by), (dx, dy) = placed.corners["b"], placed.corners["d"]
    for x, y in passing[2:-2]:
        assert not (bx <= x <= bx + 40 and by < y < by + 20)
        assert not (dx <= x <= dx + 40 and dy < y < dy + 20)
    ends = [points[-1] for (_, end), points in placed.edges.items() if end == "c"]
    assert len(set(ends)) == 3

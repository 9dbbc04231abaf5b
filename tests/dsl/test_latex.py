"""LaTeX: golden for a few, balanced for all, and parsed by matplotlib's own TeX parser."""

import re
from fractions import Fraction

import pytest
from conftest import Golden
from matplotlib.mathtext import MathTextParser

import gnomon as gn
from gnomon.dsl.canonical import canonical
from gnomon.dsl.catalogue import ENTRIES
from gnomon.dsl.latex import latex, latex_lines
from gnomon.dsl.latex_symbols import number, symbol, width
from gnomon.dsl.nodes import Variant, Width
from gnomon.dsl.show import latex as shown

DECLARED = [e.declaration.node for e in ENTRIES if e.declaration is not None]


@pytest.mark.parametrize("name", ["fox", "path", "tapa", "kda", "learned_sink", "m_rope", "cope"])
def test_display(name: str, golden: Golden) -> None:
    assert latex(gn.catalogue.find(name).node) == golden


def test_fox_is_one_line() -> None:
    (line,) = latex_lines(gn.catalogue.fox.node)
    assert line == (
        r"o_i = \sum_j \mathrm{softmax}_{j \leq i}\left(\frac{q_{i}^\top k_{j}}{\sqrt{d}}"
        r" + \sum_{s=j+1}^{i} \log f_{s}\right)\, v_j"
    )


def test_path_is_an_ordered_product() -> None:
    assert (
        r"q_{i}^\top \prod_{s=i}^{j+1} \left(I - \beta_{s}\, w_{s} w_{s}^\top\right)\; k_{j}"
    ) in latex(gn.catalogue.path.node)


def test_keys_of_a_transport_have_its_index() -> None:
    assert r"I - \beta_{t}\, k_{t} k_{t}^\top" in latex(gn.catalogue.kda.node)


def test_a_scan_runs_over_its_own_key() -> None:
    written = latex(gn.catalogue.cope.node)
    assert r"\sum_{l \geq j} \sigma\left(\mathrm{score}_{il}\right)" in written


def test_a_sink_stands_below_the_line() -> None:
    assert r"{e^{\mathrm{sink}} + \sum_{l \leq i} e^{\mathrm{logit}_{il}}}" in latex(
        gn.catalogue.learned_sink.node
    )


def balanced(text: str) -> bool:
    """Whether braces, \\left and \\right, and environments close what they open."""
    stack = []
    for word in re.findall(r"\\left|\\right|\\begin\{\w+\}|\\end\{\w+\}|\\?[{}]", text):
        if word in ("{", "\\left") or word.startswith("\\begin"):
            stack.append(word)
        elif word in ("}", "\\right") or word.startswith("\\end"):
            opened = stack.pop() if stack else ""
            wanted = {"}": "{", "\\right": "\\left"}.get(word, word.replace("end", "begin"))
            if opened != wanted:
                return False
    return not stack


def test_balanced_sees_what_is_not() -> None:
    assert balanced(r"\left( a_{b} \right)")
    assert not balanced(r"\left( a_{b \right)}")
    assert not balanced(r"\begin{cases} a")


@pytest.mark.parametrize("variant", DECLARED, ids=lambda v: v.name)
def test_every_variant_is_well_formed(variant: Variant) -> None:
    for v in (variant, canonical(variant)):
        written = latex(v)
        assert balanced(written)
        assert written.startswith("\\begin{aligned}\n  o_i &= ")


@pytest.mark.parametrize(
    "name",
    ["fox", "path", "tapa", "rope_axial", "wall", "learned_sink", "differential", "stick_breaking"],
)
def test_mathtext_reads_it(name: str) -> None:
    """Matplotlib's parser knows no environments; all else it reads as TeX does."""
    for line in latex_lines(gn.catalogue.find(name).node):
        MathTextParser("path").parse(f"${line}$")


def test_show_gives_the_same() -> None:
    assert shown(gn.catalogue.tapa.node) == latex(gn.catalogue.tapa.node)


@pytest.mark.parametrize(
    ("name", "index", "written"),
    [
        ("q", "i", "q_{i}"),
        ("log_f", "s", r"\log f_{s}"),
        ("beta", "", r"\beta"),
        ("w1", "", "w_{1}"),
        ("score_first", "ij", r"\mathrm{score}_{\mathrm{first}, ij}"),
        ("q_r", "i", "q_{r, i}"),
    ],
)
def test_symbols(name: str, index: str, written: str) -> None:
    assert symbol(name, index) == written


def test_numbers_and_widths() -> None:
    assert [number(x) for x in (1e-6, 2.5e-7, 10000.0, -0.5)] == [
        "10^{-6}",
        r"2.5 \cdot 10^{-7}",
        "10000",
        "-0.5",
    ]
    d, rope = Width.of("d"), Width.of("Rope")
    assert [width(w) for w in (d, d.scaled(Fraction(3, 4)), rope + d, Width())] == [
        "d",
        "3d/4",
        r"d_{\mathrm{Rope}} + d",
        "0",
    ]

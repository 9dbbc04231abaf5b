"""Two spellings, one graph: each rule as before -> after, and the meaning kept in float64."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import assert_close, small_tensors

import gnomon as gn
from gnomon import Dim, Head, KVHead, Param, Plane, Query, Token
from gnomon.dsl.build import as_expr
from gnomon.dsl.canonical import canonical, looks_back, share
from gnomon.dsl.catalogue import ENTRIES
from gnomon.dsl.nodes import Apply, At, Builtin, Decay, Dot, Expr, Rotation, Variant, walk
from gnomon.dsl.reference import reference
from gnomon.dsl.show import digest

ROOT = Path(__file__).parents[2]
Q = Query[Head, Dim]
K = Token[KVHead, Dim]
N = TypeVar("N", bound=Expr)
Bias = Callable[[Expr, Expr, Expr], Expr]
Score = Callable[[Expr, Expr, Expr, Expr], Expr]
Tree = str | tuple[Any, ...]
DECLARED = [e.declaration.node for e in ENTRIES if e.declaration is not None]


def plain(bias: Bias, mask: gn.Mask | None = None) -> Variant:
    """The variant that weights v by q . k + bias(gate, beta, slope)."""

    def f(q: Q, k: K, gate: Token[Head], beta: Token[KVHead], slope: Param[Head]) -> Expr:
        used = 0.0 * gn.at_key(gate) * gn.at_key(beta) * slope  # an input must be used
        value = bias(gate, beta, slope) + gn.dot(q, k) + gn.exp(used)
        return gn.weighted_sum(value, mask=gn.causal() if mask is None else mask)

    return gn.variant(f).node


def scored(score: Score) -> Variant:
    """The variant with softmax(score(q, k, angle, turn)), angles of tokens and of planes."""

    def f(q: Q, k: K, step: Token[KVHead, Plane], rate: Param[KVHead, Plane]) -> Expr:
        used = gn.channel_sum(gn.at_key(step) * rate)
        return gn.softmax(score(q, k, step, rate) + gn.exp(0.0 * used), mask=gn.causal())

    return gn.variant(f).node


def nodes(variant: Variant, kind: type[N]) -> list[N]:
    return [n for n in walk(canonical(variant)) if isinstance(n, kind)]


SAME: dict[str, tuple[Bias, Bias]] = {
    "difference of prefix sums": (
        lambda g, b, m: gn.at_query(gn.prefix_sum(g)) - gn.at_key(gn.prefix_sum(g)),
        lambda g, b, m: gn.decay(g),
    ),
    "difference of prefix sums, negative and apart": (
        lambda g, b, m: gn.at_key(gn.prefix_sum(g)) - m - gn.at_query(gn.prefix_sum(g)),
        lambda g, b, m: -gn.decay(g) - m,
    ),
    "decay of a number": (lambda g, b, m: gn.decay(-0.5), lambda g, b, m: -0.5 * gn.distance()),
    "decay of a parameter": (
        lambda g, b, m: gn.decay(gn.log(m)),
        lambda g, b, m: gn.log(m) * gn.distance(),
    ),
    "distance": (
        lambda g, b, m: m * (gn.at_key(gn.position()) - gn.at_query(gn.position())),
        lambda g, b, m: -m * gn.distance(),
    ),
    "turns": (
        lambda g, b, m: gn.cos(gn.distance() * (2 * math.pi) * m),
        lambda g, b, m: gn.cos_turns(m * gn.distance()),
    ),
    "numbers": (
        lambda g, b, m: 2.0 * (m * 3.0) + 1 + gn.exp(m + 2.0 - 2.0),
        lambda g, b, m: 6 * m + gn.exp(m) + 1.0,
    ),
    "quotients of numbers": (lambda g, b, m: m / 4 / 2, lambda g, b, m: 0.125 * m),
    "neutral elements": (
        lambda g, b, m: (m * 1 + 0) ** 1 / 1.0 - 0.0,
        lambda g, b, m: m + 0.0 * 0.0,
    ),
    "double negation": (lambda g, b, m: 0 - (-m) - (-(m * m)), lambda g, b, m: m + m * m),
    "negative products": (
        lambda g, b, m: 1.0 + (-2.0) * m + (-m) * (-m),
        lambda g, b, m: m * m - 2 * m + 1.0,
    ),
    "roots of shapes": (
        lambda g, b, m: m / gn.sqrt(gn.dim(Dim)),
        lambda g, b, m: gn.rsqrt_dim(Dim) * m,
    ),
    "powers of shapes": (
        lambda g, b, m: m * gn.dim(Dim) ** -1 + m / gn.dim(Dim) ** 2,
        lambda g, b, m: m * gn.dim(Dim) ** -2.0 + m / gn.dim(Dim),
    ),
    "signs of equal terms": (
        lambda g, b, m: -gn.decay(g) + (gn.decay(g) + gn.decay(g)),
        lambda g, b, m: gn.decay(g) + gn.decay(g) - gn.decay(g),
    ),
    "order": (
        lambda g, b, m: m * (gn.at_key(b) * gn.at_query(g)) + (gn.at_key(g) + m),
        lambda g, b, m: m + gn.at_key(g) + gn.at_query(g) * (m * gn.at_key(b)),
    ),
    "one reading": (
        lambda g, b, m: gn.exp(gn.at_query(g)) * m + gn.at_query(b),
        lambda g, b, m: gn.at_query(b + m * gn.exp(g)),
    ),
    "larger": (
        lambda g, b, m: gn.where(gn.distance() > m, gn.maximum(1.0, m), gn.minimum(2, m)),
        lambda g, b, m: gn.where(m < gn.distance(), gn.maximum(m, 1.0), gn.minimum(m, 2)),
    ),
    "whole numbers": (
        lambda g, b, m: 2.0 ** (m**2.0) * 10.0,
        lambda g, b, m: 2 ** (m**2) * 10,
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_two_spellings_have_one_graph(name: str) -> None:
    before, after = (plain(f) for f in SAME[name])
    assert canonical(before).output == canonical(after).output
    assert digest(before) == digest(after)


DOTS: dict[str, tuple[Score, Score]] = {
    "rotation by a token": (
        lambda q, k, s, r: gn.dot(q, k, through=gn.rotation(s)),
        lambda q, k, s, r: gn.dot(gn.rotate(q, gn.prefix_sum(s)), gn.rotate(k, gn.prefix_sum(s))),
    ),
    "rotation by a constant, in pairs": (
        lambda q, k, s, r: gn.dot(q, k, through=gn.rotation(r, "pairs")),
        lambda q, k, s, r: gn.dot(
            gn.rotate(q, gn.position() * r, "pairs"), gn.rotate(k, r * gn.position(), "pairs")
        ),
    ),
    "identity": (
        lambda q, k, s, r: gn.dot(q @ gn.identity(), k, through=gn.identity()),
        lambda q, k, s, r: gn.dot(q, k),
    ),
    "slices that cut nothing": (
        lambda q, k, s, r: gn.dot(gn.concat(*gn.split(q)), gn.concat(gn.concat(k))),
        lambda q, k, s, r: gn.dot(q, k),
    ),
    "a slice of a slice": (
        lambda q, k, s, r: gn.dot(gn.split(gn.split(q)[1])[0], gn.split(gn.split(k)[1])[0]),
        lambda q, k, s, r: gn.dot(third_quarter(q), third_quarter(k)),
    ),
}


def third_quarter(x: Expr) -> Expr:
    return gn.split(gn.split(x, Fraction(3, 4))[0], Fraction(2, 3))[1]


@pytest.mark.parametrize("name", DOTS)
def test_two_spellings_of_a_dot(name: str) -> None:
    before, after = (scored(f) for f in DOTS[name])
    assert canonical(before).output == canonical(after).output


def test_a_constant_skew_generator_becomes_a_map() -> None:
    c = canonical(gn.catalogue.grape_m.node)
    (dot,) = (n for n in walk(c) if isinstance(n, Dot))
    assert dot.through is None

    @gn.variant
    def both(
        q: Q, k: K, a: Param[KVHead, Dim], b: Param[KVHead, Dim], omega: Param[KVHead]
    ) -> Expr:
        turn = gn.expm((-omega * gn.position()) * (gn.outer(a, b) - gn.outer(b, a)))
        return gn.softmax(gn.dot(q @ turn, k @ turn) / gn.sqrt(gn.dim(q)), mask=gn.causal())

    assert c.output == canonical(both.node).output


@pytest.mark.parametrize("skew", [0, 1])
def test_a_generator_that_grows_stays_a_transport(skew: int) -> None:
    @gn.variant
    def growing(q: Q, k: K, p: Param[KVHead, Dim, Dim]) -> Expr:
        return gn.softmax(
            gn.dot(q, k, through=gn.expm((p - p.T) + p if skew else p)), mask=gn.causal()
        )

    assert canonical(growing.node).output == share(growing.node).output


def test_masks_are_sorted_and_said_once() -> None:
    window, first = gn.window(8), gn.first_keys(2)
    a = plain(lambda g, b, m: m, (first | window) & gn.causal() & gn.everything() & gn.causal())
    b = plain(lambda g, b, m: m, gn.causal() & (window | first))
    assert canonical(a).output == canonical(b).output
    everything = plain(lambda g, b, m: m, window | gn.everything())
    assert (
        canonical(everything).output
        == canonical(plain(SAME["neutral elements"][1], gn.everything())).output
    )


def test_a_decay_needs_a_mask_that_looks_back() -> None:
    spelled = SAME["difference of prefix sums"][0]
    assert len(nodes(plain(spelled), Decay)) == 1
    assert not nodes(plain(spelled, gn.everything()), Decay)
    assert not nodes(plain(spelled, gn.causal() | gn.first_keys(3)), Decay)


def test_looks_back() -> None:
    back = [gn.causal(), gn.causal() & gn.window(3), gn.causal() | gn.causal(strict=True)]
    ahead = [gn.window(3), gn.causal() | gn.first_keys(1), gn.everything()]
    said = [looks_back(plain(lambda g, b, m: m, mask)) for mask in back + ahead]
    assert said == [True] * 3 + [False] * 3


def test_an_exclusive_difference_is_no_decay() -> None:
    def before(g: Expr, b: Expr, m: Expr) -> Expr:
        p = gn.prefix_sum(g, inclusive=False)
        return gn.at_query(p) - gn.at_key(p)

    assert not nodes(plain(before), Decay)


def test_a_bound_keeps_its_decay() -> None:
    @gn.variant
    def pruned(q: Q, k: K) -> Expr:
        bias = gn.decay(-0.5)
        return gn.softmax(gn.dot(q, k) + bias, mask=gn.causal() & gn.negligible(bias))

    assert len(nodes(pruned.node, Decay)) == 1


def test_another_angle_is_not_in_turns() -> None:
    c = canonical(plain(lambda g, b, m: gn.cos(6.28 * m * gn.distance())))
    assert {n.fn for n in walk(c) if isinstance(n, Apply)} >= {"cos"}


def test_sums_stay_apart_by_place() -> None:
    """Rows add up before they meet the pair; scalars multiply before they meet a vector."""
    c = canonical(plain(lambda g, b, m: gn.at_query(g) + gn.decay(g) + gn.at_query(b) + m))
    reads = [n for n in walk(c) if isinstance(n, At) and n.place == "row"]
    assert [n.x for n in reads if not isinstance(n.x, Builtin)] != []
    assert len(reads) == 1


def test_an_integer_stays_one() -> None:
    """1.0 * i is real and i is not: what looks up a table needs to know."""
    variant = plain(lambda g, b, m: gn.where(gn.distance() < 3, 1.0 * gn.distance(), 1))
    (choice,) = (n for n in nodes(variant, Apply) if n.fn == "where")
    assert gn.dsl.kinds.kind(choice).element == "real"


def test_equal_values_are_one_object() -> None:
    v = share(gn.catalogue.rope.node)
    every = list(walk(v.output))
    assert len(every) == len({id(n) for n in every}) == len(set(every))
    assert len([n for n in every if isinstance(n, Rotation)]) == 2
    assert share(v) == v == gn.catalogue.rope.node


@pytest.mark.parametrize("variant", DECLARED, ids=lambda v: v.name)
def test_the_catalogue_keeps_its_values(variant: Variant) -> None:
    c = canonical(variant)
    assert canonical(c) == c
    assert c.inputs == variant.inputs
    tensors = small_tensors(variant, time=9, queries=7, heads=2, kv_heads=1, dtype=torch.float64)
    expected, actual = reference(variant, **tensors), reference(c, **tensors)
    assert_close(variant.name, expected, actual, 1e-13)


@pytest.mark.parametrize(
    "name", ["path_fox", "fire", "carope", "grape_m", "retention", "tapa_linear", "cable"]
)
def test_gradients_are_kept(name: str) -> None:
    variant = gn.catalogue.find(name).node
    grads: list[dict[str, Any]] = []
    for v in (variant, canonical(variant)):
        tensors = small_tensors(v, time=7, dtype=torch.float64, requires_grad=True)
        reference(v, **tensors).square().sum().backward()
        grads.append({n: x.grad for n, x in tensors.items() if isinstance(x, torch.Tensor)})
    for n, expected in grads[0].items():
        # a bias of the row has gradient 0: the floor says what rounding may leave of it
        assert_close(n, expected, grads[1][n], 1e-11, floor=1e-3)


def test_different_models_have_different_digests() -> None:
    digests: dict[str, list[str]] = {}
    for v in DECLARED:
        digests.setdefault(digest(v), []).append(v.name)
    assert [names for names in digests.values() if len(names) > 1] == []
    assert digest(gn.catalogue.tapa.bind(alpha=0.5)) != digest(gn.catalogue.tapa.node)


def test_a_digest_is_the_same_in_another_process() -> None:
    code = (
        "import gnomon as gn; from gnomon.dsl.show import digest; "
        "print(*(digest(gn.catalogue.find(n).node) for n in ('fire', 'path_fox', 'streaming')))"
    )
    given = {**os.environ, "PYTHONPATH": str(ROOT / ".pyroot")}
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**given, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]
    here = [digest(gn.catalogue.find(n).node) for n in ("fire", "path_fox", "streaming")]
    assert runs[0] == runs[1] == here


def test_names_do_not_enter_the_digest() -> None:
    fox = gn.catalogue.fox.node
    assert digest(replace(fox, name="other", formula="", hyperparameters=(("x", 1),))) == digest(
        fox
    )


# ---- random formulas

LEAVES: dict[str, Bias] = {
    "distance": lambda g, b, m: gn.distance(),
    "gate i": lambda g, b, m: gn.at_query(g),
    "gate j": lambda g, b, m: gn.at_key(g),
    "beta j": lambda g, b, m: gn.at_key(b),
    "sum i": lambda g, b, m: gn.at_query(gn.prefix_sum(g)),
    "sum j": lambda g, b, m: gn.at_key(gn.prefix_sum(g)),
    "slope": lambda g, b, m: m,
    "decay": lambda g, b, m: gn.decay(0.25),
    "two": lambda g, b, m: as_expr(2.0),
    "minus one": lambda g, b, m: as_expr(-1),
    "zero": lambda g, b, m: as_expr(0.0),
    "half": lambda g, b, m: as_expr(0.5),
}
BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "maximum": lambda x, y: gn.maximum(x, y),
}
UNARY: dict[str, Callable[[Expr], Expr]] = {
    "neg": lambda x: -x,
    "tanh": lambda x: gn.tanh(x),
    "over": lambda x: x / (gn.exp(gn.tanh(x)) * 4),
    "root": lambda x: x / gn.sqrt(gn.dim(Dim)),
    "square": lambda x: gn.tanh(x) ** 2.0,
}
formulas: st.SearchStrategy[Tree] = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(BINARY)), inner, inner),
        st.tuples(st.sampled_from(sorted(UNARY)), inner),
    ),
    max_leaves=9,
)


def spelled(tree: Tree, turned: bool) -> Bias:
    """The formula of a tree; `turned` swaps both sides of what commutes."""

    def build(g: Expr, b: Expr, m: Expr) -> Expr:
        def visit(t: Tree) -> Expr:
            if isinstance(t, str):
                return LEAVES[t](g, b, m)
            fn, *parts = t
            values = [visit(p) for p in parts]
            if len(values) == 1:
                return UNARY[fn](values[0])
            if turned and fn != "-":
                values.reverse()
            return BINARY[fn](*values)

        return gn.tanh(visit(tree))

    return build


@given(formulas)
def test_random_formulas_keep_their_meaning(tree: Tree) -> None:
    variant, turned = plain(spelled(tree, False)), plain(spelled(tree, True))
    c = canonical(variant)
    assert canonical(c) == c
    assert digest(turned) == digest(variant)
    tensors = small_tensors(variant, time=5, heads=2, kv_heads=1, dtype=torch.float64)
    expected = reference(variant, **tensors)
    assert_close("canonical", expected, reference(c, **tensors), 1e-10)

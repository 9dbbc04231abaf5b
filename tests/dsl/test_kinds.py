"""Place, heads, axes and element of what the words make."""

from fractions import Fraction

import pytest

import gnomon as gn
from gnomon.dsl import catalogue
from gnomon.dsl.axes import read_annotation
from gnomon.dsl.forms import commutes, form, turns_back
from gnomon.dsl.kinds import Kind, describe, join_heads, kind
from gnomon.dsl.nodes import Apply, At, Dot, Expr, Heads, Input, Place, Variant, Where, Width, walk

D, HALF, D_V = Width.of("d"), Width.of("d", Fraction(1, 2)), Width.of("d_v")
Q = Input("q", "row", "Head", (D,), "real")
K = Input("k", "column", "KVHead", (D,), "real")


class Hidden(gn.Axis):
    """Hidden units."""


class Block(gn.Axis):
    """Blocks."""


class Sub(gn.Axis):
    """Rows of a block."""


def declared(note: object, name: str = "x") -> Input:
    where = Where("here.py", 1, "", "f")
    return read_annotation(name, note, where).input(name, where)


W, BETA = declared(gn.Token[gn.KVHead, gn.Dim], "w"), declared(gn.Token[gn.KVHead], "beta")
LOG_F, SLOPE = declared(gn.Token[gn.Head], "log_f"), declared(gn.Param[gn.Head], "slope")
TABLE = declared(gn.Param[gn.Head, gn.Entry], "table")
OUT = gn.softmax(gn.dot(Q, K), mask=gn.causal())


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (gn.Token[gn.KVHead, gn.Dim], Kind("token", "KVHead", (D,))),
        (gn.Token[gn.Head], Kind("token", "Head")),
        (gn.Token[int], Kind("token", element="int")),
        (gn.Token, Kind("token")),
        (gn.Token[gn.KVHead, gn.Plane], Kind("token", "KVHead", (HALF,))),
        (gn.Token[gn.KVHead, gn.Repeat, gn.Dim], Kind("token", "KVHead", (Width.of("Repeat"), D))),
        (gn.Query[gn.Head, gn.ValueDim], Kind("row", "Head", (D_V,))),
        (gn.Query[gn.KVHead, gn.Entry, int], Kind("row", "KVHead", (Width.of("x.0"),), "int")),
        (gn.Param, Kind("constant")),
        (gn.Param[gn.Head], Kind("constant", "Head")),
        (
            gn.Param[gn.Head, gn.Entry, gn.Entry],
            Kind("constant", "Head", (Width.of("x.0"), Width.of("x.1"))),
        ),
        (gn.Param[Hidden], Kind("constant", axes=(Width.of("Hidden"),))),
    ],
)
def test_annotation_says_the_kind(note: object, expected: Kind) -> None:
    assert kind(declared(note)) == expected


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (gn.Token[gn.Dim, gn.Head], "head axis that is not the first"),
        (gn.Token[gn.Head, gn.KVHead], "head axis that is not the first"),
        (gn.Token[int, gn.Head], "something behind int"),
        (gn.Token["Head"], "no axis word"),  # type: ignore[name-defined]
        (gn.Param[gn.Dim, float], "no axis word"),
        (gn.Param[gn.Dim, gn.Dim, gn.Dim, gn.Dim], "4 axes"),
    ],
)
def test_annotation_that_says_no_kind_is_refused(note: object, words: str) -> None:
    with pytest.raises(gn.VariantError, match=words):
        declared(note)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (gn.position(), Kind("token", element="int")),
        (gn.distance("y"), Kind("pair", element="int")),
        (gn.length(), Kind("constant", element="int")),
        (gn.head(), Kind("constant", "Head", element="int")),
        (gn.dim(Q), Kind("constant", element="int")),
        (gn.rsqrt_dim(gn.Dim), Kind("constant")),
        (gn.channel(Q), Kind("constant", axes=(D,), element="int")),
        (gn.plane(Q), Kind("constant", axes=(HALF,), element="int")),
        (gn.frequencies(Hidden), Kind("constant", axes=(Width.of("Hidden", Fraction(1, 2)),))),
        (gn.visible_count(gn.causal()), Kind("row", element="int")),
        (gn.concat(Q, W), Kind("row", "Head", (D + D,))),
        (gn.split(Q, 0.25)[1], Kind("row", "Head", (D.scaled(Fraction(3, 4)),))),
        (gn.rotate(K, gn.position() * gn.frequencies(K)), Kind("column", "KVHead", (D,))),
        (gn.channel_sum(Q), Kind("row", "Head")),
        (gn.rms_norm(K), Kind("column", "KVHead", (D,))),
        (gn.lookup(TABLE, gn.position()), Kind("token", "Head")),
        (gn.lookup(TABLE, gn.distance()), Kind("pair", "Head")),
        (gn.interpolate(TABLE, gn.dot(Q, K)), Kind("pair", "Head")),
        (gn.at_query(LOG_F), Kind("row", "Head")),
        (gn.at_key(gn.position()), Kind("column", element="int")),
        (gn.at_key(SLOPE), Kind("constant", "Head")),
        (gn.prefix_sum(BETA), Kind("token", "KVHead")),
        (gn.prefix_sum(K), Kind("token", "KVHead", (D,))),
        (gn.decay(LOG_F), Kind("pair", "Head")),
        (gn.identity(), Kind("constant", axes=(D, D))),
        (gn.householder(K, BETA), Kind("token", "KVHead", (D, D))),
        (gn.householder(K, BETA, normalize=True), Kind("token", "KVHead", (D, D))),
        (gn.diagonal(log=W), Kind("token", "KVHead", (D, D))),
        (gn.dot(Q, K, through=gn.householder(W, LOG_F)), Kind("pair", "Head")),
        (gn.dot(W, W), Kind("pair", "KVHead")),
        (gn.score_scan(gn.dot(Q, K), inclusive=True), Kind("pair", "Head")),
        (OUT, Kind("row", "Head", (D_V,), is_output=True)),
        (OUT * gn.sigmoid(LOG_F), Kind("row", "Head", (D_V,), is_output=True)),
        (gn.rms_norm(OUT), Kind("row", "Head", (D_V,), is_output=True)),
        (gn.position() < 4, Kind("token", element="bool")),
        (gn.position() // 2, Kind("token", element="int")),
        (gn.position() / 2, Kind("token")),
        (gn.position() ** 2, Kind("token")),
        (gn.floor(BETA), Kind("token", "KVHead", element="int")),
        (gn.where(gn.position() < 4, 1, 2), Kind("token", element="int")),
        (gn.where(gn.position() < 4, 1, 2.0), Kind("token")),
        (gn.minimum(gn.position(), 3), Kind("token", element="int")),
        (K * SLOPE, Kind("column", "Head", (D,))),
        (BETA + gn.channel_sum(K), Kind("column", "KVHead")),
        (SLOPE * gn.frequencies(Q), Kind("constant", "Head", (HALF,))),
    ],
)
def test_words_give_their_kinds(value: Expr, expected: Kind) -> None:
    assert kind(value) == expected


def test_kind_is_computed_once() -> None:
    value = Q * 2
    assert kind(value) is kind(value)


@pytest.mark.parametrize(
    ("heads", "finest"),
    [((None, None), None), ((None, "KVHead"), "KVHead"), (("Head", "KVHead", None), "Head")],
)
def test_heads_join_to_the_finer_axis(heads: tuple[Heads, ...], finest: Heads) -> None:
    assert join_heads(Kind("row", h) for h in heads) == finest


@pytest.mark.parametrize(
    ("other", "place"), [(Q, "row"), (gn.channel_sum(K), "column")], ids=["query", "key"]
)
def test_token_beside_a_placed_value_is_read_there(other: Expr, place: Place) -> None:
    value = BETA + (gn.channel_sum(other) if kind(other).axes else other)
    assert isinstance(value, Apply)
    assert value.args[0] == At(BETA, place)


P = declared(gn.Param[gn.KVHead, Block, Sub, Sub], "p")
TOKEN_BLOCKS = declared(gn.Token[gn.KVHead, Block, Sub, Sub], "p")
MATRIX = declared(gn.Param[gn.Dim, gn.Dim], "m")
CONSTANT = declared(gn.Param[gn.KVHead, gn.Dim], "a")
OTHER = declared(gn.Param[gn.KVHead, gn.Dim], "b")
STEP = declared(gn.Token[gn.KVHead, gn.Plane], "step")


@pytest.mark.parametrize(
    ("matrix", "expected", "is_map", "has_inverse"),
    [
        (gn.identity(), "diagonal", True, False),
        (gn.diagonal(log=W), "diagonal", True, False),
        (gn.outer(W, K), "outer", False, False),
        (gn.householder(W, 2.0), "transition", False, False),
        (gn.identity() - BETA * gn.outer(W, K), "transition", False, False),
        (gn.householder(W, 2.0) @ gn.diagonal(log=W), "transition", False, False),
        (gn.householder(W, 2.0).T, "transition", False, False),
        (gn.rotation(STEP), "rotation", True, True),
        (gn.rotation(STEP) @ gn.rotation(STEP), "rotation", True, True),
        (gn.rotation(STEP) @ gn.diagonal(log=W), "transition", False, False),
        (gn.outer(W, K) @ gn.diagonal(log=W), "outer", False, False),
        (MATRIX - MATRIX.T, "dense", True, False),
        (gn.expm(MATRIX - MATRIX.T), "dense", True, True),
        (gn.expm(P - P.T), "blocks", True, True),
        (gn.expm(TOKEN_BLOCKS - TOKEN_BLOCKS.T), "blocks", False, False),
        (gn.expm(gn.outer(CONSTANT, OTHER) - gn.outer(OTHER, CONSTANT)), "dense", True, True),
        (gn.householder(CONSTANT, 0.5), "transition", True, False),
    ],
)
def test_form_of_a_matrix(matrix: Expr, expected: str, is_map: bool, has_inverse: bool) -> None:
    assert (form(matrix), commutes(matrix), turns_back(matrix)) == (expected, is_map, has_inverse)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Q, "a row vector of width d"),
        (W, "a token vector of width d"),
        (SLOPE, "a parameter scalar"),
        (TABLE, "a parameter vector of width Entry(table)"),
        (MATRIX, "a parameter matrix [d x d]"),
        (declared(gn.Token[gn.Repeat, gn.Dim]), "a token list of vectors [Repeat x d]"),
        (gn.split(Q)[0], "a row vector of width 1/2 d"),
        (gn.distance(), "a pair scalar of integers"),
        (gn.distance() < 3, "a pair scalar of booleans"),
        (OUT, "an attention output"),
        (2.5, "2.5"),
        (gn.exp(0.0).children()[0], "the number 0.0"),
        (gn.causal(), "a mask"),
        (None, "a NoneType"),
    ],
)
def test_values_are_described_in_words(value: object, text: str) -> None:
    assert describe(value) == text


def every_variant() -> list[Variant]:
    return [entry.declaration.node for entry in catalogue.ENTRIES if entry.declaration is not None]


@pytest.mark.parametrize("variant", every_variant(), ids=lambda v: v.name)
def test_no_token_is_left_unread_in_the_catalogue(variant: Variant) -> None:
    for node in walk(variant.output):
        if isinstance(node, Dot):
            assert kind(node.a).place in ("row", "constant")
            assert kind(node.b).place in ("column", "constant")
        elif isinstance(node, Apply) and kind(node).place in ("pair", "row"):
            assert all(kind(x).place != "token" for x in node.args)

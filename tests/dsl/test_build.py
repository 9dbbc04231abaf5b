"""Which nodes the words make, and what they say to an argument that does not fit."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

import gnomon as gn
from gnomon.dsl.axes import read_annotation
from gnomon.dsl.nodes import (
    Apply,
    At,
    Builtin,
    Concat,
    Constant,
    Contract,
    Diagonal,
    Dot,
    Expr,
    Input,
    Lookup,
    Mask,
    Outer,
    PrefixSum,
    Rotation,
    Slice,
    Sum,
    Where,
    Width,
)

D = Width.of("d")
Q = Input("q", "row", "Head", (D,), "real")
K = Input("k", "column", "KVHead", (D,), "real")


class Model(gn.Axis):
    """The residual stream."""


def declared(name: str, note: object) -> Input:
    where = Where("here.py", 1, "", "f")
    return read_annotation(name, note, where).input(name, where)


W, U = declared("w", gn.Token[gn.KVHead, gn.Dim]), declared("u", gn.Token[gn.KVHead, gn.Dim])
BETA, STEP = declared("beta", gn.Token[gn.KVHead]), declared("s", gn.Token[gn.KVHead, gn.Plane])
MANY = declared("many", gn.Token[gn.KVHead, gn.Repeat, gn.Dim])
SLOPE, TABLE = declared("slope", gn.Param[gn.Head]), declared("t", gn.Param[gn.Head, gn.Entry])
IDS, POSITION = declared("ids", gn.Token[int]), Builtin("position")
DISTANCE = Apply("-", (At(POSITION, "row"), At(POSITION, "column")))
EYE = Diagonal(Constant(0.0), D)
ONE = Constant(1.0)
OUT = gn.softmax(gn.dot(Q, K), mask=gn.causal())
SQUARE = Sum(Apply("*", (W, W)))


@pytest.mark.parametrize(
    ("value", "node"),
    [
        (gn.distance(), DISTANCE),
        (gn.position("y"), Builtin("position", "y")),
        (gn.rsqrt_dim(Q), Apply("**", (Builtin("dim", D), Constant(-0.5)))),
        (
            gn.frequencies(Q, 100.0),
            Apply(
                "**",
                (
                    Constant(100.0),
                    Apply(
                        "/",
                        (Apply("*", (Constant(-2), Builtin("plane", D))), Builtin("dim", D)),
                    ),
                ),
            ),
        ),
        (gn.dim(Model), Builtin("dim", Width.of("Model"))),
        (
            gn.rotate(Q, gn.position() * gn.frequencies(Q), "pairs"),
            Contract(Q, Rotation(At(gn.position() * gn.frequencies(Q), "row"), "pairs")),
        ),
        (Q @ gn.rotation(STEP), Contract(Q, Rotation(At(STEP, "row"), "half"))),
        (K @ gn.householder(W, BETA), Contract(K, At(gn.householder(W, BETA), "column"))),
        (gn.concat(Q, W), Concat((Q, At(W, "row")))),
        (gn.channel_sum(K), Sum(K)),
        (gn.lookup(TABLE, gn.distance()), Lookup(TABLE, (DISTANCE,))),
        (gn.at_query(BETA), At(BETA, "row")),
        (gn.at_query(SLOPE), SLOPE),
        (gn.prefix_sum(BETA, inclusive=False), PrefixSum(BETA, False)),
        (gn.identity(), EYE),
        (gn.identity(gn.split(Q)[0]), Diagonal(Constant(0.0), D.scaled(Fraction(1, 2)))),
        (gn.diagonal(log=W), Diagonal(W, D)),
        (gn.outer(W, U), Outer(W, U, ONE)),
        (2 * gn.outer(W, U), Outer(W, U, Constant(2))),
        (BETA * (2 * gn.outer(W, U)), Outer(W, U, Apply("*", (BETA, Constant(2))))),
        (-gn.outer(W, U), Outer(W, U, Constant(-1.0))),
        (gn.householder(W, BETA), Apply("-", (EYE, Outer(W, W, BETA)))),
        (gn.identity() - BETA * gn.outer(W, W), gn.householder(W, BETA)),
        (
            gn.householder(W, 2.0, normalize=True),
            gn.householder(W, 2.0 / gn.maximum(SQUARE, 1e-30)),
        ),
        (gn.dot(Q, K), Dot(Q, K, None)),
        (gn.dot(W, U), Dot(At(W, "row"), At(U, "column"), None)),
        (gn.dot(Q, K, through=EYE), Dot(Q, K, EYE)),
        (gn.l2_norm(K), K * gn.rsqrt(gn.maximum(gn.channel_sum(K * K), 1e-30))),
        (gn.rms_norm(K), K * gn.rsqrt(gn.channel_sum(K * K) / gn.dim(K) + 1e-6) * 1.0),
        (
            gn.rms_norm(OUT),
            OUT * Apply("rsqrt", (Sum(OUT * OUT) / gn.dim(gn.ValueDim) + 1e-6,)) * 1.0,
        ),
        (
            gn.interpolate(TABLE, SLOPE),
            gn.lookup(TABLE, gn.floor(SLOPE)) * (1 - (SLOPE - gn.floor(SLOPE)))
            + gn.lookup(TABLE, gn.floor(SLOPE) + 1) * (SLOPE - gn.floor(SLOPE)),
        ),
        (abs(SLOPE), Apply("abs", (SLOPE,))),
        (1 - SLOPE, Apply("-", (Constant(1), SLOPE))),
        (2.0**SLOPE, Apply("**", (Constant(2.0), SLOPE))),
        (1 // SLOPE, Apply("//", (Constant(1), SLOPE))),
        (np.float32(0.5) * SLOPE, Apply("*", (Constant(0.5), SLOPE))),  # type: ignore[operator]
        (SLOPE + np.int64(3), Apply("+", (SLOPE, Constant(3)))),  # type: ignore[operator]
        (SLOPE * Fraction(1, 4), Apply("*", (SLOPE, Constant(0.25)))),  # type: ignore[operator]
        (gn.outer(W, U).T, Apply("transpose", (Outer(W, U, ONE),))),
    ],
)
def test_word_makes_its_node(value: Expr, node: Expr) -> None:
    assert value == node


@pytest.mark.parametrize(
    "name",
    [
        "exp",
        "expm1",
        "log",
        "log1p",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "cos_turns",
        "tanh",
        "sigmoid",
        "log_sigmoid",
        "softplus",
        "relu",
        "floor",
        "detach",
    ],
)
def test_pointwise_word_is_an_apply_of_its_name(name: str) -> None:
    assert getattr(gn, name)(SLOPE) == Apply(name, (SLOPE,))


@pytest.mark.parametrize(
    ("mask", "node"),
    [
        (gn.causal(), Mask("causal", (False,))),
        (gn.causal(strict=True), Mask("causal", (True,))),
        (gn.window(8), Mask("window", (8,))),
        (gn.everything(), Mask("everything")),
        (gn.same_document(IDS), Mask("same_document", (IDS,))),
        (
            gn.causal() & (gn.window(8) | gn.first_keys(0)),
            Mask("and", (gn.causal(), Mask("or", (gn.window(8), Mask("first_keys", (0,)))))),
        ),
        (gn.negligible(gn.decay(BETA)), Mask("negligible", (gn.decay(BETA), -10.0))),
        (gn.negligible(gn.decay(BETA), bound=5), Mask("negligible", (gn.decay(BETA), -10.0, 5.0))),
    ],
)
def test_mask_word_makes_its_mask(mask: Mask, node: Mask) -> None:
    assert mask == node


def test_split_cuts_at_the_share() -> None:
    first, rest = gn.split(Q, 0.3)
    share = D.scaled(Fraction(3, 10))
    assert first == Slice(Q, Width(), share)
    assert rest == Slice(Q, share, D)


def test_an_integer_and_a_real_constant_differ() -> None:
    assert SLOPE * 2 != SLOPE * 2.0
    assert gn.window(1) != gn.first_keys(1)


def test_nodes_know_the_users_line() -> None:
    value = gn.distance()
    assert value.where.file == __file__
    assert value.where.text == "value = gn.distance()"
    assert value.where.function == "test_nodes_know_the_users_line"


REFUSALS: list[tuple[Callable[[], object], str]] = [
    (lambda: Q + torch.zeros(3), "'\\+' wants a number or a value of the language; got a Tensor"),  # type: ignore[operator]
    (lambda: Q * "2", "'\\*' wants a number or a value of the language; got '2'"),
    (lambda: SLOPE + True, "got True"),
    (lambda: SLOPE * gn.head, r"call it: gn.head\(\)"),  # type: ignore[operator]
    (lambda: SLOPE + float("nan"), "hide pairs with the mask"),
    (lambda: SLOPE == 0, "== compares formulas"),
    (lambda: SLOPE % 2, "no %"),
    (lambda: float(SLOPE), "use the words"),
    (lambda: [*range(SLOPE)], "use the words"),
    (lambda: SLOPE[0], "not indexed"),
    (lambda: (gn.distance() < 3) & (gn.distance() > 1), "& and | combine masks"),
    (lambda: (gn.distance() < 3) * SLOPE, "'\\*' wants numbers; got a condition"),
    (lambda: gn.distance() < (gn.distance() < 3), "wants numbers; got a condition"),
    (lambda: bool(gn.causal()), "no truth value"),
    (lambda: gn.causal() & SLOPE, "a mask was expected"),
    (lambda: gn.causal() * 2, "a mask is not a number"),
    (lambda: Q + gn.split(Q)[0], "'\\+' wants equal widths; got d and 1/2 d"),
    (lambda: Q * gn.distance(), "no pair vectors"),
    (lambda: gn.concat(Q, K), "no pair vectors"),
    (lambda: gn.concat(), "at least one vector"),
    (lambda: gn.rotate(Q, gn.distance() * gn.frequencies(Q)), "angle of the pair"),
    (lambda: gn.rotate(Q, STEP, "interleaved"), "'half' or 'pairs'; got 'interleaved'"),
    (lambda: gn.split(Q, 1.0), "between 0 and 1; got 1.0"),
    (lambda: gn.split(Q, SLOPE), "share= as a Python number; got a parameter scalar"),  # type: ignore[arg-type]
    (lambda: gn.split(SLOPE), "gn.split wants a vector"),
    (lambda: gn.split(OUT), "of an attention output"),
    (lambda: gn.channel_sum(OUT), "of an attention output"),
    (lambda: gn.l2_norm(OUT), "of an attention output"),
    (lambda: gn.lookup(OUT, 1), "of an attention output"),
    (lambda: OUT @ declared("m", gn.Param[gn.ValueDim, Model]), "projected outside"),
    (lambda: OUT * K, "values are weighted, not modulated"),
    (lambda: gn.score_scan(OUT, inclusive=True), "sums a pair value"),
    (lambda: gn.softmax(OUT, mask=gn.causal()), "one attention at a time"),
    (lambda: gn.dim(gn.Entry), "counts none"),
    (lambda: gn.dim(gn.Head), "head_count"),
    (lambda: gn.dim(SLOPE), "wants a vector or an axis"),
    (lambda: gn.position(3), "coordinate= as a name such as 'y'; got 3"),  # type: ignore[arg-type]
    (lambda: gn.rms_norm(Q, eps=SLOPE), "eps= as a Python number"),  # type: ignore[arg-type]
    (lambda: gn.lookup(TABLE), "an axis to choose from"),
    (lambda: gn.lookup(TABLE, 1, 2), "2 axes to choose from"),
    (lambda: gn.lookup(TABLE, gn.frequencies(Q)), "integer index"),
    (lambda: gn.lookup(gn.distance() * gn.plane(Q), 1), "no pair vectors"),
    (lambda: gn.lookup(W, gn.distance()), "say where"),
    (lambda: gn.at_key(Q), "already has its place"),
    (lambda: gn.prefix_sum(SLOPE), "gn.prefix_sum of a constant"),
    (lambda: gn.prefix_sum(BETA, "no"), "inclusive= as True or False; got 'no'"),  # type: ignore[arg-type]
    (lambda: gn.prefix_sum(gn.outer(W, U)), "wants scalars or vectors"),
    (lambda: gn.decay(Q), "exists at queries only"),
    (lambda: gn.decay(BETA < 1), "wants numbers"),
    (lambda: gn.diagonal(log=BETA), "one number a channel"),
    (lambda: gn.outer(W, BETA), "wants two vectors"),
    (lambda: gn.outer("w", U), "gn.outer wants a number or a value of the language as w"),  # type: ignore[arg-type]
    (lambda: gn.householder(W, W), "one beta for each w"),
    (lambda: gn.householder(W, BETA, 1), "normalize= as True or False"),  # type: ignore[arg-type]
    (lambda: gn.expm(W), "wants a matrix"),
    (lambda: gn.expm(declared("m", gn.Param[gn.Dim, Model])), "square matrix"),
    (lambda: gn.exp(gn.identity()), "no meaning for matrices"),
    (lambda: gn.identity() * gn.identity(), "multiplied with @"),
    (lambda: gn.identity() + W, "cannot mix a vector and a matrix"),
    (lambda: W * gn.outer(W, U), "cannot mix a vector and a matrix"),
    (lambda: -gn.householder(W, BETA), "no negative"),
    (lambda: gn.householder(W, BETA) - gn.outer(W, U), "forms transition and outer"),
    (lambda: gn.diagonal(log=W) - gn.outer(MANY, MANY), "factor of a product"),
    (lambda: Q @ gn.outer(MANY, MANY), "factor of a product"),
    (lambda: W.T, "wants a matrix"),
    (lambda: gn.identity() @ W, "a vector and a matrix"),
    (lambda: Q @ declared("m", gn.Param[Model, gn.Dim]), "got d and Model"),
    (lambda: Q @ declared("m", gn.Param[gn.Entry, gn.Entry, gn.Dim]), "square matrix"),
    (lambda: gn.dot(K, Q), "first vector at the query"),
    (lambda: gn.dot(Q, SLOPE), "gn.dot wants a vector"),
    (lambda: gn.dot(Q, gn.split(K)[0]), "equal widths; got d and 1/2 d"),
    (lambda: gn.dot(Q, K, through=SLOPE), "through= wants a transport; got a parameter scalar"),
    (lambda: gn.dot(Q, K, through=gn.identity(gn.split(Q)[0])), "acts on 1/2 d channels"),
    (lambda: gn.dot(Q, K, through=declared("m", gn.Param[gn.Dim, Model])), "square matrix"),
    (lambda: gn.score_scan(BETA, inclusive=True), "sums a pair value"),
    (lambda: gn.score_scan(gn.dot(Q, K), inclusive=1), "inclusive= as True or False"),  # type: ignore[arg-type]
    (lambda: gn.softmax(gn.dot(Q, K) < 0, mask=gn.causal()), "wants a pair scalar"),
    (lambda: gn.softmax(gn.dot(Q, K), mask=gn.causal), r"call it: gn.causal\(\)"),  # type: ignore[arg-type]
    (lambda: gn.softmax(gn.dot(Q, K), mask=gn.causal(), sink=BETA), "gn.at_query"),
    (lambda: gn.ratio(gn.dot(Q, K), gn.dot(Q, K), mask=gn.causal(), at_least=-1), ">= 0"),
    (lambda: gn.stick_breaking(gn.dot(Q, K), mask=gn.causal(), order="left"), "nearest_first"),
    (lambda: gn.causal(strict=0), "strict= as True or False"),  # type: ignore[arg-type]
    (lambda: gn.window(0), "size= as a whole number >= 1; got 0"),
    (lambda: gn.window(2.5), "size= as a whole number"),  # type: ignore[arg-type]
    (lambda: gn.window(SLOPE), "pass a Python value, not an input"),  # type: ignore[arg-type]
    (lambda: gn.first_keys(-1), "count= as a whole number >= 0"),
    (lambda: gn.same_document(BETA), "an integer a token"),
    (lambda: gn.selected_blocks(IDS, size=4), "a list of block numbers a query"),
    (lambda: gn.negligible(BETA), "skips keys behind a decay"),
    (lambda: gn.negligible(gn.decay(BETA), log_eps="low"), "log_eps= as a Python number"),  # type: ignore[arg-type]
    (lambda: gn.negligible(gn.decay(BETA), bound=-1.0), "bound= as a finite number >= 0"),
    (lambda: gn.where(SLOPE, 1, 2), "wants a condition first"),
    (lambda: gn.sparsemax, "one pass over the keys"),  # type: ignore[attr-defined]
    (lambda: gn.mix_heads, "heads do not meet"),  # type: ignore[attr-defined]
    (lambda: gn.sum, "gn.channel_sum"),  # type: ignore[attr-defined]
    (lambda: gn.sofmax, "did you mean gn.softmax"),  # type: ignore[attr-defined]
    (lambda: gn.xyzzy, "no word 'xyzzy'"),  # type: ignore[attr-defined]
]


@pytest.mark.parametrize(("program", "words"), REFUSALS)
def test_argument_that_does_not_fit_is_refused(program: Callable[[], object], words: str) -> None:
    with pytest.raises(gn.VariantError, match=words) as caught:
        program()
    assert caught.value.where.file == __file__


def test_unknown_words_look_like_missing_attributes() -> None:
    assert not hasattr(gn, "sofmax")
    with pytest.raises(ImportError):
        exec("from gnomon import sofmax")

"""Programs that must be refused; each text is a golden file, which a reader should like to get."""

# mypy: ignore-errors
# wrong on purpose: a checker finds some of these mistakes too

import math
from collections.abc import Callable

import pytest

import gnomon as gn
from gnomon import Dim, Entry, Head, KVHead, Param, Query, Token, ValueDim

Function = Callable[..., object]
LAWS: list[tuple[Function, str]] = []
WRONG: list[tuple[Function, str]] = []


def refused(law: str) -> Callable[[Function], Function]:
    """A program that breaks the named law."""
    return lambda f: LAWS.append((f, law)) or f


def wrong(words: str) -> Callable[[Function], Function]:
    """A program whose error must contain the words."""
    return lambda f: WRONG.append((f, words)) or f


@refused("values are weighted, not modulated")
def shaw_value(q, k, a: Param[Entry, ValueDim], *, clip=16):
    o = gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal())
    return o + gn.lookup(a, gn.clip(-gn.distance(), -clip, clip) + clip)


@refused("heads do not meet")
def dape(q, k, w: Param[Head, Entry, Entry]):
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.softmax(score + gn.relu(score @ w), mask=gn.causal())


@refused("one pair at a time")
def multi_token(q, k, w: Param[Head, Entry]):
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.softmax(score + gn.lookup(w, 1) * score[-1], mask=gn.causal())


@refused("heads do not meet")
def talking_heads(q, k, w: Param[Entry, Entry]):
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) @ w, mask=gn.causal())


@refused("one pass over the keys")
def entmax(q, k):
    return gn.entmax(gn.dot(q, k) * gn.rsqrt_dim(q), alpha=1.5, mask=gn.causal())


@refused("no sum over queries")
def selective(q, k):
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.softmax(score - gn.prefix_sum(gn.relu(score), inclusive=False), mask=gn.causal())


@refused("values come from outside")
def delta_former(q, k, w: Query[Head, Dim], beta: Query[Head]):
    u = gn.softmax(gn.dot(w, k), mask=gn.causal(strict=True)) * -beta
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal(), values=u)


@refused("values are weighted, not modulated")
def parallax(q, k, r: Query[Head, Dim]):
    o = gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal())
    return o * (1 + gn.dot(r, k)) - o


@wrong("reads its first vector at the query")
def two_queries(q, k):
    return gn.softmax(gn.dot(q, q) * gn.rsqrt_dim(q), mask=gn.causal())


@refused("no pair vectors")
def no_dot(q, k):
    return gn.softmax(q * k * gn.rsqrt_dim(q), mask=gn.causal())


@refused("say where")
def token_in_pair(q, k, log_f: Token[Head]):
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) + log_f, mask=gn.causal())


@wrong("one number a token")
def vector_decay(q, k, g: Token[Head, Dim]):
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) + gn.decay(g), mask=gn.causal())


@wrong("wants a vector w")
def flat_householder(q, k, w: Token[KVHead], beta: Token[KVHead]):
    return gn.softmax(gn.dot(q, k, through=gn.householder(w, beta)), mask=gn.causal())


@wrong("exists at queries only")
def query_transport(q, k, beta: Token[KVHead]):
    return gn.softmax(gn.dot(q, k, through=gn.householder(q, beta)), mask=gn.causal())


@refused("one transport a dot")
def two_transports(q, k, w: Token[KVHead, Dim], u: Token[KVHead, Dim]):
    return gn.softmax(
        gn.dot(q, k, through=[gn.householder(w, 2.0), gn.householder(u, 2.0)]), mask=gn.causal()
    )


@refused("one transport a variant")
def two_carried(q, k, w: Token[KVHead, Dim], u: Token[KVHead, Dim]):
    a, b = (
        gn.dot(q, k, through=gn.householder(w, 2.0)),
        gn.dot(q, k, through=gn.householder(u, 2.0)),
    )
    return gn.softmax(a + b, mask=gn.causal())


@refused("transports are thin")
def full_matrix(q, k, m: Token[KVHead, Dim, Dim]):
    return gn.softmax(gn.dot(q, k, through=m), mask=gn.causal())


@refused("transports are near the identity")
def only_outer(q, k, w: Token[KVHead, Dim]):
    return gn.softmax(gn.dot(q, k, through=gn.outer(w, w)), mask=gn.causal())


@refused("decay stands outside")
def scaled_transport(q, k, w: Token[KVHead, Dim], log_a: Token[KVHead]):
    return gn.softmax(
        gn.dot(q, k, through=gn.exp(log_a) * gn.householder(w, 2.0)), mask=gn.causal()
    )


@wrong("a mask is not a number")
def mask_in_formula(q, k):
    return gn.softmax(gn.dot(q, k) + gn.causal(), mask=gn.causal())


@refused("hide pairs with the mask")
def minus_infinity(q, k, *, size=128):
    logit = gn.where(gn.distance() < size, gn.dot(q, k), -math.inf)
    return gn.softmax(logit, mask=gn.causal())


@wrong("cannot look at a value")
def python_if(q, k):
    bias = 0.0 if gn.distance() < 16 else -1.0
    return gn.softmax(gn.dot(q, k) + bias, mask=gn.causal())


@wrong("integer index")
def real_index(q, k, table: Param[Head, Entry]):
    return gn.softmax(gn.dot(q, k) + gn.lookup(table, gn.distance() / 2), mask=gn.causal())


@wrong("one angle for two channels")
def wrong_planes(q, k):
    a, _ = gn.split(q)
    angle = gn.position() * gn.frequencies(a)
    return gn.softmax(gn.dot(gn.rotate(q, angle), gn.rotate(k, angle)), mask=gn.causal())


@refused("real powers of real distances")
def power_of_negative(q, k, *, alpha=0.5):
    return gn.softmax(gn.dot(q, k) - gn.distance() ** alpha, mask=gn.everything())


@refused("scans see whole stretches")
def scan_over_holes(q, k, *, size=128):
    s = gn.dot(q, k)
    return gn.softmax(
        s + gn.score_scan(gn.log_sigmoid(s), inclusive=False),
        mask=gn.causal() & (gn.window(size) | gn.first_keys(4)),
    )


@refused("one score scan")
def scan_of_scan(q, k):
    s = gn.score_scan(gn.sigmoid(gn.dot(q, k)), inclusive=True)
    return gn.softmax(gn.score_scan(s, inclusive=True), mask=gn.causal())


@wrong("returns an attention output")
def no_normaliser(q, k):
    return gn.dot(q, k) * gn.rsqrt_dim(q)


@refused("a score is a number")
def vector_score(q, k, w: Param[Entry]):
    return gn.softmax(w * gn.dot(q, k), mask=gn.causal())


@wrong("says neither what it is")
def bare_argument(q, k, log_f):
    return gn.softmax(gn.dot(q, k) + gn.decay(log_f), mask=gn.causal())


@wrong("never used")
def unused(q, k, log_f: Token[Head]):
    return gn.softmax(gn.dot(q, k), mask=gn.causal())


@wrong("did you mean")
def misspelt(q, k, w: Token[KVHead, Dim], beta: Token[KVHead]):
    return gn.softmax(gn.dot(q, k, through=gn.housholder(w, beta)), mask=gn.causal())


@wrong("v is not declared")
def own_value(q, k, v):
    return gn.softmax(gn.dot(q, k), mask=gn.causal())


@refused("scans see whole stretches")
def stick_both_sides(q, k):
    return gn.stick_breaking(gn.dot(q, k), mask=gn.everything())


@wrong("keyword-only")
def positional_number(q, k, alpha=0.5):
    return gn.softmax(gn.dot(q, k) - alpha * gn.distance(), mask=gn.causal())


@refused("transports run along the sequence")
def rotation_by_query(q, k):
    a, _ = gn.split(q)
    return gn.softmax(gn.dot(q, k, through=gn.rotation(a)), mask=gn.causal())


@refused("skipped keys are negligible")
def other_decay(q, k, log_f: Token[Head]):
    return gn.softmax(
        gn.dot(q, k) + gn.decay(log_f), mask=gn.causal() & gn.negligible(gn.decay(log_f))
    )


@refused("one attention at a time")
def output_in_score(q, k, w: Query[Head, ValueDim]):
    o = gn.softmax(gn.dot(q, k), mask=gn.causal())
    return gn.softmax(gn.dot(o, k), mask=gn.causal())


@refused("ordered products look back")
def path_both_sides(q, k, w: Token[KVHead, Dim], beta: Token[KVHead]):
    return gn.softmax(gn.dot(q, k, through=gn.householder(w, beta)), mask=gn.everything())


@wrong("a mask was expected")
def condition_as_mask(q, k, *, size=128):
    return gn.softmax(gn.dot(q, k), mask=gn.causal() & (gn.distance() < size))


@refused("transports are near the identity")
def gated_outer(q, k, w: Token[KVHead, Dim], g: Token[KVHead, Dim]):
    return gn.softmax(gn.dot(q, k, through=gn.outer(w, w) @ gn.diagonal(log=g)), mask=gn.causal())


@wrong("a score needs q and k")
def row_score(q, k):
    return gn.softmax(gn.channel_sum(q), mask=gn.causal())


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(request.config.rootpath)  # the texts have paths from where one stands


@pytest.mark.parametrize(("function", "law"), [pytest.param(*x, id=x[0].__name__) for x in LAWS])
def test_law_is_named_at_the_users_line(function, law, golden):
    with pytest.raises(gn.LawError) as caught:
        gn.variant(function)
    assert caught.value.law == law
    assert caught.value.where.function == function.__name__
    assert str(caught.value) == golden


@pytest.mark.parametrize(("function", "words"), [pytest.param(*x, id=x[0].__name__) for x in WRONG])
def test_mistake_is_said_at_the_users_line(function, words, golden):
    with pytest.raises(gn.VariantError) as caught:
        gn.variant(function)
    assert words in str(caught.value)
    assert not isinstance(caught.value, gn.LawError)
    assert caught.value.where.function == function.__name__
    assert str(caught.value) == golden

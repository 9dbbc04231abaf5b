"""The laws of whole variants: what breaks each, what keeps it, and several broken at once."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls

from collections.abc import Callable

import pytest

import gnomon as gn
from gnomon import Dim, Entry, Head, KVHead, Param, Plane, Token, Value
from gnomon.dsl.masks import is_causal, is_stretch
from gnomon.dsl.nodes import Mask
from gnomon.dsl.verify import broken

CAUSAL, ALL = gn.causal(), gn.everything()
HOLES = gn.causal() & (gn.window(8) | gn.first_keys(2))


@pytest.mark.parametrize(
    ("mask", "causal", "stretch"),
    [
        (CAUSAL, True, True),
        (gn.causal(strict=True), True, True),
        (ALL, False, True),
        (CAUSAL & gn.window(4), True, True),
        (gn.window(4), False, True),
        (CAUSAL | gn.first_keys(4), False, False),
        (CAUSAL & gn.first_keys(4), True, False),
        (CAUSAL | gn.causal(strict=True), True, False),
        (HOLES, True, False),
    ],
)
def test_what_a_mask_shows(mask: Mask, causal: bool, stretch: bool) -> None:
    assert (is_causal(mask), is_stretch(mask)) == (causal, stretch)


def laws(logit: Callable[..., Value], mask: Mask, end: Callable[..., Value] = gn.softmax):
    """The laws that softmax(logit(q, k, x, w, s, m), mask) breaks."""

    def program(
        q,
        k,
        x: Token[Head],
        w: Token[KVHead, Dim],
        s: Token[KVHead, Plane],
        m: Param[KVHead, Dim],
        t: Param[Head, Entry],
    ):
        used = gn.channel_sum(m * k) + gn.at_key(x) + gn.lookup(t, 0) + gn.at_key(gn.channel_sum(w))
        return end(logit(q, k, x, w, s, m) + used + gn.at_key(gn.channel_sum(s)), mask=mask)

    try:
        gn.variant(program)
    except gn.BrokenLawsError as error:
        return [e.law for e in error.errors]
    except gn.LawError as error:
        return [error.law]
    return []


def scan(x: Value) -> Value:
    return gn.score_scan(gn.log_sigmoid(x), inclusive=False)


def path(q: Value, k: Value, w: Value, beta: float = 2.0) -> Value:
    return gn.dot(q, k, through=gn.householder(w, beta))


ONE, LOOK, DECAY = "one transport a variant", "ordered products look back", "decays look back"
SCAN, STRETCH, POWER = (
    "one score scan",
    "scans see whole stretches",
    "real powers of real distances",
)
D = gn.distance


@pytest.mark.parametrize(
    ("logit", "mask", "expected"),
    [
        (lambda q, k, *_: gn.dot(q, k), ALL, []),
        # transports
        (lambda q, k, x, w, *_: path(q, k, w), CAUSAL, []),
        (lambda q, k, x, w, *_: path(q, k, w) + path(q, k, w, 1.0), CAUSAL, [ONE]),
        (lambda q, k, x, w, *_: path(q, k, w) + path(q, k, w), CAUSAL, []),
        (lambda q, k, x, w, *_: path(q, k, w) + path(q, k, w), ALL, [LOOK]),
        (
            lambda q, k, x, w, s, m: (
                path(q, k, w)
                + gn.dot(q, k, through=gn.rotation(s))
                + gn.dot(q, k, through=gn.diagonal(log=w))
            ),
            CAUSAL,
            [],
        ),
        (lambda q, k, x, w, s, m: path(q, k, w) + path(q, k, m), CAUSAL, []),
        (lambda q, k, x, w, s, m: gn.dot(q, k, through=gn.rotation(s)), ALL, []),
        (lambda q, k, x, w, s, m: gn.dot(q, k, through=gn.diagonal(log=m)), ALL, [LOOK]),
        (
            lambda q, k, x, w, s, m: gn.dot(q, k, through=gn.expm(gn.outer(m, m) - gn.outer(m, m))),
            ALL,
            [],
        ),
        # sums between the key and the query
        (lambda q, k, x, *_: gn.dot(q, k) + gn.decay(x), CAUSAL & gn.window(4), []),
        (lambda q, k, x, *_: gn.dot(q, k) + gn.decay(x), CAUSAL | gn.first_keys(4), [DECAY]),
        (lambda q, k, *_: gn.dot(q, k) * gn.exp(gn.decay(-0.5)), ALL, [DECAY]),
        # scans
        (lambda q, k, *_: scan(gn.dot(q, k)), CAUSAL & gn.window(4), []),
        (lambda q, k, *_: scan(gn.dot(q, k)), HOLES, [STRETCH]),
        (lambda q, k, *_: scan(gn.dot(q, k)), ALL, [STRETCH]),
        (lambda q, k, *_: scan(gn.dot(q, k)) + scan(gn.dot(q, k)), CAUSAL, []),
        (lambda q, k, *_: scan(scan(gn.dot(q, k))), CAUSAL, [SCAN]),
        # distances
        (lambda q, k, *_: D() ** 0.5 * gn.dot(q, k), CAUSAL, []),
        (lambda q, k, *_: D() ** 0.5 * gn.dot(q, k), ALL, [POWER]),
        (lambda q, k, *_: abs(D("y")) ** 0.5 * gn.dot(q, k), ALL, []),
        (lambda q, k, *_: D("y") ** 0.5 * gn.dot(q, k), ALL, [POWER]),
        (lambda q, k, *_: D() ** 2 + D() ** 3.0 + gn.dot(q, k), ALL, []),
        (lambda q, k, *_: (D() ** 2) ** 0.5 + (D() * D()) ** 0.5 + gn.dot(q, k), ALL, []),
        (lambda q, k, *_: (D() ** 3) ** 0.5 + gn.dot(q, k), ALL, [POWER]),
        (lambda q, k, *_: gn.log(1 + 2 * D()) + gn.dot(q, k), ALL, [POWER]),
        (lambda q, k, *_: gn.log1p(D() / 2) + gn.dot(q, k), ALL, [POWER]),
        (lambda q, k, *_: gn.log1p(D()) + gn.dot(q, k), CAUSAL, []),
        (lambda q, k, *_: gn.sqrt(gn.maximum(D(), 0)) + gn.dot(q, k), ALL, []),
        (lambda q, k, *_: gn.sqrt(gn.minimum(D(), 9)) + gn.dot(q, k), ALL, [POWER]),
        (lambda q, k, *_: gn.sqrt(gn.clip(D(), 0, 9)) + gn.dot(q, k), ALL, []),
        (lambda q, k, *_: gn.sqrt(gn.clip(D(), -9, 9)) + gn.dot(q, k), ALL, [POWER]),
        (lambda q, k, *_: gn.rsqrt(D() // 2) + gn.dot(q, k), ALL, [POWER]),
        (
            lambda q, k, *_: gn.log(gn.channel_sum(gn.split(D() * gn.plane(q))[0])) + gn.dot(q, k),
            ALL,
            [POWER],
        ),
        (lambda q, k, *_: (-D()) ** 0.5 + gn.dot(q, k), CAUSAL, [POWER]),
        (lambda q, k, *_: (-2 * D() - 1) ** 0.5 + gn.dot(q, k), CAUSAL, [POWER]),
        (lambda q, k, *_: (9 - D()) ** 0.5 + gn.dot(q, k), CAUSAL, []),
        (lambda q, k, x, *_: gn.log(gn.at_key(x)) + gn.dot(q, k), ALL, []),
        (lambda q, k, *_: gn.dot(q, k) + 2.0 ** D(), ALL, []),
        (lambda q, k, *_: D() ** gn.head() + gn.dot(q, k), ALL, []),
    ],
)
def test_law_of_a_softmax(logit: Callable[..., Value], mask: Mask, expected: list[str]) -> None:
    assert laws(logit, mask) == expected


def test_stick_breaking_counts_as_a_scan() -> None:
    def s(q, k, *_):
        return gn.dot(q, k)

    assert laws(s, CAUSAL, gn.stick_breaking) == []
    assert laws(s, HOLES, gn.stick_breaking) == []
    assert laws(s, ALL, gn.stick_breaking) == [STRETCH]
    assert laws(lambda *x: scan(s(*x)), CAUSAL, gn.stick_breaking) == [SCAN]


SKIP = "skipped keys are negligible"


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (lambda q, k, *_: gn.dot(q, k), []),
        (lambda q, k, x, w, s, m: gn.dot(q, k, through=gn.rotation(s)), []),
        (lambda q, k, *_: -3 * gn.tanh(gn.dot(q, k)) / gn.head_count(), []),
        (lambda q, k, *_: gn.dot(q, k) ** 2 - D() * 0.1, []),
        (lambda q, k, *_: gn.clip(gn.log(D() + 1), 0, 3) * gn.sigmoid(D() * 0.1), []),
        (lambda q, k, x, w, *_: path(q, k, w), [SKIP]),
        (lambda q, k, *_: gn.log(D() + 1), [SKIP]),
        (lambda q, k, *_: gn.dot(q, k) / (D() + 1), [SKIP]),
        (lambda q, k, *_: scan(gn.dot(q, k)), [SKIP]),
        (lambda q, k, x, *_: gn.decay(2 * x), [SKIP]),
    ],
)
def test_bound_of_negligible_is_derived_or_given(
    rest: Callable[..., Value], expected: list[str]
) -> None:
    def skipping(bound):
        def program(q, k, x: Token[Head], w: Token[KVHead, Dim], s: Token[KVHead, Plane]):
            forget = gn.decay(x)
            used = gn.at_key(gn.channel_sum(s)) + gn.at_key(gn.channel_sum(w))
            mask = CAUSAL & gn.negligible(forget, bound=bound)
            return gn.softmax(rest(q, k, x, w, s, None) + forget + used, mask=mask)

        return program

    gn.variant(skipping(100.0))
    if not expected:
        gn.variant(skipping(None))
        return
    with pytest.raises(gn.LawError, match="bound=") as caught:
        gn.variant(skipping(None))
    assert caught.value.law == SKIP


@pytest.mark.parametrize(
    "logit",
    [
        lambda score, forget: (score + forget) * 0.5,
        lambda score, forget: score - forget,
        lambda score, forget: gn.tanh(score + forget),
    ],
)
def test_negligible_wants_the_decay_as_a_term_of_its_own(logit: Callable[..., Value]) -> None:
    def program(q, k, x: Token[Head]):
        forget = gn.decay(x)
        mask = CAUSAL & gn.negligible(forget)
        return gn.softmax(logit(gn.dot(q, k), forget), mask=mask)

    with pytest.raises(gn.LawError, match="as a term of its own"):
        gn.variant(program)


def test_negligible_wants_a_softmax() -> None:
    def program(q, k, x: Token[Head]):
        forget = gn.decay(x)
        return gn.weighted_sum(gn.dot(q, k) + forget, mask=CAUSAL & gn.negligible(forget))

    with pytest.raises(gn.LawError, match="bounds shares of a softmax"):
        gn.variant(program)


def test_all_broken_laws_are_reported_at_once(
    golden, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(request.config.rootpath)

    def three_mistakes(q, k, w: Token[KVHead, Dim], beta: Token[KVHead], log_f: Token[Head]):
        score = gn.dot(q, k, through=gn.householder(w, beta))
        score = score + gn.decay(log_f)
        score = score - gn.distance() ** 0.5
        return gn.softmax(score, mask=gn.everything())

    with pytest.raises(gn.BrokenLawsError) as caught:
        gn.variant(three_mistakes)
    assert [e.law for e in caught.value.errors] == [LOOK, DECAY, POWER]
    assert len({e.where.line for e in caught.value.errors}) == 3
    assert str(caught.value) == golden


def test_a_law_is_reported_once_for_two_outputs() -> None:
    def program(q, k, x: Token[Head]):
        score = gn.dot(q, k) + gn.decay(x)
        return gn.softmax(score, mask=ALL) - gn.softmax(2 * score, mask=ALL)

    with pytest.raises(gn.LawError) as caught:
        gn.variant(program)
    assert not isinstance(caught.value, gn.BrokenLawsError)


def test_the_catalogue_breaks_no_law() -> None:
    declared = [e.declaration for e in gn.catalogue.ENTRIES if e.declaration is not None]
    assert len(declared) >= 85
    assert all(broken(d.node) == () for d in declared)

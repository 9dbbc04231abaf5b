"""The laws of a whole variant: each is a function of one attention; all broken ones are reported.

Laws of a single place (which values may meet) are kept by the words themselves, at their line.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TypeVar, cast

from gnomon.dsl.errors import BrokenLawsError, LawError
from gnomon.dsl.forms import commutes, form, turns_back
from gnomon.dsl.kinds import describe
from gnomon.dsl.masks import is_causal, is_stretch
from gnomon.dsl.nodes import (
    ATTENTIONS,
    Decay,
    Dot,
    Expr,
    Mask,
    Node,
    Ratio,
    ScoreScan,
    Softmax,
    StickBreaking,
    Variant,
    WeightedSum,
    walk,
)
from gnomon.dsl.ranges import is_bounded, is_signed, real_power_base, sign_looking_back, terms

N = TypeVar("N", bound=Node)
Attention = Softmax | WeightedSum | Ratio | StickBreaking


def verify(variant: Variant) -> None:
    """Check the laws of the whole variant.

    Raises:
        LawError: one is broken.
        BrokenLawsError: several are; its text holds all of them.
    """
    errors = broken(variant)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BrokenLawsError(errors)


def broken(variant: Variant) -> tuple[LawError, ...]:
    """The broken laws, in the order of the source lines."""
    attentions = [n for n in walk(variant.output) if isinstance(n, ATTENTIONS)]
    found = chain(
        one_transport(variant),
        *(law(a) for a in attentions for law in LAWS),
    )
    once = {(e.law, e.what, e.where): e for e in found}
    return tuple(sorted(once.values(), key=lambda e: (e.where.file, e.where.line)))


def _unique(root: Node, kind: type[N]) -> list[N]:
    """The nodes of a class, equal ones once, in the order in which they are made."""
    return list(dict.fromkeys(n for n in walk(root) if isinstance(n, kind)))


def _scores(attention: Attention) -> tuple[Expr, ...]:
    if isinstance(attention, Ratio):
        return attention.numerator, attention.denominator
    return (attention.weight if isinstance(attention, WeightedSum) else attention.logit,)


def one_transport(variant: Variant) -> Iterator[LawError]:
    """One dot of a variant goes through an ordered product; commuting ones are maps and free."""
    dots = _unique(variant.output, Dot)
    ordered = [d for d in dots if d.through is not None and not commutes(d.through)]
    for dot in ordered[1:]:
        yield LawError(
            "one transport a variant",
            "two dots go through ordered products that do not commute",
            "use one, or pass the other dot's vectors without through=",
            dot.where,
        )


def one_score_scan(attention: Attention) -> Iterator[LawError]:
    """A second sum over the keys would need the first one finished."""
    scans: list[Node] = list(_unique(attention, ScoreScan))
    if isinstance(attention, StickBreaking):
        scans.append(attention)
    for scan in scans[1:]:
        yield LawError(
            "one score scan",
            "a second sum over the keys would need the first one finished",
            "one gn.score_scan or gn.stick_breaking a variant",
            scan.where,
        )


def whole_stretches(attention: Attention) -> Iterator[LawError]:
    """A scan runs over every key between j and i, nearest to the query first."""
    mask = attention.mask
    for scan in _unique(attention, ScoreScan):
        if not (is_causal(mask) and is_stretch(mask)):
            yield LawError(
                "scans see whole stretches",
                "gn.score_scan needs a mask that shows every key between j and i",
                "gn.causal(), with gn.window or gn.same_document if wanted, but no first_keys or "
                "selected_blocks",
                scan.where,
            )
    leftwards = isinstance(attention, StickBreaking) and attention.order == "right_to_left"
    if leftwards and not is_causal(mask):
        yield LawError(
            "scans see whole stretches",
            "gn.stick_breaking breaks the stick from the query towards key 0; "
            "this mask also shows later keys",
            "mask=gn.causal(strict=True), or order='nearest_first'",
            attention.where,
        )


def ordered_products_look_back(attention: Attention) -> Iterator[LawError]:
    """A product over (j, i] that cannot be undone has no meaning where j > i."""
    if is_causal(attention.mask):
        return
    for dot in _unique(attention, Dot):
        if dot.through is not None and not turns_back(dot.through):
            yield LawError(
                "ordered products look back",
                f"the product over (j, i] of a {form(dot.through)} transport has no meaning "
                "for keys after the query",
                "add gn.causal() to the mask",
                dot.where,
            )


def decays_look_back(attention: Attention) -> Iterator[LawError]:
    """The sum over (j, i] is empty for keys after the query, which is hardly ever meant."""
    if is_causal(attention.mask):
        return
    for decay in _unique(attention, Decay):
        yield LawError(
            "decays look back",
            "gn.decay sums over the tokens in (j, i]; this mask also shows keys after the query",
            "add gn.causal() to the mask; for both sides write the difference of two sums, "
            "abs(gn.at_query(p) - gn.at_key(p)) with p = gn.prefix_sum(x)",
            decay.where,
        )


def real_powers(attention: Attention) -> Iterator[LawError]:
    """Powers, roots and logarithms of a distance want one that is not negative."""
    causal = is_causal(attention.mask)
    for x in _unique(attention, Expr):
        base = real_power_base(x)
        if base is None or not is_signed(base):
            continue
        if not causal:
            yield LawError(
                "real powers of real distances",
                "without gn.causal() the distance i - j is negative for later keys",
                "write abs(gn.distance()) ** alpha",
                x.where,
            )
        elif sign_looking_back(base) < 0:
            yield LawError(
                "real powers of real distances",
                "j - i is negative for every earlier key",
                "gn.distance() is i - j: drop the minus",
                x.where,
            )


def bounded_skips(attention: Attention) -> Iterator[LawError]:
    """What gn.negligible hides must be known to be small."""
    law = "skipped keys are negligible"
    inside = {id(n) for score in _scores(attention) for n in walk(score)}
    for mask in _unique(attention.mask, Mask):
        if mask.rule != "negligible":
            continue
        decay = cast(Decay, mask.operands[0])
        if not isinstance(attention, Softmax):
            yield LawError(
                law,
                "gn.negligible bounds shares of a softmax; this normaliser has none",
                "use gn.softmax, or hide far keys with gn.window(n)",
                mask.where,
            )
        elif id(decay) not in inside:
            yield LawError(
                law,
                "gn.negligible skips keys by a decay that does not stand in the logit",
                "name it once: forget = gn.decay(log_f), and use forget in both places",
                mask.where,
            )
        elif len(mask.operands) == 2:
            yield from _derivable(law, attention.logit, decay, mask)


def _derivable(law: str, logit: Expr, decay: Decay, mask: Mask) -> Iterator[LawError]:
    """The logit is the decay plus terms that norms bound."""
    rest = terms(logit)
    if (1, decay) in rest:
        rest.remove((1, decay))
        loose = [term for _, term in rest if not is_bounded(term)]
        what = f"norms do not bound {describe(loose[0])} beside the decay" if loose else ""
        where = loose[0].where if loose else mask.where
    else:
        what, where = "the decay does not stand in the logit as a term of its own", mask.where
    if what:
        yield LawError(
            law,
            f"gn.negligible cannot derive a bound: {what}",
            "say it: gn.negligible(forget, bound=...), a number that abs(logit - forget) "
            "never exceeds",
            where,
        )


LAWS: tuple[Callable[[Attention], Iterator[LawError]], ...] = (
    one_score_scan,
    whole_stretches,
    ordered_products_look_back,
    decays_look_back,
    real_powers,
    bounded_skips,
)

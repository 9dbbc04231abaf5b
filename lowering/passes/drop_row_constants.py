"""Take the terms that do not depend on the key out of a softmax logit.

    softmax_j(w_ij + r_i)  =  softmax_j(w_ij)        lse_j(w_ij + r_i)  =  lse_j(w_ij) + r_i

Takes: an attention in normal form.
Gives: a softmax attention whose `row_term` is the sum of those terms (None where there are none)
and whose `weight` has none at its top. The kernel adds the row term to the log-sum-exp alone; its
derivative needs no sum over the pairs (it is that of the log-sum-exp, and what the sink takes).
"""

from dataclasses import replace

from gnomon.dsl.nodes import Apply, Constant, Expr, walk
from gnomon.lowering.core import Anchored, Attention, Index, PairDot, Read, TransportDot


def drop_row_constants(attention: Attention) -> Attention:
    """The attention with its row-constant logit terms in `row_term`."""
    if attention.normaliser != "softmax":
        return attention
    found = terms(attention.weight)
    row = [term for term in found if _is_row_constant(term[0])]
    pair = [term for term in found if not _is_row_constant(term[0])]
    if not row or not pair:
        return attention
    return replace(attention, weight=total(pair), row_term=total(row))


def terms(x: Expr, *, positive: bool = True) -> list[tuple[Expr, bool]]:
    """The terms of a sum, each with whether it is added."""
    match x:
        case Apply("+", (a, b)):
            return terms(a, positive=positive) + terms(b, positive=positive)
        case Apply("-", (a, b)):
            return terms(a, positive=positive) + terms(b, positive=not positive)
        case Apply("neg", (a,)):
            return terms(a, positive=not positive)
    return [(x, positive)]


def total(parts: list[tuple[Expr, bool]]) -> Expr:
    """The sum of terms: a positive one first, as a person would write it."""
    ordered = sorted(parts, key=lambda part: not part[1])
    first, positive = ordered[0]
    made = first if positive else Apply("neg", (first,))
    for term, sign in ordered[1:]:
        made = Apply("+" if sign else "-", (made, term))
    return made


def _is_row_constant(x: Expr) -> bool:
    for node in walk(x):
        match node:
            case Read(stream) if stream.place == "column":
                return False
            case Anchored(stream, _) if stream.place == "column":
                return False
            case PairDot() | TransportDot() | Index("column"):
                return False
    return not isinstance(x, Constant)

"""Take the terms that do not depend on the key out of a softmax logit.

    softmax_j(w_ij + r_i)  =  softmax_j(w_ij)        lse_j(w_ij + r_i)  =  lse_j(w_ij) + r_i

Takes: an attention in normal form.
Gives: a softmax attention whose `row_term` is the sum of those terms (None where there are none)
and whose `weight` has none at its top. The kernel adds the row term to the log-sum-exp alone; its
derivative needs no sum over the pairs (it is that of the log-sum-exp, and what the sink takes).
"""

from dataclasses import replace

from gnomon.dsl.nodes import Apply, Constant, Expr, walk
from gnomon.lowering.core import Anchored, Attention, Index, PairDot, Read


def drop_row_constants(attention: Attention) -> Attention:
    """The attention with its row-constant logit terms in `row_term`."""
    if attention.normaliser != "softmax":
        return attention
    terms = _terms(attention.weight, positive=True)
    row = [term for term in terms if _is_row_constant(term[0])]
    pair = [term for term in terms if not _is_row_constant(term[0])]
    if not row or not pair:
        return attention
    return replace(attention, weight=_sum(pair), row_term=_sum(row))


def _terms(x: Expr, *, positive: bool) -> list[tuple[Expr, bool]]:
    match x:
        case Apply("+", (a, b)):
            return _terms(a, positive=positive) + _terms(b, positive=positive)
        case Apply("-", (a, b)):
            return _terms(a, positive=positive) + _terms(b, positive=not positive)
        case Apply("neg", (a,)):
            return _terms(a, positive=not positive)
    return [(x, positive)]


def _sum(terms: list[tuple[Expr, bool]]) -> Expr:
    # a positive term first, so that the sum reads as a person would write it
    ordered = sorted(terms, key=lambda term: not term[1])
    first, positive = ordered[0]
    total = first if positive else Apply("neg", (first,))
    for term, sign in ordered[1:]:
        total = Apply("+" if sign else "-", (total, term))
    return total


def _is_row_constant(x: Expr) -> bool:
    for node in walk(x):
        match node:
            case Read(stream) if stream.place == "column":
                return False
            case Anchored(stream, _) if stream.place == "column":
                return False
            case PairDot() | Index("column"):
                return False
    return not isinstance(x, Constant)

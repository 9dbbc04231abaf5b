"""Divide both sums of a ratio by exp of the row's maximum, so that no exponential overflows.

    sum n(e^x) v / max(|sum d(e^x)|, a)
      ->  sum n'(x - m) v / max(|sum d'(x - m)|, a e^-m)        m_i = max(0, max_j x_ij)

where n, d are homogeneous of degree 1 in (e^x, 1):

    e^x -> e^(x - m)    c -> c e^-m
    relu(a), |a|, -a, a + b, a - b, c * a, where(p, a, b) -> termwise

Takes: a ratio in normal form.
Gives: the same with `exponent` x and formulas over Given("row_max"), where both formulas have this
form and one exponent that holds a dot (a decay alone cannot overflow); otherwise the attention
untouched.
"""

from dataclasses import replace

from gnomon.dsl.nodes import Apply, Constant, Expr, walk
from gnomon.lowering.core import Attention, Given, PairDot, TransportDot

ROW_MAX = Given("row_max", "row")
_DECAYED_ONE = Apply("exp", (Apply("neg", (ROW_MAX,)),))


def rescale_ratio(attention: Attention) -> Attention:
    """The attention with both sums over exp(x - row_max)."""
    if attention.normaliser != "ratio" or attention.denominator is None:
        return attention
    exponents = {
        node.args[0]
        for formula in (attention.weight, attention.denominator)
        for node in walk(formula)
        if isinstance(node, Apply) and node.fn == "exp"
    }
    below = [n for x in exponents for n in walk(x)]
    if len(exponents) != 1 or not any(isinstance(n, PairDot | TransportDot) for n in below):
        return attention
    weight, denominator = _scale(attention.weight), _scale(attention.denominator)
    if weight is None or denominator is None:
        return attention
    (exponent,) = exponents
    return replace(attention, weight=weight, denominator=denominator, exponent=exponent)


def _has_exp(x: Expr) -> bool:
    return any(isinstance(node, Apply) and node.fn == "exp" for node in walk(x))


def _scale(x: Expr) -> Expr | None:
    """The formula divided by exp(row_max), or None where it is not homogeneous."""
    match x:
        case Apply("exp", (a,)):
            return Apply("exp", (Apply("-", (a, ROW_MAX)),))
        case Apply("relu" | "abs" | "neg" | "detach" as fn, (a,)):
            inner = _scale(a)
            return None if inner is None else Apply(fn, (inner,))
        case Apply("+" | "-" as fn, (a, b)):
            left, right = _scale(a), _scale(b)
            return None if left is None or right is None else Apply(fn, (left, right))
        case Apply("where", (condition, a, b)) if not _has_exp(condition):
            left, right = _scale(a), _scale(b)
            return (
                None if left is None or right is None else Apply("where", (condition, left, right))
            )
        case Apply("*", (a, b)) if _has_exp(a) != _has_exp(b):
            grows, factor = (a, b) if _has_exp(a) else (b, a)
            inner = _scale(grows)
            return None if inner is None else Apply("*", (inner, factor))
        case Constant():
            return Apply("*", (x, _DECAYED_ONE))
    return None if _has_exp(x) else Apply("*", (x, _DECAYED_ONE))

"""Move log2(e) into a logit's cheapest factors, so that exp(s - m) becomes exp2(s' - m').

    log2(e) * (a + b)            ->  log2(e) * a + log2(e) * b
    log2(e) * (x * c)            ->  x * (log2(e) * c)      c a number, a constant, a row or column
    log2(e) * where(p, a, b)     ->  where(p, log2(e) * a, log2(e) * b)
    log2(e) * (D_i - D_j)        ->  (D_i - D_j) * log2(e)  prefix sums: the difference comes first
    log2(e) * x                  ->  x * log2(e)            anything else

Takes: the logit of a softmax in normal form.
Gives: the same logit in units of log 2; factors that do not vary with the pair are multiplied once
for a tile.
"""

import math

from gnomon.dsl.nodes import Apply, Constant, Expr, Lookup, Sum, walk
from gnomon.lowering.core import Anchored, Given, Index, PairDot, Read, TransportDot

LOG2E = math.log2(math.e)


def fold_log2e(logit: Expr) -> Expr:
    """The logit times log2(e)."""
    return _times(logit, LOG2E)


def _times(x: Expr, factor: float) -> Expr:
    match x:
        case Constant(value):
            return Constant(float(value) * factor)
        case Apply("-", (Anchored(), Anchored())):
            return Apply("*", (x, Constant(factor)))
        case Apply("+" | "-" as fn, (a, b)):
            return Apply(fn, (_times(a, factor), _times(b, factor)))
        case Apply("neg", (a,)):
            return Apply("neg", (_times(a, factor),))
        case Apply("*", (a, b)):
            if _rank(b) < _rank(a):
                return Apply("*", (a, _times(b, factor)))
            return Apply("*", (_times(a, factor), b))
        case Apply("where", (condition, a, b)):
            return Apply("where", (condition, _times(a, factor), _times(b, factor)))
    return Apply("*", (x, Constant(factor)))


def _rank(x: Expr) -> int:
    """How often a value is formed: 0 once, 1 for a row or column, 2 for a pair."""
    places: set[str] = set()
    for node in walk(x):
        match node:
            case Read(stream):
                places.add(stream.place)
            case Anchored(stream, _):
                places.add(stream.place)
            case Index(place):
                places.add(place)
            case Given(_, place):
                places.add(place)
            case PairDot() | TransportDot() | Sum() | Lookup():
                places.add("pair")
    places.discard("constant")
    if "pair" in places or len(places) > 1:
        return 2
    return len(places)

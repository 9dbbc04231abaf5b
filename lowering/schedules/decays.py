"""Decays under a softmax: how edge tiles keep their digits.

A decay is D_i - D_j, the difference of two prefix sums. Under a softmax D_i leaves the logit
(`drop_row_constants`), and D_j is measured from D_b at the first row b of the query tile. In a tile
of keys before b that loses nothing: where D_j - D_b is large, the pair weighs nothing. In an edge
tile it does: behind a gate near 0 at s, b < s <= j <= i, both sums are far below D_b, and fp32 has
no digits left for their difference. There the logit holds the difference itself. A sum comes as
two numbers of fp32, high + low; D_i - D_j is (high_i - high_j) + (low_i - low_j), where the first
difference is exact as soon as it is small. fp64 would do, at four times the price on a GPU: a
conversion of each key's sum in each of the threads that hold its column.

    whole tiles   w_ij - (D_j - D_b)        row statistics measured from D_i - D_b
    edge tiles    w_ij + (D_i - D_j)        row statistics as they are

`near.py` says how whole tiles do without a difference for each pair.

The running maximum changes from one to the other between the loops. Nothing is lost by that while
the row has seen only keys before b, that is, in front of the last edge. Under a window an edge
comes first and may have had the nearest keys: there whole tiles hold (D_i - D_b) - (D_j - D_b) too.
"""

from dataclasses import dataclass

from gnomon.dsl.nodes import Apply, Expr
from gnomon.lowering.core import Anchored, Attention
from gnomon.lowering.passes.drop_row_constants import terms, total


@dataclass(frozen=True, slots=True)
class Decays:
    """The logit of an edge tile, and the row term in two parts.

    weight  the logit with D_i - D_j in place of -D_j
    moved   the sum of the D_i, which whole tiles leave out
    rest    the other row terms, which all tiles leave out; None where there are none
    column  D_j - D_b where there is one decay, else None
    others  the terms of the logit without it
    """

    weight: Expr
    moved: Expr
    rest: Expr | None
    column: Anchored | None
    others: tuple[tuple[Expr, bool], ...]


def decays_of(attention: Attention) -> Decays | None:
    """The decays of a softmax logit; None where it has none."""
    if attention.normaliser != "softmax" or attention.row_term is None:
        return None
    rows = {
        x.stream.name: x
        for x, positive in terms(attention.row_term)
        if isinstance(x, Anchored) and positive
    }
    logit: list[tuple[Expr, bool]] = []
    others: list[tuple[Expr, bool]] = []
    moved: list[Expr] = []
    column: Anchored | None = None
    for x, positive in terms(attention.weight):
        row = rows.get(x.anchor.name) if isinstance(x, Anchored) and not positive else None
        if row is None or row in moved:
            logit.append((x, positive))
            others.append((x, positive))
        else:
            assert isinstance(x, Anchored)
            moved.append(row)
            logit.append((Apply("-", (row, x)), True))
            column = x if len(moved) == 1 else None
    if not moved:
        return None
    rest = [term for term in terms(attention.row_term) if term[0] not in moved]
    row_sum = total([(x, True) for x in moved])
    return Decays(
        total(logit),
        row_sum,
        total(rest) if rest else None,
        column,
        tuple(others),
    )

"""Near tiles: whole tiles that read a term of two tokens as one number a key and one a row.

    x_ij + r_i    instead of    w_ij + (D_i - D_j)    or of    w_ij + c (i - j)

where x_ij has a number of the key, one operation a pair that the scale's multiplication takes in,
and r_i meets the row's maximum and its log-sum-exp only. With e the last key of a tile and b the
first row of the query tile

    decay   x_ij = w_ij + (D_e - D_j)        r_i = D_b - D_e, beside row statistics that leave out
                                             D_i - D_b (`decays.py`)
    slope   x_ij = w_ij - c (j - first key)  r_i = c (i - first key)

The launch makes D_e - D_j (`Kernel.made`), for tiles that begin at multiples of their size. A gate
near 0 behind j takes no digits from it that matter: no query between j and e sees the tile whole.
In the same way the kernel of key tiles reads D_i - D_b with the log-sum-exp, as one number. All is
in units of log 2.
"""

from dataclasses import dataclass

from gnomon.dsl.nodes import Apply, Constant, Expr
from gnomon.lowering import tile
from gnomon.lowering.core import Anchored, Attention, Given, Read
from gnomon.lowering.passes.drop_row_constants import terms, total
from gnomon.lowering.passes.fold_log2e import LOG2E, fold_log2e
from gnomon.lowering.schedules.decays import Decays
from gnomon.lowering.schedules.formula import DISTANCE, PairTile
from gnomon.lowering.tile import Arange, Cast

OF_KEY = Given("of_key", "column")


@dataclass(frozen=True, slots=True)
class Near:
    """What near tiles read otherwise: a decay D_j - D_b, or the factor c of a distance."""

    others: tuple[tuple[Expr, bool], ...]
    decay: Anchored | None
    slope: Expr | None

    def logit(self) -> Expr:
        """x_ij over a number of the key, which `prepare` gives."""
        if not self.others:
            return OF_KEY
        return Apply("+", (fold_log2e(total(list(self.others))), OF_KEY))

    def prepare(self, pair: PairTile) -> tile.Expr:
        """Load or form the numbers of the keys; gives r_i, a scalar or a tile of rows."""
        if self.decay is not None:
            stream = self.decay.stream
            pair.given[OF_KEY.name] = pair.column.to_end(stream)
            return pair.column.from_end(stream, pair.anchor.first_of(self.decay.anchor))
        assert self.slope is not None
        b, row, column = pair.block, pair.row, pair.column
        factor = b.op("*", pair.value(self.slope), LOG2E)
        places = Cast(Arange(column.extent), "f32")
        pair.given[OF_KEY.name] = pair.let("b_slope", b.op("*", places, b.op("neg", factor)))
        tiles = b.op("-", b.op("+", row.first, pair.frame.shift), column.first)
        distance = b.op("+", Cast(tiles, "f32"), Cast(Arange(row.extent), "f32"))
        return pair.let("b_lift", b.op("*", distance, factor))


def near_of(attention: Attention, decays: Decays | None, *, packed: bool) -> Near | None:
    """How whole tiles can be near ones; None where they cannot."""
    if attention.normaliser != "softmax":
        return None
    if decays is None:
        return _slope(attention)
    # other masks have loops that begin between multiples of a tile, and packed sequences tiles
    aligned = attention.mask.rule in ("causal", "everything") and not packed
    if not aligned or decays.column is None:
        return None
    return Near(decays.others, decays.column, None)


def _slope(attention: Attention) -> Near | None:
    """A logit with one term c (i - j), c a number or a parameter of the head."""
    found: list[Expr] = []
    others: list[tuple[Expr, bool]] = []
    for term, positive in terms(attention.weight):
        match term:
            case Apply("*", (a, b)) if a == DISTANCE and _is_constant(b):
                found.append(b if positive else Apply("neg", (b,)))
            case Apply("*", (a, b)) if b == DISTANCE and _is_constant(a):
                found.append(a if positive else Apply("neg", (a,)))
            case _:
                others.append((term, positive))
    return Near(tuple(others), None, found[0]) if len(found) == 1 else None


def _is_constant(x: Expr) -> bool:
    match x:
        case Constant():
            return True
        case Read(stream):
            return stream.place == "constant" and stream.role in ("scalar", "host")
    return False

"""Tiles that are left out because a decay makes them weigh next to nothing (ACP).

A tile of queries leaves out the keys before its first one that may weigh, a tile of keys the
queries behind its last one: two staircases that the launch makes from the prefix sums (`Reach`).
For every row i, with |w_ij| <= u for the rest of the logit and all keys j that are left out,

    sum_j exp(w_ij + D_i - D_j)  <=  T exp(u - margin)  =  e^log_eps exp(-u)  <=  e^log_eps p_ii

where margin = 2 u + log T - log_eps, and D_i - D_j <= -margin for all pairs of the tile. D need not
be monotone: the launch takes the highest D of the queries and the lowest of all keys so far.

    Lin, Nikishin, He, Courville 2025, Adaptive Computation Pruning for the Forgetting Transformer
"""

from gnomon.dsl.nodes import Apply, Constant, Expr
from gnomon.lowering.core import Attention, PairDot, Read
from gnomon.lowering.made import Reach
from gnomon.lowering.passes.drop_row_constants import total
from gnomon.lowering.schedules.decays import decays_of
from gnomon.lowering.schedules.frame import Frame, Side
from gnomon.lowering.schedules.ranges import Ranges
from gnomon.lowering.tile import Load, Ref, Tensor, Type


def skip_tiles(ranges: Ranges, frame: Frame, side: Side) -> None:
    """Bound the loops of a stationary tile where its attention allows it."""
    how = None if frame.packed else _reach(frame.attention, side)
    if how is None:
        return
    frame.made[how.tensor] = _tensor(how), how
    number = frame.block.op("//", side.first, Ref(side.extent, Type("i32")))
    load = Load(_tensor(how), (frame.batch, frame.h, number), (None, None, None))
    bound = frame.block.let("first" if side.place == "row" else "last", load)
    if how.tensor == "first_key":
        ranges.first = bound
    else:
        ranges.last = bound


def _tensor(how: Reach) -> Tensor:
    axis = "tile_q" if how.tensor == "first_key" else "tile_k"
    return Tensor(how.tensor, ("batch", "head", axis), "i32", "made")


def _reach(attention: Attention, side: Side) -> Reach | None:
    """What the launch makes; None where nothing bounds the rest of the logit."""
    skip, decays = attention.skip, decays_of(attention)
    if skip is None or decays is None or decays.column is None or decays.rest is not None:
        return None
    rest = _dot_and_scale(total(list(decays.others))) if decays.others else None
    if rest is None:
        return None
    dot, scale = rest
    sums = decays.column.anchor.name, decays.column.stream.name
    names = dot.row.name, dot.column.name
    if side.place == "row":
        return Reach("first_key", sums, names, scale, skip.log_eps, skip.bound)
    return Reach("last_query", sums, names, scale, skip.log_eps, skip.bound)


def _dot_and_scale(x: Expr) -> tuple[PairDot, str] | None:
    """The dot of a logit and what it is multiplied by, as text of a launch."""
    match x:
        case PairDot():
            return x, "1.0"
        case Apply("*", (PairDot() as dot, Read(stream))) if stream.role == "host":
            return dot, stream.name
        case Apply("*", (PairDot() as dot, Constant(value))):
            return dot, repr(float(value))
    return None

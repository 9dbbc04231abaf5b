"""What a launch makes before it starts a kernel: tables, sums tile by tile, bounds of loops."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Powers:
    """A table that a launch makes: d ** exponent of the distances d, from -(T_k + BM + BN) on."""

    tensor: str
    exponent: float


@dataclass(frozen=True, slots=True)
class Reach:
    """How far tiles weigh behind a decay, made by a launch: int32 [batch, head, tile].

    first_key   of a tile of BM queries: keys before it weigh below e^log_eps of a row together
    last_query  behind the queries that a tile of BN keys weighs for

    `sums` are the prefix sums of queries and keys; the rest of the logit is at most `bound`, or
    |a| |b| scale for the vectors `dot`.
    """

    tensor: Literal["first_key", "last_query"]
    sums: tuple[str, str]
    dot: tuple[str, str]
    scale: str
    log_eps: float
    bound: float | None


@dataclass(frozen=True, slots=True)
class SumByTile:
    """What a launch makes of a prefix sum x = high + low, in units of log 2, tile by tile.

    last   tensor_t = (x_e - x_t) / ln 2, e the last row of t's tile of `extent` rows
    first  tensor_t = base_t - (x_t - high_b) / ln 2, b its first row: the high digits are what
           kernels measure sums from
    """

    tensor: str
    high: str
    low: str
    extent: str
    anchor: Literal["first", "last"]
    base: str = ""

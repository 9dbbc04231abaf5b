"""Where what a block of rows and a block of tokens of one leaf make together stands in memory.

Rows of block a cross the blocks j <= a of their leaf. Their pairs stand one after another, those of
j = 0 first: all rows that cross a block are neighbours, so that sums over them are plain products.
"""

from gnomon.lowering.build import Block
from gnomon.lowering.schedules.transport.precision import memory
from gnomon.lowering.schedules.transport.stage import Plan, Stage, number
from gnomon.lowering.tile import Arange, Expr, Load

TILES = ("batch", "pair_tile", "head")
"""One number for each pair of a query head."""


def first_pair(b: Block, plan: Plan, leaf: Expr, j: Expr) -> Expr:
    """The pair of block j with its own rows."""
    # of one or two blocks the first j have j times `blocks` pairs
    return b.op("+", b.op("*", leaf, plan.pairs), b.op("*", j, plan.blocks))


def load_vectors(stage: Stage, name: str, row: Expr) -> Load:
    """[BM, BD] of the pair from row `row` on."""
    dtype = memory(stage.plan.precision.once)
    return stage.rows(name, row, dtype, head="head", axis="pair", extent="BM")


def load_scores(stage: Stage, name: str, row: Expr, column: str = "BT") -> Load:
    """[BM, column] of the pair from row `row` on."""
    dtype = memory(stage.plan.precision.once)
    return stage.square(name, row, dtype, head="head", axis="pair", extents=("BM", column))


def store_vectors(stage: Stage, name: str, row: Expr, value: Expr) -> None:
    """[BM, BD] into the pair from row `row` on."""
    dtype = memory(stage.plan.precision.once)
    stage.store_rows(name, row, value, dtype, head="head", axis="pair", extent="BM")


def store_scores(stage: Stage, name: str, row: Expr, value: Expr, column: str = "BT") -> None:
    """[BM, column] into the pair from row `row` on."""
    dtype = memory(stage.plan.precision.once)
    stage.store_square(name, row, value, dtype, head="head", axis="pair", extents=("BM", column))


def load_logits(stage: Stage, first: Expr, column: Expr) -> Load:
    """[BM, BT'] of d_loc, what is hidden included."""
    b = stage.block
    tensor = stage.tensor("d_loc", ("batch", "time", "head", "leaf"), "f32", "in")
    rows = b.op("+", first, Arange("BM"))
    index = (stage.batch, rows, stage.head, b.op("+", column, Arange("BT'")))
    return Load(tensor, index, (None, number("T"), None, None))

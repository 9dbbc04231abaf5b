"""Tile sizes and launch options: given to the lowering, never chosen by it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tiles:
    """One kernel's tunables: BM queries by BN keys a tile; warps and stages count on a GPU only."""

    BM: int
    BN: int
    num_warps: int = 4
    num_stages: int = 2

    def numbers(self, target: str) -> Mapping[str, int]:
        """The tunables that a target's launch takes."""
        tiles = {"BM": self.BM, "BN": self.BN}
        if target == "triton":
            return {**tiles, "num_warps": self.num_warps, "num_stages": self.num_stages}
        return tiles


@dataclass(frozen=True, slots=True)
class Config:
    """The tiles of the three kernels of an attention, and the tokens of a transport's leaf."""

    fwd: Tiles
    bwd_rows: Tiles
    bwd_columns: Tiles
    leaf: int = field(default=64, kw_only=True)

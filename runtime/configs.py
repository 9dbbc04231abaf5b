"""Which tiles a call gets: the look-up of a configuration, with its reason.

The default tables hold what was measured where a measurement is named, and a guess elsewhere.
"""

from dataclasses import dataclass

from gnomon.lowering.config import Config, Tiles


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration and why it was chosen."""

    config: Config
    reason: str


def look_up(target: str, width: int, value_width: int) -> Choice:
    """The tiles for dots of `width` channels and values of `value_width`."""
    widest = max(width, value_width)
    if target == "numba":
        tiles = Tiles(128, 128)
        return Choice(Config(tiles, tiles, tiles), "default of the CPU, measured at d = 64")
    if widest <= 64:
        tiles, columns = Tiles(128, 64, 4, 3), Tiles(64, 64, 4, 2)
    elif widest <= 128:
        tiles, columns = Tiles(128, 64, 8, 2), Tiles(64, 64, 4, 2)
    else:
        tiles = columns = Tiles(64, 32, 8, 1)
    rows = Tiles(tiles.BM, 64, tiles.num_warps, 2) if widest <= 128 else tiles
    return Choice(Config(tiles, rows, columns), "default of the GPU, not measured")

"""Which tiles a call gets: the look-up of a configuration, with its reason.

The default tables hold what was measured where a measurement is named, and a guess elsewhere.
"""

from dataclasses import dataclass, replace

from gnomon.lowering.config import Config, Tiles


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration and why it was chosen."""

    config: Config
    reason: str


def look_up(
    target: str,
    width: int,
    value_width: int,
    io: str = "bf16",
    *,
    numbers: bool = False,
    tree: bool = False,
) -> Choice:
    """The tiles for dots of `width` channels, values of `value_width`, elements of `io`.

    `numbers`: keys have numbers beside their vectors (gates, sums). With those and three stages one
    program alone fits a Hopper SM: FoX forward took 2.19 ms with three stages, 1.68 with two.
    """
    widest = max(width, value_width)
    if target == "numba" and tree:
        tiles = Tiles(64, 64)
        return Choice(Config(tiles, tiles, tiles, leaf=64), "default of the CPU for transports")
    if target == "numba":
        tiles = Tiles(128, 128)
        return Choice(Config(tiles, tiles, tiles), "default of the CPU, measured at d = 64")
    if io == "f32":  # exact products go through registers: small tiles, or they spill for minutes
        tiles = Tiles(32, 32, 4, 1)
        return Choice(Config(tiles, tiles, tiles), "default of the GPU for fp32, not measured")
    if widest <= 64:
        config = Config(Tiles(64, 128, 4, 2), Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2))
    elif widest <= 128:
        fwd = Tiles(64, 64, 4, 2 if numbers else 3)
        config = Config(fwd, Tiles(128, 64, 8, 3), Tiles(32, 64, 4, 3))
    else:
        tiles = Tiles(64, 32, 8, 1)
        return Choice(Config(tiles, tiles, tiles), "default of the GPU, not measured")
    if tree:  # a tile lies in one leaf
        config = replace(config, leaf=128)
        return Choice(config, "default of the GPU for transports, not measured")
    return Choice(config, "default of the GPU, measured on an H200 for plain attention and FoX")

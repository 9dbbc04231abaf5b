"""Which tiles a call gets: the look-up of a configuration, with its reason.

    tuned.ORDER    what was timed or modelled, in the user's store and the shipped tables
    look_up()      else a default, by dtype and width: a guess, said once in the log

The default tables hold what was measured where a measurement is named, and a guess elsewhere.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from gnomon.dsl.errors import InputError
from gnomon.dsl.nodes import Mask, walk
from gnomon.lowering import tile
from gnomon.lowering.config import Config, Tiles
from gnomon.lowering.emit.launch import described_form
from gnomon.lowering.pipelines import Kernels
from gnomon.runtime.gpus import Device
from gnomon.runtime.kernel_digest import digest_of
from gnomon.runtime.offline import TARGETS
from gnomon.runtime.reports import size_of, widths_of
from gnomon.runtime.settings import logger, settings
from gnomon.runtime.tuned import (
    SHIPPED,
    Found,
    Key,
    Query,
    Table,
    Toolchain,
    group_bucket,
    length_bucket,
)
from gnomon.runtime.tuned import look_up as look_up_tuned

ROLES = ("fwd", "bwd_rows", "bwd_columns")
STORE = "tuned"
"""The folder of the store in the folder of the cache."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration and why it was chosen."""

    config: Config
    reason: str


SMALL = 128 * 1024
"""Bytes: a card whose programs have less shared memory gets smaller tiles by default."""


def look_up(
    target: str,
    width: int,
    value_width: int,
    io: str = "bf16",
    *,
    numbers: bool = False,
    dots: int = 1,
    large: bool = False,
    shared: int | None = None,
    tree: bool = False,
) -> Choice:
    """The tiles for dots of `width` channels, values of `value_width`, elements of `io`.

    `shared`: bytes that a program may have on the card; None where it is not known, and has plenty.
    `numbers`: keys have numbers beside their vectors (gates, sums), which take registers, as do
    several `dots` of one pair. `large`: shared memory holds more than queries, keys and values.
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
    if shared is not None and shared < SMALL:
        return Choice(_small(widest), "default of GPUs with little shared memory, not measured")
    if widest > 128:
        tiles = Tiles(64, 32, 8, 1)
        return Choice(Config(tiles, tiles, tiles), "default of the GPU, not measured")
    config = _hopper(widest, numbers=numbers, several=numbers or dots > 1, tree=tree)
    if large and widest > 64:
        config = replace(config, fwd=Tiles(64, 64, 4, 3))
    if tree:  # a tile lies in one leaf
        config = replace(config, leaf=128)
        return Choice(config, "default of the GPU for transports, measured on an H200 for PaTH")
    return Choice(config, "default of the GPU, measured on an H200 for plain attention and FoX")


def _hopper(widest: int, *, numbers: bool, several: bool, tree: bool) -> Config:
    """Tiles that 227 KiB of shared memory hold; by sweeps on an H200 at its sustained clocks."""
    if widest <= 64:
        forward = Tiles(64, 64, 4, 3) if tree else Tiles(64, 128, 4, 3 if numbers else 2)
        return Config(forward, Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2 if numbers else 3))
    rows = Tiles(64, 64, 4, 2) if several else Tiles(128, 64, 8, 3)
    return Config(Tiles(128, 128, 8, 3), rows, Tiles(32 if several else 64, 64, 4, 2))


def _small(widest: int) -> Config:
    """Tiles that 99 KiB of shared memory hold, and AMD's 64: two stages where they fit."""
    if widest <= 64:
        return Config(Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2), Tiles(32, 64, 4, 2))
    if widest <= 128:
        return Config(Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2), Tiles(32, 64, 4, 1))
    return Config(Tiles(32, 32, 4, 1), Tiles(32, 32, 4, 1), Tiles(32, 32, 4, 1))


# ---- what was tuned


@dataclass(frozen=True, slots=True)
class Site:
    """Where a module runs, and the bucket of the shape: one set of tiles holds for all of it."""

    device: Device
    length: int
    groups: int

    @classmethod
    def of(cls, device: Device, length: int, groups: int) -> "Site":
        """The site of a call with `groups` query heads to each key head."""
        return cls(device, length_bucket(length), group_bucket(groups))


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a look-up is done.

    nearest  the first step of `tuned.ORDER` that has something, else the default
    strict   what was timed for exactly this; InputError where there is none
    pinned   by the picks, the device and the toolchain that were pinned: every process that holds
             the same pins launches the same tiles, whatever its own store says
    """

    policy: Literal["nearest", "strict", "pinned"] = "nearest"
    table: Table | None = None
    device: Device | None = None
    toolchain: Toolchain | None = None


NEAREST = Tuning()


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tiles of one kernel, and what they rest on."""

    role: str
    tiles: Tiles
    reason: str
    found: Found | None = None


def choose(
    kernels: Sequence[Kernels],
    widths: tuple[int, int],
    io: str,
    *,
    site: Site,
    packed: bool = False,
    descriptors: bool = False,
    formula: str = "",
    tuning: Tuning = NEAREST,
) -> dict[str, Chosen]:
    """Kernel name -> its tiles for a GPU. Raises InputError where the policy is strict."""
    chosen: dict[str, Chosen] = {}
    default = default_config(kernels, widths, io, device=tuning.device or site.device)
    table = tuning.table if tuning.table is not None else visible()
    toolchain = tuning.toolchain or _toolchain()
    for each in kernels:
        for role in ROLES:
            kernel = getattr(each, role)
            if kernel is None:
                continue
            key = key_of(each, role, widths, io, site, packed=packed, descriptors=descriptors)
            query = Query(key, tuning.device or site.device, toolchain, formula)
            chosen[kernel.name] = _one(table, query, getattr(default.config, role), default, tuning)
    return chosen


def _one(table: Table, query: Query, spare: Tiles, default: Choice, tuning: Tuning) -> Chosen:
    found = look_up_tuned(table, query)
    if tuning.policy == "strict" and (found is None or not found.exact):
        key, came = query.key, found.reason if found else "nothing of this kernel"
        wanted = f"tiles timed for {key.role} of kernel {key.kernel}, {key.widths}, {key.io}"
        wanted += f", T = {key.length}, on {query.device.id} with triton {query.toolchain.triton}"
        raise InputError("tuning", wanted, came, "gnomon tune VARIANT --gpu auto")
    if found is None:
        return Chosen(query.key.role, spare, default.reason)
    return Chosen(query.key.role, Tiles(**found.pick.tiles), found.reason, found)


def default_config(
    kernels: Sequence[Kernels],
    widths: tuple[int, int],
    io: str,
    target: str = "triton",
    *,
    device: Device | None = None,
    shared: int | None = None,
) -> Choice:
    """The default for the kernels of a variant, on a device where it is known.

    `shared`: bytes that a program may have, where only that is known.
    """
    streams = [s for each in kernels for s in each.attention.streams]
    card = None if device is None else TARGETS.get(device.target)
    columns = [[s for s in e.attention.streams if s.place == "column"] for e in kernels]
    dots = [[size_of(s.axes[-1], *widths) for s in c if s.role == "dot"] for c in columns]
    tables = any(s.role in ("table", "vector") for s in streams)
    return look_up(
        target,
        *widths,
        io,
        numbers=any(s.role in ("prefix", "scalar") for c in columns for s in c),
        dots=max(map(len, dots)),
        large=tables or max(map(sum, dots)) > widths[0],
        shared=shared if card is None else card.shared,
        tree=any(each.attention.has_transport() for each in kernels),
    )


def key_of(
    kernels: Kernels,
    role: str,
    widths: tuple[int, int],
    io: str,
    site: Site,
    *,
    packed: bool = False,
    descriptors: bool = False,
) -> Key:
    """What a kernel is looked up by."""
    kernel: tile.Kernel = getattr(kernels, role)
    by_descriptor = is_described(kernels, kernel) if descriptors and not packed else False
    true = widths_of(kernels, *widths)
    shown = " ".join(f"{name}={true[name]}" for name in sorted(true))
    packing = "packed" if packed else "padded"
    sparsity = "data" if _depends_on_data(kernels) else "static"
    digest = digest_of(kernel, descriptors=by_descriptor)
    return Key(digest, role, shown, io, site.length, site.groups, packing, sparsity)


def is_described(kernels: Kernels, kernel: tile.Kernel) -> bool:
    """Whether a module has the kernel in a form with tensor descriptors (emit/module.py)."""
    return kernels.attention.normaliser == "softmax" and described_form(kernel) is not None


def _depends_on_data(kernels: Kernels) -> bool:
    rules = {"same_document", "selected_blocks"}
    return any(isinstance(n, Mask) and n.rule in rules for n in walk(kernels.attention.mask))


def _toolchain() -> Toolchain:
    from gnomon.runtime.here import toolchain

    return toolchain()


# ---- the tables that are read


_LOCK = threading.Lock()
_SAID: set[tuple[str, Site]] = set()


def store() -> Path:
    """The folder of the user's own records."""
    return settings().cache / STORE


def visible() -> Table:
    """What this process may use: the user's store before the shipped tables; read once."""
    return _read(store())


@lru_cache(maxsize=8)
def _read(folder: Path) -> Table:
    return Table.read(folder, SHIPPED)


def forget() -> None:
    """Read the store anew at the next look-up: a tuner has written to it."""
    _read.cache_clear()


def say(variant: str, site: Site, chosen: dict[str, Chosen]) -> None:
    """One line in the log for each variant and site whose tiles are a guess."""
    guesses = [c for c in chosen.values() if c.found is None or c.found.step > 2]
    with _LOCK:
        if not guesses or (variant, site) in _SAID:
            return
        _SAID.add((variant, site))
    roles = ", ".join(dict.fromkeys(c.role for c in guesses))
    logger().warning(
        "%s on %s at T = %d: the tiles of %s are a guess (%s); "
        "`gnomon tune %s --gpu auto` measures",
        variant,
        site.device.id,
        site.length,
        roles,
        guesses[0].reason,
        variant,
    )

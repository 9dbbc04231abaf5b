"""GPUs by name: what a program may use on each, and the rates that a model of a kernel divides by.

    gpu("h200")                       a card of the table
    identify("NVIDIA H100 80GB HBM3") the id of a card, and the family of the table it belongs to

Rates are the vendors' own, dense and without sparsity: NVIDIA's data sheets and architecture white
papers (A100, GA102, Ada, Hopper, Blackwell, RTX Blackwell), AMD's CDNA3 white paper. They are leads
for a ranking, never results.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gnomon.dsl.errors import InputError


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card.

    family      its name in the table
    target      the architecture, as runtime/offline.py names it
    processors  streaming multiprocessors, or compute units
    clock       GHz under load
    matrix      TFLOP/s of 16-bit matrix products that accumulate in fp32
    memory      TB/s of device memory
    l2          MiB of the last cache before it
    shared      bytes of shared memory of a processor, which resident programs share
    threads     resident threads of a processor
    """

    family: str
    target: str
    processors: int
    clock: float
    matrix: float
    memory: float
    l2: int
    shared: int
    threads: int


def _card(
    family: str,
    target: str,
    processors: int,
    clock: float,
    matrix: float,
    memory: float,
    l2: int,
) -> Gpu:
    kibibytes, threads = _RESIDENT[target]
    return Gpu(family, target, processors, clock, matrix, memory, l2, kibibytes * 1024, threads)


# shared memory of a processor in KiB, and its resident threads (the table of the CUDA guide)
_RESIDENT: Mapping[str, tuple[int, int]] = {
    "sm_80": (164, 2048),
    "sm_86": (100, 1536),
    "sm_89": (100, 1536),
    "sm_90": (228, 2048),
    "sm_100": (228, 2048),
    "sm_120": (100, 1536),
    "gfx942": (64, 2048),
}

GPUS: Mapping[str, Gpu] = {
    card.family: card
    for card in (
        _card("a100", "sm_80", 108, 1.41, 312.0, 2.04, 40),
        _card("a10", "sm_86", 72, 1.70, 125.0, 0.60, 6),
        _card("a10g", "sm_86", 80, 1.71, 70.0, 0.60, 6),
        _card("rtx3090", "sm_86", 82, 1.70, 71.0, 0.94, 6),
        _card("l4", "sm_89", 58, 2.04, 121.0, 0.30, 48),
        _card("l40s", "sm_89", 142, 2.52, 362.0, 0.86, 96),
        _card("rtx4090", "sm_89", 128, 2.52, 165.0, 1.01, 72),
        _card("h100", "sm_90", 132, 1.83, 989.0, 3.35, 50),
        _card("h200", "sm_90", 132, 1.83, 989.0, 4.80, 60),
        _card("gh200", "sm_90", 132, 1.83, 989.0, 4.00, 60),
        _card("b200", "sm_100", 148, 1.97, 2250.0, 8.00, 126),
        _card("rtx5090", "sm_120", 170, 2.41, 209.0, 1.79, 96),
        _card("rtxpro6000", "sm_120", 188, 2.60, 252.0, 1.79, 128),
        _card("mi300x", "gfx942", 304, 2.10, 1307.0, 5.30, 256),
    )
}
TYPICAL: Mapping[str, str] = {
    "sm_80": "a100",
    "sm_86": "a10",
    "sm_89": "l40s",
    "sm_90": "h100",
    "sm_100": "b200",
    "sm_120": "rtx5090",
    "gfx942": "mi300x",
}
"""The card that stands for an architecture where only that is known."""

_VENDOR = ("nvidia", "amd", "geforce", "instinct", "tesla", "graphics", "blackwell", "device")


def gpu(name: str) -> Gpu:
    """The card of a name (h200, "RTX PRO 6000") or of an architecture (sm_90).

    Raises InputError with the known names.
    """
    key = re.sub(r"[\s\-_]", "", name.lower())
    family = TYPICAL.get(key.replace("sm", "sm_"), TYPICAL.get(key, key))
    if family not in GPUS:
        raise InputError("--gpu", f"one of {', '.join((*GPUS, *TYPICAL))}", repr(name))
    return GPUS[family]


@dataclass(frozen=True, slots=True)
class Device:
    """A card that is there, or one of the table: what a configuration was found for.

    id          its full name as a slug, nvidia-h100-80gb-hbm3; of the table: the family
    family      the card of the table, or ""
    target      its architecture
    processors  how many it has: a share of a card (MIG) has fewer
    """

    id: str
    family: str
    target: str
    processors: int


def device_of_table(card: Gpu) -> Device:
    """The device that stands for every card of a family."""
    return Device(card.family, card.family, card.target, card.processors)


def identify(name: str, target: str, processors: int) -> Device:
    """The device of a driver's name for it: the slug keeps what distinguishes cards of a family."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    slug = "-".join(words) or "unknown"
    joined = "".join(word for word in words if word not in _VENDOR)
    families = [f for f in GPUS if joined.startswith(f) and GPUS[f].target == target]
    return Device(slug, max(families, key=len, default=""), target, processors)

"""Records of a tuner for the tests: one key, one device, one toolchain, and what differs."""

from typing import Any

from gnomon.runtime.gpus import Device
from gnomon.runtime.tuned import Fault, Key, Pick, Toolchain

KEY = Key("0123456789abcdef", "fwd", "D0=128 DV=128", "bf16", 8192, 1)
HERE = Device("nvidia-h200", "h200", "sm_90", 132)
TOOLS = Toolchain("3.6.0", "of triton 3.6.0", "2.11.0", "580.1")
TILES = {"BM": 128, "BN": 64, "num_warps": 8, "num_stages": 3}


def pick(**given: Any) -> Pick:
    """A pick; tunables by name, or fields of it."""
    tiles = {**TILES, **{n: given.pop(n) for n in list(given) if n in TILES}}
    fields = {"key": KEY, "device": HERE, "toolchain": TOOLS, "source": "timed"}
    return Pick(**{**fields, "tiles": tiles, "formula": "formula", **given})


def fault(**given: Any) -> Fault:
    """A fault of the same tiles."""
    tiles = {**TILES, **{n: given.pop(n) for n in list(given) if n in TILES}}
    fields = {"key": KEY, "device": HERE, "toolchain": TOOLS, "failure": "wrong", "reason": "dq"}
    return Fault(**{**fields, "tiles": tiles, **given})

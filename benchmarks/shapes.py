"""The shapes that are timed: as much data at each length, so that times of one length compare.

    B = 16384 / T,  H = 2048 / D                        up to T = 16384
    B = 1,          H = 16384 * 2048 / (T * D)          beyond: B * T * H * D stays the same

T = 8192 with D = 128 is B = 2, H = 16; T = 32768 with D = 128 is B = 1, H = 8.
"""

from dataclasses import dataclass
from typing import Any

from gnomon.dsl.errors import InputError

TOKENS, CHANNELS = 16384, 2048
"""B * T and H * D of every shape up to T = 16384; a figure of another size meets no target."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The sizes of one call: H query heads, `groups` of them to each key head."""

    B: int
    T: int
    H: int
    groups: int
    D: int

    @property
    def key_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.H // self.groups

    def fields(self) -> dict[str, Any]:
        """What a record says of the sizes."""
        return {"B": self.B, "T": self.T, "H": self.H, "groups": self.groups, "D": self.D}

    def __str__(self) -> str:
        shared = f" ({self.groups} to a key head)" if self.groups > 1 else ""
        return f"T={self.T} D={self.D} B={self.B} H={self.H}{shared}"


def problem_of(
    length: int, dim: int, groups: int = 1, *, tokens: int = TOKENS, channels: int = CHANNELS
) -> Problem:
    """The problem of one length and width, by the rule above. Raises InputError where none fits."""
    batch = max(tokens // length, 1)
    heads = channels * tokens // (dim * length) if length > tokens else channels // dim
    if heads < 1:
        raise InputError(
            "--lengths", f"at most {channels * tokens // dim} at D = {dim}", str(length)
        )
    if heads % groups:
        raise InputError("--groups", f"a divisor of the {heads} heads at D = {dim}", str(groups))
    return Problem(batch, length, heads, groups, dim)

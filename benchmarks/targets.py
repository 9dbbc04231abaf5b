"""The ratios that our kernels must reach, and whether a record does.

A figure counts at B * T = 16384 and H * D = 2048, with a key head to each query head unless a
target says otherwise.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gnomon.benchmarks.shapes import CHANNELS, TOKENS

Record = Mapping[str, Any]
PLAIN = "nope"
"""The variant without position in its score: plain causal attention."""


@dataclass(frozen=True, slots=True)
class Must:
    """The largest ratio of a time of ours to that of `over` on plain attention, by D.

    length  the only T at which it holds, where the target names one
    groups  query heads to a key head
    """

    variants: tuple[str, ...]
    which: str
    ratio: Mapping[int, float]
    over: str = "cudnn"
    length: int | None = None
    groups: int = 1


MUSTS = (
    Must((PLAIN, "fox", "alibi"), "fwd", {128: 1.20, 64: 1.20}),
    Must(("rope",), "fwd", {128: 1.25, 64: 1.25}),
    Must(("fox",), "fwd_bwd", {128: 1.30, 64: 1.30}),
    Must(("fox_pruned",), "fwd_bwd", {128: 0.70, 64: 0.85}, length=8192),
    Must(("tapa",), "fwd", {128: 1.45, 64: 1.65}),
    Must(("tapa",), "fwd_bwd", {128: 1.80, 64: 2.00}),
    Must(
        ("t5", "kerple_log", "kerple_power", "alibi_learned"),
        "fwd_bwd",
        {128: 1.15, 64: 1.15},
        over="gnomon",
    ),
    Must(("path",), "fwd", {128: 3.10, 64: 2.70}, length=2048),
    Must(("path",), "fwd", {128: 1.80, 64: 1.55}, length=8192),
    Must(("path",), "fwd", {128: 1.50, 64: 1.40}, length=8192, groups=4),
    Must(("path",), "fwd", {128: 1.45, 64: 1.30}, length=16384),
    Must(("path",), "fwd_bwd", {128: 3.20, 64: 2.70}, length=2048),
    Must(("path",), "fwd_bwd", {128: 1.90, 64: 1.60}, length=8192),
    Must(("path",), "fwd_bwd", {128: 1.60, 64: 1.40}, length=16384),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A measured ratio beside the one that it must reach; both over `over` on plain attention."""

    record: Record
    ratio: float
    must: float
    over: str

    @property
    def missed_by(self) -> float:
        """How far the ratio is above the target, to the two digits that targets have."""
        return round(round(self.ratio, 2) - self.must, 2)

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.missed_by <= 0


def verdicts(records: Iterable[Record]) -> list[Verdict]:
    """A verdict for each of our records that a target speaks of and that has a time."""
    known = list(records)
    found = []
    for record in known:
        must = must_of(record)
        if must is None or record["median_ms"] is None:
            continue
        base = time_of(known, PLAIN, must.over, record)
        if base is not None:
            ratio = record["median_ms"] / base
            found.append(Verdict(record, ratio, must.ratio[record["D"]], must.over))
    return found


def must_of(record: Record) -> Must | None:
    """The target that a record has to meet, if any."""
    sizes = record["B"] * record["T"], record["H"] * record["D"]
    if record["implementation"] != "gnomon" or sizes != (TOKENS, CHANNELS):
        return None
    for must in MUSTS:
        asked = must.which, must.groups
        is_meant = (
            record["variant"] in must.variants and (record["pass"], record["groups"]) == asked
        )
        if is_meant and record["D"] in must.ratio and must.length in (None, record["T"]):
            return must
    return None


def time_of(
    records: Iterable[Record], variant: str, implementation: str, like: Record
) -> float | None:
    """The median of an implementation of a variant at the shape and pass of another record."""
    keys = ("B", "T", "H", "groups", "D", "dtype", "pass")
    for record in records:
        named = record["variant"], record["implementation"]
        if named == (variant, implementation) and all(record[k] == like[k] for k in keys):
            median: float | None = record["median_ms"]
            return median
    return None

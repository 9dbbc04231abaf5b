"""What a tuner found, as records, and which of them suits a kernel: read here, written by autotune.

A record is one JSON object on one line. The kinds that a look-up reads:

    pick   the tiles for a key, with the figures that they rest on
    fault  tiles that failed for a key (wrong, crashed, hung, did not compile): never used there

A key says what was run (`Key`), a device where (`gpus.Device`), a toolchain what made the binary.
Lines that are cut off or come from somewhere else are passed over: a store is appended to by
processes that may die.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from gnomon.runtime.gpus import Device

LENGTHS = (2048, 8192, 32768)
"""The lengths that stand for all; a length belongs to the nearest by its logarithm."""
GROUPS = (1, 4, 8)
SHIPPED = Path(__file__).with_name("tables")
Source = Literal["timed", "modelled"]
T = TypeVar("T")


def length_bucket(length: int) -> int:
    """2048 up to 4096, 8192 up to 16384, else 32768: limits are the geometric means."""
    return next((n for n in LENGTHS if length <= 2 * n), LENGTHS[-1])


def group_bucket(groups: int) -> int:
    """Query heads of a key head: 1, 4 (2 to 4) or 8 (more)."""
    return next((n for n in GROUPS if groups <= n), GROUPS[-1])


@dataclass(frozen=True, slots=True)
class Key:
    """What was run.

    kernel    digest of the kernel's text with all it calls (runtime/kernel_digest.py)
    role      fwd, bwd_rows or bwd_columns
    widths    true widths by name, "D0=128 DV=128"
    io        f32, f16 or bf16
    length    tokens of a sequence, one of LENGTHS
    groups    query heads of a key head, one of GROUPS
    packing   padded, or packed
    sparsity  static: the mask is in the kernel's text; data: bounds come with the call

    Batch and heads are no part of it: they multiply the programs of a launch, and a GPU is full
    at every length of LENGTHS with the 16384 tokens and 2048 channels that are timed.
    """

    kernel: str
    role: str
    widths: str
    io: str
    length: int
    groups: int
    packing: str = "padded"
    sparsity: str = "static"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What made the binary: versions of Triton, of its assembler, of torch and of the driver."""

    triton: str
    assembler: str = ""
    torch: str = ""
    driver: str = ""

    def apart(self, other: "Toolchain") -> tuple[int, ...]:
        """How far two are from each other: by Triton first, then by the assembler."""
        return (
            *(abs(a - b) for a, b in zip(_parts(self.triton), _parts(other.triton), strict=True)),
            int(self.assembler != other.assembler),
            int(self.driver != other.driver),
        )

    def same_binary(self, other: "Toolchain") -> bool:
        """Whether both make the same code of the same text."""
        return (self.triton, self.assembler) == (other.triton, other.assembler)


def _parts(version: str) -> tuple[int, int, int]:
    numbers = [int(n) for n in re.findall(r"\d+", version)[:3]]
    first, second, third = (*numbers, 0, 0, 0)[:3]
    return first, second, third


@dataclass(frozen=True, slots=True)
class Pick:
    """The tiles for a key on a device.

    source    timed: measured, and right against the oracle; modelled: compiled and ranked only
    variant   name of a variant that has the kernel, and the digest of its formula
    evidence  figures: median_us, low_us, high_us, rounds, shared, registers, spills, modelled_us
    ties      other tiles that no measurement could tell from these
    """

    key: Key
    device: Device
    toolchain: Toolchain
    tiles: Mapping[str, int]
    source: Source
    variant: str = ""
    formula: str = ""
    evidence: Mapping[str, float] = field(default_factory=dict)
    ties: tuple[Mapping[str, int], ...] = ()

    def record(self) -> dict[str, Any]:
        """As it stands in a file."""
        return {"kind": "pick", **asdict(self), "ties": [dict(each) for each in self.ties]}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """From a record. Raises KeyError, TypeError or ValueError where it is none."""
        tiles = checked_tiles(record["tiles"])
        if record["source"] not in ("timed", "modelled"):
            raise ValueError(f"source: expected timed or modelled; got {record['source']!r}")
        return cls(
            built(Key, record["key"]),
            built(Device, record["device"]),
            built(Toolchain, record["toolchain"]),
            tiles,
            record["source"],
            str(record.get("variant", "")),
            str(record.get("formula", "")),
            dict(record.get("evidence", {})),
            tuple(checked_tiles(each) for each in record.get("ties", ())),
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """Tiles that failed for a key, with the class and the words of the failure."""

    key: Key
    device: Device
    toolchain: Toolchain
    tiles: Mapping[str, int]
    failure: str
    reason: str = ""

    def record(self) -> dict[str, Any]:
        """As it stands in a file."""
        return {"kind": "fault", **asdict(self)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """From a record. Raises KeyError, TypeError or ValueError where it is none."""
        return cls(
            built(Key, record["key"]),
            built(Device, record["device"]),
            built(Toolchain, record["toolchain"]),
            checked_tiles(record["tiles"]),
            str(record["failure"]),
            str(record.get("reason", "")),
        )


def built(kind: type[T], values: Any) -> T:
    """A flat dataclass from a JSON object; fields of a later version are passed over."""
    if not isinstance(values, Mapping):
        raise TypeError(f"expected an object for {kind.__name__}; got {type(values).__name__}")
    known = {f.name: values[f.name] for f in fields(kind) if f.name in values}  # type: ignore[arg-type]
    return kind(**known)


def checked_tiles(tiles: Any) -> dict[str, int]:
    """Tunables of a record: names with whole numbers in range. ValueError says what came."""
    if not isinstance(tiles, Mapping) or not tiles:
        raise ValueError(f"tiles: expected an object of whole numbers; got {tiles!r}")
    for name, value in tiles.items():
        most = 32 if name.startswith("num_") else 1024
        if type(value) is not int or not 0 < value <= most:
            raise ValueError(f"tiles: expected 1 to {most} for {name}; got {value!r}")
        if name != "num_stages" and value & (value - 1):
            raise ValueError(f"tiles: expected a power of two for {name}; got {value!r}")
    return dict(tiles)


def same_tiles(a: Mapping[str, int], b: Mapping[str, int]) -> bool:
    """Whether two configurations are one."""
    return dict(a) == dict(b)


# ---- files


def records(paths: Iterable[Path], kinds: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The records of these kinds, in the order of the files; what is no record is passed over."""
    wanted = set(kinds)
    for path in paths:
        for line in _lines(path):
            try:
                record = json.loads(line)
            except ValueError:
                continue  # cut off by a process that died, or half of two
            if isinstance(record, dict) and record.get("kind") in wanted:
                yield record


def _lines(path: Path) -> list[str]:
    """The whole lines of a file; none where it is gone meanwhile (ESTALE, ENOENT, EBUSY)."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()


def files_of(folder: Path) -> list[Path]:
    """The record files of a folder, in a fixed order; none where it is not there."""
    try:
        return sorted(folder.glob("*.jsonl"))
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class Table:
    """Picks and faults in the order of preference: what stands first wins among equals."""

    picks: tuple[Pick, ...] = ()
    faults: tuple[Fault, ...] = ()

    @classmethod
    def read(cls, *folders: Path) -> Self:
        """Of these folders; of two picks for one key in a folder the later one counts."""
        picks: list[Pick] = []
        faults: list[Fault] = []
        for folder in folders:
            own: dict[tuple[object, ...], Pick] = {}
            for record in records(files_of(folder), ("pick", "fault")):
                try:
                    if record["kind"] == "pick":
                        pick = Pick.of(record)
                        own[pick.key, pick.device, pick.toolchain, pick.source] = pick
                    else:
                        faults.append(Fault.of(record))
                except (KeyError, TypeError, ValueError):
                    continue  # from another version, or edited by hand
            picks += own.values()
        return cls(tuple(picks), tuple(faults))

    def quarantined(self, pick: Pick, toolchain: Toolchain) -> bool:
        """Whether the tiles of a pick failed for its kernel on its architecture.

        A fault holds for the compiler that it was seen with: another may be right.
        """
        return any(
            fault.key.kernel == pick.key.kernel
            and fault.key.widths == pick.key.widths
            and fault.key.io == pick.key.io
            and fault.device.target == pick.device.target
            and fault.toolchain.same_binary(toolchain)
            and same_tiles(fault.tiles, pick.tiles)
            for fault in self.faults
        )


# ---- look-up


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for: a kernel of a variant at a shape, here and now."""

    key: Key
    device: Device
    toolchain: Toolchain
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A pick for a query, the step of the order that gave it, and why in words."""

    pick: Pick
    step: int
    reason: str

    @property
    def exact(self) -> bool:
        """Whether it was timed for this kernel, shape, device and toolchain."""
        return self.step == 0


ORDER = (
    "timed for this kernel, shape, device and toolchain",
    "timed for this kernel, shape and device with another toolchain",
    "timed for this kernel on this device at another shape",
    "timed on this device for an earlier text of this variant's kernel",
    "modelled for this kernel on this device, not timed",
    "timed for this kernel on another GPU of this architecture",
    "modelled for this kernel on another GPU of this architecture, not timed",
)
"""The steps of a look-up: the first that has a pick gives it, the nearest where it has several.

Shapes are apart by length, then by group size; toolchains by version; GPUs by family, then by the
number of their processors.
"""


def look_up(table: Table, query: Query) -> Found | None:
    """The pick that suits best, by ORDER; None where no step has one.

    Tiles that failed with this toolchain are never given.
    """
    best: tuple[tuple[Any, ...], Pick] | None = None
    for place, pick in enumerate(table.picks):
        step = _step(pick, query)
        if step is None:
            continue
        rank = (step, *_distance(pick, query), place)
        if (best is None or rank < best[0]) and not table.quarantined(pick, query.toolchain):
            best = rank, pick
    if best is None:
        return None
    step, pick = best[0][0], best[1]
    return Found(pick, step, f"{ORDER[step]}{_difference(pick, query)}")


def _step(pick: Pick, query: Query) -> int | None:
    a, b = pick.key, query.key
    if (a.role, a.widths, a.io, a.packing) != (b.role, b.widths, b.io, b.packing):
        return None
    if pick.device.target != query.device.target:
        return None
    timed = pick.source == "timed"
    same_device = pick.device == query.device or pick.device.id == query.device.family
    if a.kernel != b.kernel:
        is_earlier = pick.formula == query.formula != "" and timed and pick.device == query.device
        return 3 if is_earlier else None
    if timed and pick.device == query.device:
        if a != b:
            return 2
        return 0 if pick.toolchain.same_binary(query.toolchain) else 1
    if timed:
        return 5
    return 4 if same_device else 6


def _distance(pick: Pick, query: Query) -> tuple[Any, ...]:
    lengths = abs(pick.key.length.bit_length() - query.key.length.bit_length())
    groups = abs(pick.key.groups - query.key.groups)
    return (
        pick.device.family != query.device.family,
        abs(pick.device.processors - query.device.processors),
        lengths,
        groups,
        pick.key.sparsity != query.key.sparsity,
        *pick.toolchain.apart(query.toolchain),
    )


def _difference(pick: Pick, query: Query) -> str:
    """What is not as asked for, in words."""
    parts = []
    if not pick.toolchain.same_binary(query.toolchain):
        parts.append(f"triton {pick.toolchain.triton}, here {query.toolchain.triton}")
    if pick.device.id != query.device.id:
        parts.append(f"{pick.device.id}, here {query.device.id}")
    if pick.key.length != query.key.length:
        parts.append(f"T = {pick.key.length}, here {query.key.length}")
    if pick.key.groups != query.key.groups:
        parts.append(f"{pick.key.groups} query heads a key head, here {query.key.groups}")
    return f" ({'; '.join(parts)})" if parts else ""

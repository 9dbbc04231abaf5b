"""The store: a folder of JSON lines, to which many processes append, on whatever file system.

One record a line, one file a process: no two processes write to one file, so that nothing depends
on locks, nor on appends of two hosts to one file, which a network file system may tear. A record is
on disk when `append` returns. Readers pass over a last line that a killed process left half.

    time      one sample of tiles for a key: `us` microseconds of a launch
    compiled  what a compiled kernel needs: shared, registers, spills
    checked   tiles that are right: the worst error of each tensor
    fault     tiles that failed, with class, reason and toolchain
    pick      what a look-up gives
"""

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.runtime.settings import logger
from gnomon.runtime.tuned import Pick, Table, files_of, records

KINDS = ("time", "compiled", "checked", "fault", "pick")
Record = dict[str, Any]
QUIET = 60.0
"""Seconds: `gc` leaves a file alone that was written to within them."""


class Store:
    """Records of a folder, and of this process where the folder cannot be written.

    >>> store = Store(folder)
    >>> store.append({"kind": "time", "key": {...}, "tiles": {...}, "us": 812.4})
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        host = "".join(c if c.isalnum() else "-" for c in socket.gethostname())[:32]
        self.path = folder / f"{host}-{os.getpid()}-{secrets.token_hex(3)}.jsonl"
        self.unwritten: list[Record] = []
        self.trouble = ""

    def append(self, *made: Mapping[str, Any]) -> None:
        """Add records: all on disk, or all kept in memory where that fails, with one warning."""
        if not made:
            return
        text = "".join(_line(record) for record in made)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                _write(handle, text.encode())
            finally:
                os.close(handle)
        except OSError as error:
            self.unwritten += [dict(record) for record in made]
            if not self.trouble:
                self.trouble = f"{self.folder.name}: {error.strerror or error}"
                logger().warning(
                    "%s cannot be written (%s): records of this process are kept in memory alone",
                    self.folder,
                    error.strerror or error,
                )

    def records(self, *kinds: str) -> Iterator[Record]:
        """Every record of these kinds, of all processes, in the order of the files."""
        wanted = kinds or KINDS
        yield from records(files_of(self.folder), wanted)
        yield from (record for record in self.unwritten if record["kind"] in wanted)

    def own(self) -> list[Record]:
        """What this store itself has taken."""
        return [*records([self.path], KINDS), *self.unwritten]

    def table(self) -> Table:
        """The picks and faults."""
        own = Table.read(self.folder)
        extra = [Pick.of(record) for record in self.unwritten if record["kind"] == "pick"]
        return Table((*extra[::-1], *own.picks), own.faults)


def _line(record: Mapping[str, Any]) -> str:
    """A record as one line, the same for equal records."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def _write(handle: int, data: bytes) -> None:
    """All of it, and onto the disk."""
    while data:
        data = data[os.write(handle, data) :]
    os.fsync(handle)


# ---- several stores


@dataclass(frozen=True, slots=True)
class Counted:
    """How many records there were, and how many stay."""

    before: int
    after: int


def merge(into: Path, *others: Path) -> int:
    """Add to a folder what others have and it has not; how many records came.

    Records are compared as text, so that merging twice adds nothing.
    """
    known = {_line(record) for record in records(files_of(into), KINDS)}
    fresh: list[Record] = []
    for other in others:
        paths = [other] if other.is_file() else files_of(other)
        for record in records(paths, KINDS):
            line = _line(record)
            if line not in known:
                known.add(line)
                fresh.append(record)
    Store(into).append(*fresh)
    return len(fresh)


def collect(folder: Path, *, toolchains: Sequence[str] = (), quiet: float = QUIET) -> Counted:
    """Make one file of those that nobody writes to any more; how many records stay, of how many.

    Equal records, picks that a later one replaced, and, where `toolchains` names versions of
    Triton, records of others go. A file is set aside by renaming it before it is read: a process
    that is still there makes itself a new one, and what it wrote meanwhile is read.
    """
    now = time.time()
    for path in files_of(folder):
        with contextlib.suppress(OSError):  # another process collects it
            if now - path.stat().st_mtime >= quiet:
                path.rename(path.with_suffix(_ASIDE))
    taken = sorted(folder.glob(f"*{_ASIDE}"))  # those of a collector that was killed too
    found = list(records(taken, KINDS))
    kept = _without_replaced(found, toolchains)
    store = Store(folder)
    store.append(*kept)
    if not store.unwritten:
        for path in taken:
            path.unlink(missing_ok=True)
    return Counted(len(found), len(kept))


_ASIDE = ".collecting"


def _without_replaced(found: Sequence[Record], toolchains: Sequence[str]) -> list[Record]:
    """Records once, of each pick the last, of these toolchains."""
    last: dict[str, Record] = {}
    for record in found:
        version = record.get("toolchain", {}).get("triton", "")
        if toolchains and version not in toolchains:
            continue
        named = ("kind", "key", "device", "toolchain", "source")
        same = {name: record.get(name) for name in named} if record["kind"] == "pick" else record
        last[_line(same)] = record
    return list(last.values())


@dataclass(frozen=True, slots=True)
class Difference:
    """A key for which two tables have other tiles, or only one has some."""

    first: Pick | None
    second: Pick | None


def difference(first: Table, second: Table) -> list[Difference]:
    """Where two tables differ, by kernel, shape, device and toolchain."""

    def by_key(table: Table) -> dict[object, Pick]:
        found: dict[object, Pick] = {}
        for pick in table.picks:  # what stands first wins
            found.setdefault((pick.key, pick.device, pick.toolchain), pick)
        return found

    a, b = by_key(first), by_key(second)
    return [
        Difference(a.get(key), b.get(key))
        for key in dict.fromkeys((*a, *b))
        if key not in a or key not in b or dict(a[key].tiles) != dict(b[key].tiles)
    ]

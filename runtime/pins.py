"""Pins: one decision about tiles for all processes of a run, and for the run after next.

    pins = shared(pinned())                          rank 0 decides, the others receive
    attention = gnomon.compile(fox, tuning=pins)

Two ranks with stores of their own may launch other tiles, whose sums round otherwise. Pins hold the
picks, the device and the toolchain of the process that made them, and a look-up by pins reads
nothing else. They can be saved beside a checkpoint and loaded for a run that must repeat it.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import distributed

from gnomon.dsl.errors import InputError
from gnomon.runtime.configs import Tuning, visible
from gnomon.runtime.gpus import Device
from gnomon.runtime.here import device_of, toolchain
from gnomon.runtime.tuned import Fault, Pick, Table, Toolchain, built

VERSION = 1


def pinned(device: Device | None = None) -> Tuning:
    """What this process would use now, on its current GPU unless a device is given."""
    return Tuning("pinned", visible(), device or device_of(torch.device("cuda")), toolchain())


def shared(pins: Tuning | None = None, group: distributed.ProcessGroup | None = None) -> Tuning:
    """The pins of rank 0 of a process group, on every rank of it; without a group its own.

    Only rank 0 reads its store and its device. InputError where it gives something else.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return pins or pinned()
    is_first = distributed.get_rank(group) == 0
    box: list[object] = [(pins or pinned()) if is_first else None]
    source = distributed.get_global_rank(group, 0) if group is not None else 0
    distributed.broadcast_object_list(box, src=source, group=group)
    if not isinstance(box[0], Tuning):
        raise InputError("pins", "pins of rank 0", f"a {type(box[0]).__name__}")
    return box[0]


def save(pins: Tuning, path: Path) -> None:
    """Write pins as JSON. Raises InputError for a look-up that is not pinned."""
    if pins.table is None or pins.device is None or pins.toolchain is None:
        raise InputError("pins", "what pinned() gives", f"a look-up that is {pins.policy}")
    document = {
        "gnomon_pins": VERSION,
        "device": asdict(pins.device),
        "toolchain": asdict(pins.toolchain),
        "picks": [pick.record() for pick in pins.table.picks],
        "faults": [fault.record() for fault in pins.table.faults],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Tuning:
    """Pins from a file. Raises InputError where the file holds none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document["gnomon_pins"]
        table = Table(
            tuple(Pick.of(record) for record in document["picks"]),
            tuple(Fault.of(record) for record in document["faults"]),
        )
        device, tools = built(Device, document["device"]), built(Toolchain, document["toolchain"])
    except (KeyError, TypeError, ValueError) as error:
        came = f"{path.name}: {type(error).__name__}: {error}"
        raise InputError("pins", "a file that pins.save wrote", came) from None
    if version != VERSION:
        raise InputError("pins", f"version {VERSION}", f"version {version} in {path.name}")
    return Tuning("pinned", table, device, tools)

"""What was found, in the formats of other projects.

Triton   <kernel>.autotune.json of its cache (3.4 and newer): the key, and pairs of a configuration
         and its three quantiles in milliseconds. Triton computes the name of the folder from its
         own hash of the source, so that the file is for tools that read it.
FLA      configs/<GPU>/<kernel>.json of flash-linear-attention: entries under the md5 of their key,
         and the default that its modes `full`, `default` and `always` fall back to.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gnomon.autotune.store import Record
from gnomon.runtime.tuned import Key, Pick, built

Document = dict[str, Any]


def name_of(pick: Pick) -> str:
    """The name of the kernel in a generated module: fox_fwd."""
    return f"{pick.variant or pick.key.kernel}_{pick.key.role}"


def triton_config(tiles: Mapping[str, int]) -> Document:
    """A triton.Config by its fields."""
    options = ("num_warps", "num_stages")
    return {
        "kwargs": {name: value for name, value in tiles.items() if name not in options},
        **{name: tiles[name] for name in options if name in tiles},
        "num_ctas": 1,
        "maxnreg": None,
        "pre_hook": None,
        "ir_override": None,
    }


def triton(samples: Iterable[Record]) -> dict[str, Document]:
    """File name -> document, from records of kind `time`; one for each kernel and shape."""
    found: dict[tuple[str, Key], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in samples:
        key = built(Key, record["key"])
        tiles = json.dumps(record["tiles"], sort_keys=True)
        found[record.get("variant", ""), key][tiles].append(float(record["us"]) / 1e3)
    documents = {}
    for (variant, key), timings in found.items():
        pairs = [
            [triton_config(json.loads(tiles)), [median(ms), min(ms), max(ms)]]
            for tiles, ms in sorted(timings.items(), key=lambda item: median(item[1]))
        ]
        name = f"{variant or key.kernel}_{key.role}"
        shape = f"{key.widths.replace(' ', '_').replace('=', '')}_T{key.length}_G{key.groups}"
        documents[f"{name}.{shape}.{key.io}.autotune.json"] = {
            "key": _shape(key),
            "configs_timings": pairs,
        }
    return documents


def fla(picks: Sequence[Pick], gpu: str) -> dict[str, Document]:
    """Path below FLA_CONFIG_DIR's parent -> document: one for each kernel.

    The default is the pick for 8192 tokens, or the first.
    """
    by_name: dict[str, list[Pick]] = defaultdict(list)
    for pick in picks:
        by_name[name_of(pick)].append(pick)
    folder = re.sub(r"[^0-9A-Za-z]+", "_", gpu).strip("_") or "unknown_gpu"
    documents = {}
    for name, own in by_name.items():
        entries = {}
        for pick in own:
            key = _shape(pick.key)
            text = json.dumps(key, separators=(",", ":"), sort_keys=True)
            hashed = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
            entries[hashed] = {"autotune_key": key, "config": triton_config(pick.tiles)}
        usual = next((p for p in own if p.key.length == 8192), own[0])
        documents[f"{folder}/{name}.json"] = {
            "kernel_name": name,
            "triton_version": usual.toolchain.triton,
            "autotune_entries": entries,
            "default_config": triton_config(usual.tiles),
        }
    return documents


def _shape(key: Key) -> list[Any]:
    """A tuning key: numbers first, then the dtype as torch writes it."""
    numbers = [int(n) for n in re.findall(r"=(\d+)", key.widths)]
    dtypes = {"bf16": "torch.bfloat16", "f16": "torch.float16", "f32": "torch.float32"}
    return [key.length, key.groups, *numbers, dtypes[key.io]]


def write(documents: Mapping[str, Document], folder: Path) -> list[Path]:
    """The files, made below a folder; their paths."""
    written = []
    for name, document in documents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        written.append(path)
    return written


def shipped(picks: Sequence[Pick], folder: Path) -> list[Path]:
    """Tables as they are shipped: a file of JSON lines for each device, sorted, written whole.

    Of two picks for one key, device and source the later one stays; what was timed comes first.
    """
    by_device: dict[str, dict[tuple[object, ...], Pick]] = defaultdict(dict)
    for pick in picks:
        by_device[pick.device.id][pick.key, pick.device, pick.source] = pick
    written = []
    for device, own in sorted(by_device.items()):
        order = sorted(own.values(), key=_order)
        lines = (json.dumps(p.record(), sort_keys=True, separators=(",", ":")) for p in order)
        path = folder / f"{device}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".tmp")
        beside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        beside.replace(path)
        written.append(path)
    return written


def _order(pick: Pick) -> tuple[object, ...]:
    key = pick.key
    return pick.source != "timed", pick.variant, key.role, key.widths, key.length, key.groups

"""The store: appended by many, merged, collected, compared; what a kill or a full disk does."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuned_records import HERE, KEY, TOOLS, fault, pick

from gnomon.autotune import formats
from gnomon.autotune.store import KINDS, Store, collect, difference, merge
from gnomon.runtime.tuned import Table, Toolchain


def sample(us: float, **tiles: int) -> dict[str, Any]:
    record = pick(**tiles).record()
    named = {n: record[n] for n in ("key", "device", "toolchain", "tiles")}
    return {"kind": "time", **named, "variant": "fox", "us": us, "run": "a", "round": 0}


def lines(folder: Path) -> list[str]:
    return [x for path in sorted(folder.glob("*.jsonl")) for x in path.read_text().splitlines()]


def test_records_are_on_disk_when_append_returns(tmp_path: Path) -> None:
    store = Store(tmp_path / "tuned")
    store.append(sample(1.0), sample(2.0))
    store.append()
    assert [json.loads(line)["us"] for line in lines(tmp_path / "tuned")] == [1.0, 2.0]
    assert [r["us"] for r in Store(tmp_path / "tuned").records("time")] == [1.0, 2.0]


def test_a_number_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Store(tmp_path).append(sample(float("nan")))
    assert lines(tmp_path) == []


WRITER = """
import sys
from pathlib import Path
from gnomon.autotune.store import Store
store = Store(Path(sys.argv[1]))
for n in range(200):
    store.append({"kind": "time", "writer": int(sys.argv[2]), "n": n, "pad": "x" * 3000})
"""


def test_eight_processes_at_once_lose_and_mix_nothing(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / ".pyroot")}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(n)], env=environment)
        for n in range(8)
    ]
    assert [writer.wait(120) for writer in writers] == [0] * 8
    found = [json.loads(line) for line in lines(tmp_path)]
    assert {(r["writer"], r["n"]) for r in found} == {(w, n) for w in range(8) for n in range(200)}
    assert len(found) == 1600


def test_threads_share_one_store(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def write(number: int) -> None:
        for count in range(50):
            store.append(sample(number + count / 100))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({json.loads(line)["us"] for line in lines(tmp_path)}) == 200


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.ESTALE, errno.EACCES])
def test_a_disk_that_refuses_keeps_records_in_memory(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any, **given: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    store = Store(tmp_path)
    store.append(sample(1.0))
    store.append(pick(BM=32).record())
    assert [r["us"] for r in store.records("time")] == [1.0]
    assert store.table().picks[0].tiles["BM"] == 32
    assert len(caplog.records) == 1
    assert os.strerror(number) in caplog.text


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EBUSY, errno.ENOENT])
def test_a_file_that_goes_while_it_is_read_is_passed_over(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(sample(1.0)) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps(sample(2.0)) + "\n")
    real = Path.read_text

    def read(self: Path, *args: Any, **given: Any) -> str:
        if self.name == "a.jsonl":
            raise OSError(number, os.strerror(number))
        return real(self, *args, **given)

    monkeypatch.setattr(Path, "read_text", read)
    assert [r["us"] for r in Store(tmp_path).records("time")] == [2.0]


# ---- merge, gc, diff


def test_merging_twice_adds_nothing(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    Store(a).append(sample(1.0), sample(2.0))
    Store(b).append(sample(2.0), sample(3.0), pick().record())
    assert merge(a, b) == 2
    assert merge(a, b) == 0
    assert sorted(r["us"] for r in Store(a).records("time")) == [1.0, 2.0, 3.0]
    assert Table.read(a).picks == (pick(),)
    single = next(b.glob("*.jsonl"))
    assert merge(tmp_path / "c", single) == 3


def old(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        os.utime(path, (time.time() - 3600, time.time() - 3600))


def test_collecting_keeps_one_file_without_doubles_and_replaced_picks(tmp_path: Path) -> None:
    Store(tmp_path).append(sample(1.0), pick(BM=32).record())
    Store(tmp_path).append(sample(1.0), sample(2.0), pick(BM=64).record(), fault().record())
    before = Table.read(tmp_path)
    old(tmp_path)
    counted = collect(tmp_path)
    assert (counted.before, counted.after) == (6, 4)
    assert len(list(tmp_path.iterdir())) == 1
    assert Table.read(tmp_path).faults == before.faults
    assert len(Table.read(tmp_path).picks) == 1


def test_collecting_leaves_a_file_that_somebody_writes_to(tmp_path: Path) -> None:
    busy = Store(tmp_path)
    busy.append(sample(1.0))
    assert collect(tmp_path).before == 0
    assert [path.name for path in tmp_path.iterdir()] == [busy.path.name]


def test_collecting_drops_other_toolchains_when_asked(tmp_path: Path) -> None:
    older = pick(toolchain=Toolchain("3.5.1", "x"))
    Store(tmp_path).append(pick().record(), older.record())
    old(tmp_path)
    collect(tmp_path, toolchains=["3.6.0"])
    assert Table.read(tmp_path).picks == (pick(),)


def test_a_collector_that_was_killed_loses_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(sample(1.0))
    store.path.rename(store.path.with_suffix(".collecting"))
    collect(tmp_path)
    assert [r["us"] for r in Store(tmp_path).records("time")] == [1.0]


def test_where_two_stores_differ() -> None:
    far = pick(key=replace(KEY, length=2048))
    found = difference(Table((pick(), far)), Table((pick(BM=32),)))
    pairs = [(x.first and x.first.tiles["BM"], x.second and x.second.tiles["BM"]) for x in found]
    assert pairs == [(128, 32), (128, None)]
    assert difference(Table((pick(),)), Table((pick(),))) == []


# ---- formats of other projects


def test_the_format_of_tritons_cache() -> None:
    documents = formats.triton([sample(1000.0), sample(3000.0), sample(500.0, BM=64)])
    ((name, document),) = documents.items()
    assert name == "fox_fwd.D0128_DV128_T8192_G1.bf16.autotune.json"
    assert document["key"] == [8192, 1, 128, 128, "torch.bfloat16"]
    timings = {
        (config["kwargs"]["BM"], config["num_warps"]): times
        for config, times in document["configs_timings"]
    }
    assert timings == {(64, 8): [0.5, 0.5, 0.5], (128, 8): [2.0, 1.0, 3.0]}


def test_triton_reads_its_format_back() -> None:
    from triton import Config

    ((_, document),) = formats.triton([sample(1000.0)]).items()
    made = [Config(**config) for config, _ in document["configs_timings"]]
    assert [(c.kwargs, c.num_warps, c.num_stages) for c in made] == [({"BM": 128, "BN": 64}, 8, 3)]


def test_the_format_of_flas_config_cache(tmp_path: Path) -> None:
    """Entries are found by the md5 of the key as compact JSON with sorted keys."""
    short = pick(variant="fox", BM=32, key=replace(KEY, length=2048))
    documents = formats.fla([short, pick(variant="fox")], "NVIDIA H200")
    (path,) = formats.write(documents, tmp_path)
    assert path == tmp_path / "NVIDIA_H200" / "fox_fwd.json"
    document = json.loads(path.read_text())
    assert document["kernel_name"] == "fox_fwd"
    assert document["triton_version"] == "3.6.0"
    assert document["default_config"]["kwargs"] == {"BM": 128, "BN": 64}
    # printf '[8192,1,128,128,"torch.bfloat16"]' | md5sum
    entry = document["autotune_entries"]["eb8be3272d4588b05bd1d3557c7dd364"]
    assert entry["config"]["num_warps"] == 8


def test_shipped_tables_are_sorted_whole_and_read_back(tmp_path: Path) -> None:
    modelled = pick(source="modelled", BM=32)
    other = pick(device=replace(HERE, id="nvidia-h100"), toolchain=TOOLS)
    paths = formats.shipped([modelled, other, pick(BM=64), pick()], tmp_path)
    assert [path.name for path in paths] == ["nvidia-h100.jsonl", "nvidia-h200.jsonl"]
    found = [(p.device.id, p.source, p.tiles["BM"]) for p in Table.read(tmp_path).picks]
    assert found == [
        ("nvidia-h100", "timed", 128),
        ("nvidia-h200", "timed", 128),
        ("nvidia-h200", "modelled", 32),
    ]
    first = paths[1].read_text()
    formats.shipped([pick(), modelled], tmp_path)
    assert paths[1].read_text() == first
    assert KINDS == ("time", "compiled", "checked", "fault", "pick")

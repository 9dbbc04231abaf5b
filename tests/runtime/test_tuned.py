"""The look-up of tuned tiles: its order, its reasons, and what a damaged store does to it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuned_records import HERE, KEY, TOOLS, fault, pick

from gnomon.runtime.gpus import Device, identify
from gnomon.runtime.tuned import (
    ORDER,
    Pick,
    Query,
    Table,
    Toolchain,
    group_bucket,
    length_bucket,
    look_up,
)

QUERY = Query(KEY, HERE, TOOLS, "formula")
H100 = Device("nvidia-h100-80gb-hbm3", "h100", "sm_90", 132)
SHARE = Device("nvidia-h200", "h200", "sm_90", 60)
BY_STEP = (
    pick(),
    pick(toolchain=Toolchain("3.7.1", "of triton 3.7.1")),
    pick(key=replace(KEY, length=32768)),
    pick(key=replace(KEY, kernel="an earlier text")),
    pick(source="modelled"),
    pick(device=H100),
    pick(device=H100, source="modelled"),
)


@pytest.mark.parametrize("step", range(len(ORDER)))
def test_each_step_gives_when_those_before_it_have_nothing(step: int) -> None:
    found = look_up(Table(BY_STEP[step:][::-1]), QUERY)
    assert found is not None
    assert found.pick == BY_STEP[step]
    assert found.step == step
    assert found.reason.startswith(ORDER[step])
    assert found.exact == (step == 0)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (BY_STEP[1], " (triton 3.7.1, here 3.6.0)"),
        (BY_STEP[2], " (T = 32768, here 8192)"),
        (pick(key=replace(KEY, groups=8)), " (8 query heads a key head, here 1)"),
        (BY_STEP[5], " (nvidia-h100-80gb-hbm3, here nvidia-h200)"),
        (pick(device=SHARE), ""),
    ],
)
def test_the_reason_says_what_is_not_as_asked_for(other: Pick, reason: str) -> None:
    found = look_up(Table((other,)), QUERY)
    assert found is not None
    assert found.reason == ORDER[found.step] + reason


@pytest.mark.parametrize(
    "other",
    [
        pick(key=replace(KEY, role="bwd_rows")),
        pick(key=replace(KEY, widths="D0=64 DV=64")),
        pick(key=replace(KEY, io="f16")),
        pick(key=replace(KEY, packing="packed")),
        pick(key=replace(KEY, kernel="another kernel"), formula="another formula"),
        pick(device=Device("nvidia-a100", "a100", "sm_80", 108)),
    ],
    ids=["role", "widths", "dtype", "packing", "kernel", "architecture"],
)
def test_what_was_found_for_something_else_is_not_given(other: Pick) -> None:
    assert look_up(Table((other,)), QUERY) is None


def test_the_nearest_toolchain_counts_not_the_first() -> None:
    far = pick(toolchain=Toolchain("3.3.1", "x"), BM=32)
    near = pick(toolchain=Toolchain("3.5.1", "x"), BM=64)
    later = pick(toolchain=Toolchain("3.9.0", "x"), BM=128)
    found = look_up(Table((far, later, near)), QUERY)
    assert found is not None
    assert found.pick == near


def test_another_assembler_makes_another_binary() -> None:
    found = look_up(Table((pick(toolchain=replace(TOOLS, assembler="13.0")),)), QUERY)
    assert found is not None
    assert found.step == 1


def test_the_nearest_length_counts() -> None:
    short, long = (pick(key=replace(KEY, length=n), BM=m) for n, m in ((2048, 32), (8192, 128)))
    found = look_up(Table((short, long)), replace(QUERY, key=replace(KEY, length=32768)))
    assert found is not None
    assert found.pick == long


def test_a_share_of_a_card_is_another_device() -> None:
    whole = look_up(Table((pick(device=SHARE),)), QUERY)
    assert whole is not None
    assert whole.step == 5


def test_tiles_that_failed_with_this_toolchain_are_not_given() -> None:
    table = Table((pick(BM=128), pick(key=replace(KEY, length=2048), BM=32)), (fault(BM=128),))
    found = look_up(table, QUERY)
    assert found is not None
    assert found.pick.tiles["BM"] == 32
    other = replace(QUERY, toolchain=Toolchain("3.7.1", "of triton 3.7.1"))
    again = look_up(table, other)
    assert again is not None
    assert again.pick.tiles["BM"] == 128


@pytest.mark.parametrize(
    ("length", "bucket"),
    [(1, 2048), (4096, 2048), (4097, 8192), (16384, 8192), (16385, 32768), (10**6, 32768)],
)
def test_buckets_of_lengths(length: int, bucket: int) -> None:
    assert length_bucket(length) == bucket


def test_buckets_of_groups() -> None:
    assert [group_bucket(n) for n in (1, 2, 4, 5, 8, 64)] == [1, 4, 4, 8, 8, 8]


# ---- files


def write(path: Path, *records: Any) -> None:
    lines = (r if isinstance(r, str) else json.dumps(r) for r in records)
    path.write_text("\n".join(lines) + "\n")


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    ties = ({"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3},)
    one = replace(pick(), evidence={"median_us": 12.5}, ties=ties, variant="fox")
    write(tmp_path / "a.jsonl", one.record(), fault().record())
    table = Table.read(tmp_path)
    assert table == Table((one,), (fault(),))


@pytest.mark.parametrize(
    "line",
    [
        "",
        '{"kind": "pick", "key": {"kern',
        '{"kind": "pick"}',
        '{"kind": "pick", "key": 3}',
        "[1, 2]",
        "\0\0\0",
        json.dumps({**pick().record(), "tiles": {"BM": 48}}),
        json.dumps({**pick().record(), "tiles": {"BM": 1 << 20}}),
        json.dumps({**pick().record(), "tiles": {"num_warps": 64}}),
        json.dumps({**pick().record(), "tiles": {"BM": True}}),
        json.dumps({**pick().record(), "tiles": {}}),
        json.dumps({**pick().record(), "source": "dreamt"}),
    ],
)
def test_a_line_that_is_no_record_is_passed_over(tmp_path: Path, line: str) -> None:
    write(tmp_path / "a.jsonl", line, pick().record())
    assert Table.read(tmp_path).picks == (pick(),)


@pytest.mark.parametrize("keep", [0, 0.5])
def test_a_truncated_file(tmp_path: Path, keep: float) -> None:
    """Cut to nothing, and cut in the middle of its second record."""
    path = tmp_path / "a.jsonl"
    write(path, pick().record(), pick(BM=32, key=replace(KEY, length=2048)).record())
    text = path.read_bytes()
    path.write_bytes(text[: int(len(text) * keep) + 40 * bool(keep)])
    assert Table.read(tmp_path).picks == ((pick(),) if keep else ())


def test_a_folder_that_is_not_there_is_an_empty_store(tmp_path: Path) -> None:
    assert Table.read(tmp_path / "none") == Table()


def test_of_two_folders_the_first_wins_and_in_a_folder_the_later_line(tmp_path: Path) -> None:
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    own.mkdir()
    shipped.mkdir()
    write(shipped / "h200.jsonl", pick(BM=16).record())
    write(own / "b.jsonl", pick(BM=32).record(), pick(BM=64).record())
    found = look_up(Table.read(own, shipped), QUERY)
    assert found is not None
    assert found.pick.tiles["BM"] == 64


# ---- names of devices


@pytest.mark.parametrize(
    ("name", "target", "id", "family"),
    [
        ("NVIDIA H200", "sm_90", "nvidia-h200", "h200"),
        ("NVIDIA H100 80GB HBM3", "sm_90", "nvidia-h100-80gb-hbm3", "h100"),
        ("NVIDIA H100", "sm_90", "nvidia-h100", "h100"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", "nvidia-a100-sxm4-80gb", "a100"),
        ("NVIDIA A10G", "sm_86", "nvidia-a10g", "a10g"),
        ("NVIDIA GeForce RTX 4090", "sm_89", "nvidia-geforce-rtx-4090", "rtx4090"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "sm_120",
            "nvidia-rtx-pro-6000-blackwell-server-edition",
            "rtxpro6000",
        ),
        ("AMD Instinct MI300X", "gfx942", "amd-instinct-mi300x", "mi300x"),
        ("AMD Radeon MI50/MI60", "gfx906", "amd-radeon-mi50-mi60", ""),
        ("", "sm_90", "unknown", ""),
    ],
)
def test_the_name_of_a_driver_becomes_an_id_and_a_family(
    name: str, target: str, id: str, family: str
) -> None:
    assert identify(name, target, 132) == Device(id, family, target, 132)

"""Rows without keys, keys that nobody sees, and what stands in memory behind the mask."""

import math
from typing import Any

import pytest
import torch
from compiled_calls import assert_bitwise, fox_call, normal, offsets, qkv, windowed
from kernel_calls import (
    DEVICE,
    HALF_DTYPE,
    Judge,
    compiled,
    figures,
    group,
    kernel_test,
    on_device,
    oracle,
    pick,
    results,
    width,
)
from torch import Tensor

import gnomon as gn

pytestmark = kernel_test
NOPE = gn.catalogue.nope
FOX = gn.catalogue.fox
POISON = [math.nan, math.inf, -math.inf]


def call(time: int, **sizes: Any) -> dict[str, Tensor]:
    """q, k, v in 16 bits: the kernels that matter most."""
    return on_device(qkv(time, **{"dtype": HALF_DTYPE, "dim": width(), **sizes}))


def seen(queries: int, keys: int, *, strict: bool = False) -> list[list[int]]:
    """The keys that each row weighs equally where q is 0: v_j is the j-th unit vector."""
    q, k = torch.zeros(1, queries, 1, 16), normal(1, keys, 1, 16)
    v = torch.eye(keys)[None, :, None, :]
    function = compiled((windowed if strict else NOPE).node)
    out = function(*(x.to(DEVICE) for x in (q, k, v)))[0, :, 0].cpu()
    found = [row.nonzero()[:, 0].tolist() for row in out]
    for row, which in zip(out, found, strict=True):
        assert torch.allclose(row[which], torch.tensor(1 / max(len(which), 1)))
    return found


@group("seen")
@pytest.mark.parametrize(
    ("queries", "keys", "expected"),
    [
        (2, 5, [[0, 1, 2, 3], [0, 1, 2, 3, 4]]),
        (5, 2, [[], [], [], [0], [0, 1]]),
        (1, 7, [[0, 1, 2, 3, 4, 5, 6]]),
        (3, 3, [[0], [0, 1], [0, 1, 2]]),
    ],
)
def test_the_last_query_stands_on_the_last_key(
    queries: int, keys: int, expected: list[list[int]]
) -> None:
    assert seen(queries, keys) == expected


@group("seen")
def test_a_strict_window_sees_what_stands_before_it() -> None:
    assert seen(2, 4, strict=True) == [[0, 1], [0, 1, 2]]
    assert seen(3, 1, strict=True) == [[], [], []]


@group("rows nope")
@pytest.mark.parametrize(("queries", "keys"), [(5, 2), (130, 70), (70, 1), (3, 0)])
def test_rows_without_keys_are_zero_and_give_nothing(queries: int, keys: int, judge: Judge) -> None:
    tensors = call(keys, queries=queries, kv_heads=1)
    made, expected = results(NOPE, tensors), oracle(NOPE, tensors)
    # a row of one key has gradient 0, and 16 bits leave of do . v - do . o what they must
    judge(figures(f"{queries} queries, {keys} keys", NOPE, expected, made))
    dead = queries - keys
    assert not made["out"][:, :dead].any()  # not the mean of v
    assert (made["lse"][:, :dead] == -math.inf).all()
    assert not made["dq"][:, :dead].any()
    assert made["lse"][:, dead:].isfinite().all()


@group("rows windowed")
@pytest.mark.parametrize("poison", POISON, ids=str)
@pytest.mark.parametrize("queries", [7, 70, 130])
def test_poison_in_rows_without_keys_stays_there(queries: int, poison: float) -> None:
    """A loss behind torch.where gives such rows a gradient of NaN; their q may be anything."""
    tensors = call(70, queries=queries)
    do = normal(1, queries, 2, width(), seed=5, dtype=HALF_DTYPE).to(DEVICE)
    clean = results(windowed, tensors, do=do)
    dead = (clean["lse"] == -math.inf)[0, :, 0]
    assert dead.any() == (queries >= 70)
    tensors["q"][:, dead] = poison
    do[:, dead] = poison
    assert_bitwise(results(windowed, tensors, do=do), clean)


@group("rows windowed")
@pytest.mark.parametrize("poison", POISON, ids=str)
@pytest.mark.parametrize(
    ("queries", "keys"), pick([(1, 100), (20, 300), (64, 64), (65, 65), (70, 340)], [(20, 130)])
)
def test_poison_in_keys_that_nobody_sees_stays_there(
    queries: int, keys: int, poison: float
) -> None:
    tensors = call(keys, queries=queries, kv_heads=1)
    clean = results(windowed, tensors)
    hidden = torch.ones(keys, dtype=torch.bool)
    hidden[max(0, keys - queries - 79) : keys - 1] = False
    assert not clean["dk"][:, hidden].any()
    assert not clean["dv"][:, hidden].any()
    tensors["k"][:, hidden] = poison
    tensors["v"][:, hidden] = poison
    assert_bitwise(results(windowed, tensors), clean)


@group("rows packed")
@pytest.mark.parametrize("poison", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("variant", [windowed, FOX], ids=lambda v: v.node.name)
def test_poison_in_a_packed_sequence_stays_in_it(variant: Any, poison: float) -> None:
    """Tiles end beyond their sequence: what they load of the next one has weight 0, not NaN * 0."""
    tensors, cu = call(150), offsets(70, 0, 1, 79)
    if variant is FOX:
        tensors["log_f"] = fox_call(150)["log_f"].to(DEVICE)
    clean = results(variant, tensors, cu_seqlens=cu)
    bad = {name: x.clone() for name, x in tensors.items()}
    for x in bad.values():
        x[:, 71:] = poison
    made = results(variant, bad, cu_seqlens=cu)
    for name, value in clean.items():
        assert torch.equal(made[name][:, :71], value[:, :71]), name


@group("rows windowed")
def test_poison_in_one_batch_and_head_stays_there() -> None:
    tensors = call(100, batch=2, heads=4, kv_heads=2)
    clean = results(windowed, tensors)
    for name, head in (("q", slice(2, 4)), ("k", slice(1, 2)), ("v", slice(1, 2))):
        tensors[name][1, :, head] = math.nan
    made = results(windowed, tensors)
    for name, value in clean.items():
        half = value.shape[2] // 2
        assert torch.equal(made[name][0], value[0]), name
        assert torch.equal(made[name][1, :, :half], value[1, :, :half]), name


def inside(x: Tensor, around: float, channels: int) -> Tensor:
    """The same values inside of a larger tensor: rows, heads and batches of another number."""
    batch, time, heads, dim = x.shape
    larger = x.new_full((batch + 2, time + 128, heads + 2, dim + 2 * channels), around)
    inner = larger[1:-1, 64:-64, 1:-1, channels : dim + channels]
    return inner.copy_(x)


@group("rows around")
@pytest.mark.parametrize("channels", [0, 8, 3])
@pytest.mark.parametrize("time", pick([1, 63, 65, 129], [33]))
def test_what_stands_around_the_tensors_is_never_read(time: int, channels: int) -> None:
    tensors = call(time)
    do = normal(1, time, 2, width(), seed=5, dtype=HALF_DTYPE).to(DEVICE)
    found = []
    for around in (0.0, math.nan):
        within = {name: inside(x, around, channels) for name, x in tensors.items()}
        found.append(results(windowed, within, do=inside(do, around, channels)))
    assert_bitwise(found[1], found[0])
    assert found[0]["out"].isfinite().all()


@group("rows packed nope")
def test_sequences_without_keys_and_without_queries(judge: Judge) -> None:
    """Queries without keys are dead rows; keys without queries have gradient 0."""
    options = {
        "cu_seqlens_q": offsets(0, 150, 0, 150),
        "cu_seqlens_k": offsets(100, 100, 100, 0),
    }
    tensors = call(300, queries=300, heads=4, kv_heads=2)
    made, expected = results(NOPE, tensors, **options), oracle(NOPE, tensors, **options)
    judge(figures("no keys, no queries", NOPE, expected, made))
    assert not made["out"][:, 150:].any()
    assert (made["lse"][:, 150:] == -math.inf).all()
    assert not made["dq"][:, 150:].any()
    for name in ("dk", "dv"):
        assert not made[name][:, :100].any()
        assert not made[name][:, 200:].any()
        assert made[name][:, 100:200].any()


@group("rows packed nope")
def test_far_more_queries_than_keys_in_packed_sequences() -> None:
    options = {"cu_seqlens_q": offsets(76, 34, 146), "cu_seqlens_k": offsets(1, 1, 1)}
    tensors = call(3, queries=256, heads=4, kv_heads=2)
    tensors["q"] *= 3
    made = results(NOPE, tensors, **options)
    assert all(x.isfinite().all() for name, x in made.items() if name != "lse")
    alive = [75, 109, 255]
    dead = torch.ones(256, dtype=torch.bool)
    dead[alive] = False
    assert not made["out"][:, dead].any()
    assert not made["dq"][:, dead].any()
    # one key has weight 1
    assert torch.equal(made["out"][:, alive], tensors["v"].repeat_interleave(2, 2))


@group("rows packed nope")
def test_offsets_at_the_end_of_their_memory() -> None:
    """Programs beyond the last sequence read no offset: what follows would crash or lie."""
    memory = torch.full((64,), 10**6, dtype=torch.int32, device=DEVICE)
    cu = memory[:4].copy_(offsets(70, 1, 79))
    tensors = call(150, heads=4, kv_heads=2)
    expected = results(NOPE, tensors, cu_seqlens=offsets(70, 1, 79))
    assert_bitwise(results(NOPE, tensors, cu_seqlens=cu), expected)


@group("rows packed nope")
def test_fewer_tokens_than_sequences_beside_groups(judge: Judge) -> None:
    options = {"cu_seqlens_q": offsets(0, 1, 0, 1), "cu_seqlens_k": offsets(0, 3, 0, 5)}
    tensors = call(8, queries=2, heads=9, kv_heads=3)
    made, expected = results(NOPE, tensors, **options), oracle(NOPE, tensors, **options)
    judge(figures("2 queries of 4 sequences", NOPE, expected, made))


# ---- nothing at all


@group("rows fox")
@pytest.mark.parametrize(
    "sizes",
    [
        {"time": 0},
        {"time": 0, "batch": 3, "heads": 4, "kv_heads": 2},
        {"time": 9, "queries": 0},
        {"time": 9, "batch": 0},
    ],
    ids=str,
)
def test_nothing_in_nothing_out(sizes: dict[str, int]) -> None:
    """No programs: no launch."""
    tensors = on_device(fox_call(**sizes))
    made = results(FOX, tensors)
    assert made["out"].shape == tensors["q"].shape
    assert made["lse"].shape == tensors["q"].shape[:3]
    for name, x in tensors.items():
        assert made[f"d{name}"].shape == x.shape
        assert not made[f"d{name}"].any()


@group("rows fox")
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0)], ids=str)
def test_a_pack_of_nothing(lengths: tuple[int, ...]) -> None:
    made = results(FOX, on_device(fox_call(0)), cu_seqlens=offsets(*lengths))
    assert made["out"].shape == (1, 0, 2, 16)
    assert made["dlog_f"].shape == (1, 0, 2)

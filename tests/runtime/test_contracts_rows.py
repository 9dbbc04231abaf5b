"""Rows without keys, keys that nobody sees, and what stands in memory behind the mask."""

import math
from typing import Any

import pytest
import torch
from compiled_calls import (
    assert_bitwise,
    assert_right,
    compiled,
    normal,
    offsets,
    qkv,
    results,
    windowed,
)
from torch import Tensor

import gnomon as gn

NOPE = gn.catalogue.nope
POISON = [math.nan, math.inf, -math.inf]


def seen(queries: int, keys: int, function: object = None) -> list[list[int]]:
    """The keys that each row weighs equally where q is 0: v_j is the j-th unit vector."""
    q, k = torch.zeros(1, queries, 1, 8), normal(1, keys, 1, 8)
    v = torch.eye(keys)[None, :, None, :]
    out = compiled(NOPE if function is None else windowed)(q, k, v)[0, :, 0]
    found = [row.nonzero()[:, 0].tolist() for row in out]
    for row, which in zip(out, found, strict=True):
        assert torch.allclose(row[which], torch.tensor(1 / max(len(which), 1)))
    return found


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


def test_a_strict_window_sees_what_stands_before_it() -> None:
    assert seen(2, 4, windowed) == [[0, 1], [0, 1, 2]]
    assert seen(3, 1, windowed) == [[], [], []]


@pytest.mark.parametrize(("queries", "keys"), [(5, 2), (130, 70), (70, 1), (3, 0)])
def test_rows_without_keys_are_zero_and_give_nothing(queries: int, keys: int) -> None:
    made = assert_right(NOPE, qkv(keys, queries=queries, kv_heads=1))
    dead = queries - keys
    assert not made["out"][:, :dead].any()  # not the mean of v
    assert (made["lse"][:, :dead] == -math.inf).all()
    assert not made["dq"][:, :dead].any()
    assert made["lse"][:, dead:].isfinite().all()


def test_a_row_without_keys_adds_nothing_to_the_others() -> None:
    whole = qkv(70, queries=130)
    alone = {**whole, "q": whole["q"][:, 60:]}
    do, dlse = normal(1, 130, 2, 16, seed=5), normal(1, 130, 2, seed=6)
    both = results(compiled(NOPE), whole, do=do, dlse=dlse)
    rest = results(compiled(NOPE), alone, do=do[:, 60:], dlse=dlse[:, 60:])
    for name in ("dk", "dv"):  # the rows stand in other tiles: the order of sums differs
        assert torch.allclose(both[name], rest[name], rtol=1e-5, atol=1e-6), name
    far: dict[str, Any] = {"do": do.clone(), "dlse": dlse.clone()}
    far["do"][:, :60], far["dlse"][:, :60] = 1e20, -1e20
    assert_bitwise(results(compiled(NOPE), whole, **far), both)


@pytest.mark.parametrize("poison", POISON, ids=str)
@pytest.mark.parametrize("queries", [7, 70, 130])
def test_poison_in_rows_without_keys_stays_there(queries: int, poison: float) -> None:
    """A loss behind torch.where gives such rows a gradient of NaN; their q may be anything."""
    tensors, do = qkv(70, queries=queries), normal(1, queries, 2, 16, seed=5)
    clean = results(compiled(windowed), tensors, do=do)
    dead = (clean["lse"] == -math.inf)[0, :, 0]
    assert dead.any() == (queries >= 70)
    tensors["q"][:, dead] = poison
    do[:, dead] = poison
    assert_bitwise(results(compiled(windowed), tensors, do=do), clean)


@pytest.mark.parametrize("poison", POISON, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(1, 100), (20, 300), (64, 64), (65, 65), (70, 340)])
def test_poison_in_keys_that_nobody_sees_stays_there(
    queries: int, keys: int, poison: float
) -> None:
    tensors = qkv(keys, queries=queries, kv_heads=1)
    clean = results(compiled(windowed), tensors)
    hidden = torch.ones(keys, dtype=torch.bool)
    hidden[max(0, keys - queries - 79) : keys - 1] = False
    assert not clean["dk"][:, hidden].any()
    assert not clean["dv"][:, hidden].any()
    tensors["k"][:, hidden] = poison
    tensors["v"][:, hidden] = poison
    assert_bitwise(results(compiled(windowed), tensors), clean)


@pytest.mark.parametrize("poison", [math.nan, math.inf], ids=str)
def test_poison_in_a_packed_sequence_stays_in_it(poison: float) -> None:
    tensors, cu = qkv(150), offsets(70, 0, 1, 79)
    clean = results(compiled(windowed), tensors, cu_seqlens=cu)
    bad = {name: x.clone() for name, x in tensors.items()}
    for x in bad.values():
        x[:, 71:] = poison
    made = results(compiled(windowed), bad, cu_seqlens=cu)
    for name, value in clean.items():
        assert torch.equal(made[name][:, :71], value[:, :71]), name


def test_poison_in_one_batch_and_head_stays_there() -> None:
    tensors = qkv(100, batch=2, heads=4, kv_heads=2)
    clean = results(compiled(windowed), tensors)
    for name, head in (("q", slice(2, 4)), ("k", slice(1, 2)), ("v", slice(1, 2))):
        tensors[name][1, :, head] = math.nan
    made = results(compiled(windowed), tensors)
    for name, value in clean.items():
        half = value.shape[2] // 2
        assert torch.equal(made[name][0], value[0]), name
        assert torch.equal(made[name][1, :, :half], value[1, :, :half]), name


def in_nan(x: Tensor) -> Tensor:
    """The same values inside of a larger tensor of NaN: 64 rows before, 64 rows behind."""
    batch, time, heads, dim = x.shape
    around = x.new_full((batch + 2, time + 128, heads + 2, dim + 8), math.nan)
    inner = around[1:-1, 64:-64, 1:-1, 4:-4]
    return inner.copy_(x)


@pytest.mark.parametrize("time", [1, 63, 65, 129])
def test_what_stands_around_the_tensors_is_never_read(time: int) -> None:
    tensors = qkv(time)
    clean = results(compiled(windowed), tensors)
    around = {name: in_nan(x) for name, x in tensors.items()}
    do = normal(1, time, 2, 16, seed=5)
    assert_bitwise(results(compiled(windowed), around, do=in_nan(do)), clean)


def test_sequences_without_keys_and_without_queries() -> None:
    """Queries without keys are dead rows; keys without queries have gradient 0."""
    cu_q, cu_k = offsets(0, 150, 0, 150), offsets(100, 100, 100, 0)
    made = assert_right(
        NOPE, qkv(300, queries=300, heads=4, kv_heads=2), cu_seqlens_q=cu_q, cu_seqlens_k=cu_k
    )
    assert not made["out"][:, 150:].any()
    assert (made["lse"][:, 150:] == -math.inf).all()
    assert not made["dq"][:, 150:].any()
    for name in ("dk", "dv"):
        assert not made[name][:, :100].any()
        assert not made[name][:, 200:].any()
        assert made[name][:, 100:200].any()


def test_far_more_queries_than_keys_in_packed_sequences() -> None:
    cu_q, cu_k = offsets(76, 34, 146), offsets(1, 1, 1)
    tensors = qkv(3, queries=256, heads=1, dim=32)
    made = assert_right(NOPE, tensors, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    alive = [75, 109, 255]
    dead = torch.ones(256, dtype=torch.bool)
    dead[alive] = False
    assert not made["out"][:, dead].any()
    assert not made["dq"][:, dead].any()
    assert torch.equal(made["out"][:, alive], tensors["v"])  # one key has weight 1

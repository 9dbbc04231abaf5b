"""Lengths and widths: 0, 1, ragged ones, q_len != kv_len, head counts, groups, head dims."""

import resource
from typing import Any

import pytest
import torch
from compiled_calls import (
    assert_bitwise,
    assert_right,
    assert_same_numbers,
    compiled,
    fox_call,
    normal,
    qkv,
    results,
)
from torch import Tensor

import gnomon as gn
from gnomon.dsl.errors import InputError

FOX = gn.catalogue.fox
NOPE = gn.catalogue.nope
# tiles are 64 queries and 256 keys
RAGGED = [1, 2, 63, 64, 65, 127, 129, 255, 256, 257, 296, 320]


@pytest.mark.parametrize("time", RAGGED)
def test_ragged_lengths(time: int) -> None:
    assert_right(FOX, fox_call(time, batch=2, heads=2, kv_heads=1))


def test_a_ragged_length_of_a_wide_head() -> None:
    assert_right(FOX, fox_call(296, heads=1, dim=96))


@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (2, 5), (63, 65), (65, 300), (257, 321)])
def test_fewer_queries_than_keys(queries: int, keys: int) -> None:
    assert_right(FOX, fox_call(keys, queries=queries, batch=2, heads=4, kv_heads=2))


def test_more_queries_than_tokens_are_refused() -> None:
    with pytest.raises(
        InputError, match="q: expected at most time_k = 5 queries beside log_f; got"
    ):
        compiled(FOX)(**fox_call(5, queries=7))


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
    tensors = fox_call(**sizes)
    made = results(compiled(FOX), tensors)
    batch, queries, heads, _ = tensors["q"].shape
    assert made["out"].shape == (batch, queries, heads, tensors["v"].shape[3])
    assert made["lse"].shape == (batch, queries, heads)
    for name, x in tensors.items():
        assert made[f"d{name}"].shape == x.shape
        assert not made[f"d{name}"].any()


def test_queries_without_keys_at_all() -> None:
    made = results(compiled(NOPE), qkv(0, queries=3))
    assert made["out"].shape == (1, 3, 2, 16)
    assert not made["out"].any()
    assert (made["lse"] == -torch.inf).all()
    assert not made["dq"].any()


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"heads": 0}, "k: expected a number of heads that divides the 0 of q; got 0"),
        ({"kv_heads": 0}, "k: expected a number of heads that divides the 2 of q; got 0"),
        (
            {"heads": 3, "kv_heads": 2},
            "k: expected a number of heads that divides the 3 of q; got 2",
        ),
        ({"dim": 0, "value_dim": 8}, "q: expected at least one channel; got 0"),
        ({"value_dim": 0}, "v: expected at least one channel; got 0"),
    ],
    ids=lambda x: str(x)[:20],
)
def test_no_heads_and_no_channels_are_refused(sizes: dict[str, int], text: str) -> None:
    with pytest.raises(InputError) as error:
        compiled(FOX)(**fox_call(9, **sizes))
    assert str(error.value) == text


def test_one_token_at_a_time_gives_the_rows_of_the_whole() -> None:
    whole = fox_call(70, heads=4, kv_heads=2)
    out, lse = compiled(FOX)(**whole, return_lse=True)
    for n in [*range(1, 6), 63, 64, 65, 70]:
        step = {name: x[:, :n] for name, x in whole.items()}
        step["q"] = whole["q"][:, n - 1 : n]
        one, its_lse = compiled(FOX)(**step, return_lse=True)
        assert torch.allclose(one, out[:, n - 1 : n], rtol=1e-5, atol=1e-6)
        assert torch.allclose(its_lse, lse[:, n - 1 : n], rtol=1e-5, atol=1e-6)


def test_a_prefill_in_chunks_gives_the_rows_of_the_whole() -> None:
    whole = fox_call(150)
    out = compiled(FOX)(**whole)
    for start, stop in [(0, 64), (64, 65), (65, 150)]:
        chunk = {name: x[:, :stop] for name, x in whole.items()}
        chunk["q"] = whole["q"][:, start:stop]
        part = compiled(FOX)(**chunk)
        assert torch.allclose(part, out[:, start:stop], rtol=1e-5, atol=1e-6)


def test_a_shorter_call_after_a_longer_one() -> None:
    """What a call leaves behind in memory reaches no later call."""
    whole = fox_call(300)
    results(compiled(FOX), whole)
    parts = {name: x[:, :-128] for name, x in whole.items()}
    clones = {name: x.clone() for name, x in parts.items()}
    assert_bitwise(results(compiled(FOX), parts), results(compiled(FOX), clones))


def test_new_lengths_and_widths_make_no_new_kernels() -> None:
    attention: Any = gn.compile(FOX)
    files = set()
    for time, dim in [(3, 16), (40, 16), (41, 24), (77, 64), (200, 8)]:
        attention(**fox_call(time, dim=dim))
    for module in attention._modules.values():
        files.add(module.__file__)
    assert len(files) == 1


# ---- widths


@pytest.mark.parametrize("dim", [8, 16, 24, 40, 48, 72, 80, 96, 112, 128, 160, 192, 224, 256])
def test_head_dims(dim: int) -> None:
    assert_right(FOX, fox_call(37, dim=dim, heads=2, kv_heads=1))


@pytest.mark.parametrize(
    ("dim", "value_dim"), [(16, 8), (16, 32), (16, 64), (72, 36), (40, 160), (64, 256), (256, 128)]
)
def test_values_of_another_width(dim: int, value_dim: int) -> None:
    made = assert_right(FOX, fox_call(67, dim=dim, value_dim=value_dim, heads=4, kv_heads=2))
    assert made["out"].shape == (1, 67, 4, value_dim)


@pytest.mark.parametrize(("dim", "value_dim"), [(1, 1), (7, 5), (63, 63), (100, 3), (264, 264)])
def test_other_widths_are_right_too(dim: int, value_dim: int) -> None:
    assert_right(FOX, fox_call(66, dim=dim, value_dim=value_dim))


# ---- heads


@pytest.mark.parametrize("heads", [1, 3, 7, 71])
def test_any_number_of_heads(heads: int) -> None:
    assert_right(FOX, fox_call(33, heads=heads, dim=8))


def ungrouped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A key head for every query head."""
    group = tensors["q"].shape[2] // tensors["k"].shape[2]
    wide = {name: tensors[name].repeat_interleave(group, 2) for name in ("k", "v")}
    return {**tensors, **wide}


@pytest.mark.parametrize("group", [1, 3, 5, 6, 7, 12])
def test_groups_have_the_gradients_of_repeated_keys(group: int) -> None:
    tensors = fox_call(70, heads=2 * group, kv_heads=2, value_dim=24)
    made = assert_right(FOX, tensors)
    repeated = results(compiled(FOX), ungrouped(tensors))
    for name in ("dk", "dv"):
        repeated[name] = repeated[name].unflatten(2, (2, group)).sum(3)
    assert_same_numbers(made, repeated)
    for name in ("out", "lse", "dq", "dlog_f"):
        assert torch.equal(made[name], repeated[name]), name


def test_a_large_batch_of_short_sequences() -> None:
    tensors = fox_call(3, batch=15000, heads=1, dim=8)
    made = results(compiled(FOX), tensors)
    few = {name: x[-5:] for name, x in tensors.items()}
    alone = results(compiled(FOX), few, do=normal(15000, 3, 1, 8, seed=5)[-5:])
    assert_bitwise({name: x[-5:] for name, x in made.items()}, alone)


# ---- memory


def test_memory_grows_with_the_length_not_with_its_square() -> None:
    """T^2 numbers would be 4 GB, T^2 / 64 still 67 MB; backward 1 GB and 17 MB."""
    results(compiled(FOX), fox_call(8, heads=1))
    for time, wanted, limit in [(32768, (), 45_000), (16384, ("q", "k", "v", "log_f"), 45_000)]:
        tensors = fox_call(time, heads=1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        made = results(compiled(FOX), tensors, wanted=wanted)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < limit, f"{grown} kB for T = {time}"
        assert all(x.isfinite().all() for x in made.values())
        last = {**tensors, "q": tensors["q"][:, -1:]}
        assert torch.allclose(compiled(FOX)(**last), made["out"][:, -1:], rtol=1e-4, atol=1e-6)

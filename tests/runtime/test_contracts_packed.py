"""Packed sequences: what cu_seqlens may be, and that a pack is the loop over its sequences."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
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
    offsets,
    results,
)
from torch import Tensor

import gnomon as gn
from gnomon.dsl.errors import InputError

FOX = gn.catalogue.fox


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


MALFORMED: dict[str, tuple[object, str]] = {
    "first not 0": (int32(1, 5, 9), "0, then ends that never fall, the last time_q = 9; got [1,"),
    "falling": (int32(0, 6, 5, 9), "0, then ends that never fall, the last time_q = 9; got [0, 6"),
    "negative": (int32(0, -1, 9), "0, then ends that never fall, the last time_q = 9; got [0, -1"),
    "too short": (
        int32(0, 5, 8),
        "0, then ends that never fall, the last time_q = 9; got [0, 5, 8]",
    ),
    "too long": (
        int32(0, 5, 10),
        "0, then ends that never fall, the last time_q = 9; got [0, 5, 10]",
    ),
    "only the start": (int32(0), "0, then ends that never fall, the last time_q = 9; got [0]"),
    "empty": (int32(), "one axis: 0, then the end of each sequence; got [0]"),
    "two axes": (int32(0, 9)[None], "one axis: 0, then the end of each sequence; got [1, 2]"),
    "no axis": (torch.tensor(9), "one axis: 0, then the end of each sequence; got []"),
    "real": (torch.tensor([0.0, 9.0]), "a tensor of int32 or int64; got torch.float32"),
    "bool": (torch.tensor([False, True]), "a tensor of int32 or int64; got torch.bool"),
    "int16": (int32(0, 9).short(), "a tensor of int32 or int64; got torch.int16"),
    "list": ([0, 9], "a tensor of int32 or int64; got <class 'list'>"),
    "lengths": (int32(5, 4), "0, then ends that never fall, the last time_q = 9; got [5, 4]"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_offsets_are_refused(name: str) -> None:
    given, text = MALFORMED[name]
    with pytest.raises(InputError) as error:
        compiled(FOX)(**fox_call(9), cu_seqlens=given)
    assert str(error.value).startswith(f"cu_seqlens: expected {text}")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"cu_seqlens_q": int32(0, 9)},
            "cu_seqlens_k: expected cu_seqlens_q and cu_seqlens_k together; got only the other one",
        ),
        (
            {"cu_seqlens_k": int32(0, 9)},
            "cu_seqlens_q: expected cu_seqlens_q and cu_seqlens_k together; got only the other one",
        ),
        (
            {"cu_seqlens": int32(0, 9), "cu_seqlens_q": int32(0, 9)},
            "cu_seqlens: expected no cu_seqlens_q or cu_seqlens_k beside it; got both",
        ),
        (
            {"cu_seqlens_q": int32(0, 4, 9), "cu_seqlens_k": int32(0, 9)},
            "cu_seqlens_k: expected 2 sequences; got 1",
        ),
        (
            {"cu_seqlens_q": int32(0, 9), "cu_seqlens_k": int32(0, 8)},
            "cu_seqlens_k: expected 0, then ends that never fall, the last time_k = 9; got [0, 8]",
        ),
        (
            {"cu_seqlens_q": int32(0, 6, 9), "cu_seqlens_k": int32(0, 5, 9)},
            "q: expected at most time_k = 5 queries beside log_f; got 6",
        ),
    ],
    ids=lambda x: "+".join(x) if isinstance(x, dict) else "",
)
def test_offsets_of_queries_and_keys_belong_together(options: dict[str, Tensor], text: str) -> None:
    with pytest.raises(InputError) as error:
        compiled(FOX)(**fox_call(9), **options)
    assert str(error.value) == text


def test_packed_sequences_are_one_batch() -> None:
    with pytest.raises(InputError) as error:
        compiled(FOX)(**fox_call(9, batch=2), cu_seqlens=int32(0, 9))
    assert str(error.value) == "q: expected batch 1 with packed sequences; got 2"


# ---- a pack is the loop over its sequences


def one_by_one(
    tensors: dict[str, Tensor], queries: Sequence[int], keys: Sequence[int], do: Tensor
) -> dict[str, Tensor]:
    """Padded calls of each sequence, put side by side."""
    parts: list[dict[str, Tensor]] = []
    cuts = [list(pairwise(accumulate(x, initial=0))) for x in (queries, keys)]
    for (q0, q1), (k0, k1) in zip(*cuts, strict=True):
        own = {name: x[:, q0:q1] if name == "q" else x[:, k0:k1] for name, x in tensors.items()}
        parts.append(results(compiled(FOX), own, do=do[:, q0:q1]))
    return {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}


PACKS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "ragged": ((17, 1, 65, 130), (17, 1, 65, 130)),
    "empty ones between": ((0, 5, 0, 0, 4), (0, 5, 0, 0, 4)),
    "fewer queries": ((6, 1, 22, 44), (17, 1, 65, 130)),
    "no queries in some": ((0, 1, 0, 1), (0, 3, 70, 5)),
    "many tiny ones": ((1, 2, 3, 0) * 60, (1, 2, 3, 0) * 60),
    "tiles of two sequences": ((63, 66, 64), (63, 66, 64)),
}


@pytest.mark.parametrize("name", PACKS)
def test_a_pack_is_the_loop_over_its_sequences(name: str) -> None:
    queries, keys = PACKS[name]
    tensors = fox_call(sum(keys), queries=sum(queries), heads=4, kv_heads=2, value_dim=24)
    do = normal(1, sum(queries), 4, 24, seed=5)
    cu: dict[str, Any] = {"cu_seqlens_q": offsets(*queries), "cu_seqlens_k": offsets(*keys)}
    made = results(compiled(FOX), tensors, do=do, **cu)
    # sums along the sequence begin elsewhere: the last bits of a gate differ
    assert_same_numbers(made, one_by_one(tensors, queries, keys, do), out=2e-7, grad=2e-6)
    if queries == keys:
        alone = results(compiled(FOX), tensors, do=do, cu_seqlens=offsets(*queries))
        assert_bitwise(alone, made)


def test_a_pack_of_ragged_sequences_is_right() -> None:
    tensors = fox_call(213, heads=4, kv_heads=2)
    dlse = normal(1, 213, 4, seed=6)
    assert_right(FOX, tensors, cu_seqlens=offsets(0, 17, 1, 65, 0, 130), dlse=dlse)


def test_offsets_of_either_integer_and_any_stride() -> None:
    tensors, lengths = fox_call(150), (70, 0, 80)
    expected = results(compiled(FOX), tensors, cu_seqlens=offsets(*lengths))
    wide = offsets(*lengths, dtype=torch.int64)
    assert_bitwise(results(compiled(FOX), tensors, cu_seqlens=wide), expected)
    strided = wide.repeat_interleave(2)[::2]
    assert not strided.is_contiguous()
    assert_bitwise(results(compiled(FOX), tensors, cu_seqlens=strided), expected)


def test_offsets_at_the_end_of_their_memory() -> None:
    """Programs beyond the last sequence read no offset: what follows would crash or lie."""
    memory = torch.full((64,), 10**6, dtype=torch.int32)
    cu = memory[:4].copy_(offsets(70, 1, 79))
    tensors = fox_call(150)
    expected = results(compiled(FOX), tensors, cu_seqlens=offsets(70, 1, 79))
    assert_bitwise(results(compiled(FOX), tensors, cu_seqlens=cu), expected)


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "kv_heads", "dim"),
    [((0, 1, 0, 1), (0, 3, 0, 5), 9, 3, 64), ((0, 0, 0, 1), (0, 0, 0, 1), 21, 7, 120)],
)
def test_fewer_tokens_than_sequences_beside_groups(
    queries: tuple[int, ...], keys: tuple[int, ...], heads: int, kv_heads: int, dim: int
) -> None:
    tensors = fox_call(sum(keys), queries=sum(queries), heads=heads, kv_heads=kv_heads, dim=dim)
    cu: dict[str, Any] = {"cu_seqlens_q": offsets(*queries), "cu_seqlens_k": offsets(*keys)}
    # a row of one key has gradient 0: do . v - do . o, which have size 1 with this do
    do = normal(1, sum(queries), heads, dim, seed=5) / dim**0.5
    assert_right(FOX, tensors, do=do, **cu)


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0)], ids=str)
def test_a_pack_of_nothing(lengths: tuple[int, ...]) -> None:
    tensors = fox_call(0)
    made = results(compiled(FOX), tensors, cu_seqlens=offsets(*lengths))
    assert made["out"].shape == (1, 0, 2, 16)
    assert made["dlog_f"].shape == (1, 0, 2)


def test_gates_of_other_sequences_do_not_matter() -> None:
    """A sum over the whole pack would carry the digits of what stands before."""
    tensors, cu = fox_call(160), offsets(80, 80)
    expected = results(compiled(FOX), tensors, cu_seqlens=cu)
    heavy = tensors["log_f"].clone()
    heavy[:, :80] = -1e4
    made = results(compiled(FOX), {**tensors, "log_f": heavy}, cu_seqlens=cu)
    for name, value in expected.items():
        assert torch.allclose(made[name][:, 80:], value[:, 80:], rtol=1e-5, atol=2e-6), name

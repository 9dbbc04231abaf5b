"""Transports with everything around them, as printed modules that run in plain Python.

Tiles of 4 or 8 in leaves of 8 meet every case of a tree within a few dozen tokens: T = 1, leaves
that are not full, numbers of leaves that are no power of two, queries that begin inside of a leaf.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from generated_modules import execute, plain_python
from support import assert_close
from torch import Tensor

import gnomon as gn
from gnomon import Dim, Entry, Head, KVHead, Param, Token
from gnomon.dsl.errors import InputError
from gnomon.dsl.reference import reference
from gnomon.dsl.trace import Declaration
from gnomon.lowering.emit.module import print_module
from gnomon.runtime.sample import Sampler, Shape

OUT, GRAD, FLOOR = 2e-6, 2e-5, 5e-2


@gn.variant
def path_tapa(q, k, w: Token[KVHead, Dim], beta: Token[KVHead], *, alpha=0.1):  # type: ignore[no-untyped-def]
    "(q_i H_i ... H_{j+1} k_j) cos(2 pi (i - j)^alpha q_i . k_j) / sqrt(d)"
    amplitude = gn.dot(q, k, through=gn.householder(w, beta)) * gn.rsqrt_dim(q)
    phase = gn.dot(q, k) * gn.rsqrt_dim(q)
    turned = amplitude * gn.cos_turns(gn.distance() ** alpha * phase)
    return gn.softmax(turned, mask=gn.causal())


@gn.variant
def path_window(q, k, w: Token[KVHead, Dim], beta: Token[KVHead], log_f: Token[Head]):  # type: ignore[no-untyped-def]
    "path_fox of the last 11 keys and the first 3"
    score = gn.dot(q, k, through=gn.householder(w, beta)) * gn.rsqrt_dim(q)
    mask = gn.causal() & (gn.window(11) | gn.first_keys(3))
    return gn.softmax(score + gn.decay(log_f), mask=mask)


@gn.variant
def path_strict_window(q, k, w: Token[KVHead, Dim], beta: Token[KVHead]):  # type: ignore[no-untyped-def]
    "the last 12 keys, not its own: the first row of a sequence sees nothing"
    score = gn.dot(q, k, through=gn.householder(w, beta)) * gn.rsqrt_dim(q)
    return gn.softmax(score, mask=gn.causal(strict=True) & gn.window(13))


@gn.variant
def path_learned(  # type: ignore[no-untyped-def]
    q,
    k,
    w: Token[KVHead, Dim],
    beta: Token[KVHead],
    ids: Token[int],
    gain: Param[Head],
    table: Param[Head, Entry],
    sink: Param[Head],
):
    "a gain, a table of distances, a sink and documents beside a transport"
    score = gain * gn.dot(q, k, through=gn.householder(w, beta)) * gn.rsqrt_dim(q)
    score = score + gn.lookup(table, gn.minimum(gn.distance(), 15))
    mask = gn.causal() & gn.same_document(ids)
    return gn.softmax(gn.tanh(score / 3) * 3, mask=mask, sink=sink)


def tensors(variant: Declaration, far: bool = False, **sizes: Any) -> dict[str, Tensor]:
    made = Sampler(Shape(**{"batch": 1, "dim": 6, **sizes}), 1, far, {}).tensors(
        variant.node, torch.float32
    )
    return {n: x.requires_grad_(x.is_floating_point()) for n, x in made.items()}


def results(function: Any, given: Mapping[str, Tensor], **options: Any) -> dict[str, Tensor]:
    out = function(**given, **options)
    random = torch.Generator().manual_seed(7)
    do = torch.randn(out.shape, generator=random, dtype=torch.float64)
    real = {n: x for n, x in given.items() if x.requires_grad}
    total = (out.double() * do).sum()
    found = torch.autograd.grad(total, list(real.values()), materialize_grads=True)
    return {"out": out, **{f"d{n}": g for n, g in zip(real, found, strict=True)}}


def assert_right(variant: Declaration, given: Mapping[str, Tensor], **options: Any) -> None:
    """Output and gradients are those of the oracle."""
    packed = "cu_seqlens" in options or "cu_seqlens_q" in options
    names = {f"{variant.node.name}_{x}" for x in ("fwd", "bwd_rows", "bwd_columns")}
    config = {name: {"BM": 4, "BN": 8} for name in names}
    made = plain_python(variant, padded=not packed, packed=packed, leaf=8, config=config)
    module = execute(print_module(made))
    actual = results(getattr(module, variant.node.name), given, **options)
    wide = {n: x.detach().double() if x.is_floating_point() else x for n, x in given.items()}
    wide = {n: x.requires_grad_(x.is_floating_point()) for n, x in wide.items()}
    expected = results(lambda **x: reference(variant, **x), wide, **options)
    for name, value in expected.items():
        assert_close(name, value, actual[name], OUT if name == "out" else GRAD, floor=FLOOR)


@pytest.mark.parametrize("time", [1, 7, 8, 9, 25, 40])
def test_lengths(time: int) -> None:
    given = tensors(gn.catalogue.path_fox, time=time, heads=2, kv_heads=1, value_dim=5)
    assert_right(gn.catalogue.path_fox, given)


@pytest.mark.parametrize("queries", [1, 5, 16, 21])
def test_few_queries(queries: int) -> None:
    given = tensors(gn.catalogue.path_fox_fla, time=29, queries=queries, heads=2, kv_heads=2)
    assert_right(gn.catalogue.path_fox_fla, given)


def test_packed_sequences() -> None:
    lengths = (0, 9, 1, 17, 0, 8)
    given = tensors(gn.catalogue.path_fox, time=35, heads=2, kv_heads=1)
    offsets = torch.tensor((0, *lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
    assert_right(gn.catalogue.path_fox, given, cu_seqlens=offsets)


def test_packed_with_fewer_queries() -> None:
    keys, queries = (0, 9, 4, 17), (0, 3, 4, 10)
    given = tensors(gn.catalogue.path, time=30, queries=17, heads=2, kv_heads=1)
    offsets = [torch.tensor((0, *n)).cumsum(0, dtype=torch.int32) for n in (queries, keys)]
    assert_right(gn.catalogue.path, given, cu_seqlens_q=offsets[0], cu_seqlens_k=offsets[1])


@pytest.mark.parametrize(
    "variant", [path_tapa, path_window, path_strict_window, path_learned], ids=lambda v: v.node.name
)
def test_with_everything_around(variant: Declaration) -> None:
    given = tensors(variant, time=38, heads=2, kv_heads=1, entries=16)
    assert_right(variant, given)


@pytest.mark.parametrize("name", ["gated_delta", "delta_product", "dplr", "kda", "wall", "xpos"])
def test_other_steps(name: str) -> None:
    variant = getattr(gn.catalogue, name)
    assert_right(variant, tensors(variant, time=27, heads=2, kv_heads=1))


def test_more_queries_than_keys_of_a_constant_decay() -> None:
    given = tensors(gn.catalogue.xpos, time=9, queries=20, heads=1, kv_heads=1)
    assert_right(gn.catalogue.xpos, given)


def test_the_past_counts() -> None:
    """Three directions again and again, beta near 2: nothing fades over 60 tokens."""
    assert_right(
        gn.catalogue.path, tensors(gn.catalogue.path, far=True, time=60, heads=1, kv_heads=1)
    )


def test_the_same_numbers_again() -> None:
    given = tensors(gn.catalogue.path_fox, time=30, heads=2, kv_heads=1)
    made = plain_python(gn.catalogue.path_fox, packed=False, leaf=8)
    function = execute(print_module(made)).path_fox
    first, second = (results(function, given) for _ in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_a_tile_that_no_leaf_holds_is_refused() -> None:
    made = plain_python(gn.catalogue.path, packed=False, leaf=4)
    with pytest.raises(InputError, match="BM: expected a divisor of the leaf's 4 tokens for path_"):
        print_module(made)
    with pytest.raises(InputError, match="leaf: expected a power of two; got 24"):
        print_module(plain_python(gn.catalogue.path, packed=False, leaf=24))

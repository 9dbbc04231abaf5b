"""The schedules mean their formulas: tile programs in numpy against the oracle, with gradients."""

from typing import Any

import pytest
import torch
from support import assert_close, small_tensors
from tile_calls import Tiles, attend, wide_leaves

import gnomon as gn
from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.nodes import Variant
from gnomon.dsl.reference import reference
from gnomon.lowering.pipelines import to_program

BOUND = 2e-5
"""fp32 tiles: sums of at most 64 terms of size 1, so a few hundred roundings of 6e-8."""


def lowered() -> list[str]:
    """The catalogue's rows with one softmax, sum or ratio and nothing behind it."""
    names = []
    for entry in gn.catalogue.ENTRIES:
        if entry.declaration is None:
            continue
        try:
            program = to_program(entry.declaration.node)
        except UnsupportedError:
            continue
        learned_sink = any(a.sink is not None and a.sink.differentiable for a in program.attentions)
        plain = type(program.epilogue).__name__ == "Output"
        # trees have tests of whole modules: test_transport_modules.py
        tree = any(a.has_transport() for a in program.attentions)
        if len(program.attentions) == 1 and plain and not learned_sink and not tree:
            names.append(entry.name)
    return names


def compare(
    variant: Variant,
    tensors: dict[str, Any],
    tiles: Tiles | None = None,
    cu: tuple[list[int], list[int]] | None = None,
    *,
    bound: float = BOUND,
) -> None:
    """Output and every gradient of the tile programs against the oracle."""
    positions = tensors.pop("positions", None)
    batch, time_q, heads, _ = tensors["q"].shape
    random = torch.Generator().manual_seed(7)
    do = torch.randn(batch, time_q, heads, tensors["v"].shape[3], generator=random)
    made = attend(variant, tensors, do, tiles=tiles, cu=cu, positions=positions)
    leaves = wide_leaves(tensors)
    packed: dict[str, Any] = {}
    if cu is not None:
        packed = {f"cu_seqlens_{side}": torch.tensor(c) for side, c in zip("qk", cu, strict=True)}
    out = reference(variant, **leaves, positions=positions, **packed, return_lse=False)
    assert_close("out", out, made.out, bound)
    real = {n: x for n, x in leaves.items() if x.requires_grad}
    for (name, _), expected in zip(
        real.items(),
        torch.autograd.grad(
            out, list(real.values()), do.double(), allow_unused=True, materialize_grads=True
        ),
        strict=True,
    ):
        # a gradient that is zero by nature is compared by its absolute size
        assert_close(f"d{name}", expected, made.grads[name], bound, floor=1e-2)


@pytest.mark.parametrize("name", lowered())
def test_every_row_forward_and_gradients(name: str) -> None:
    """Ragged length, two query heads a key head, d_v != d; key tiles and query tiles differ."""
    declaration = gn.catalogue.find(name)
    compare(declaration.node, small_tensors(declaration, time=21, value_dim=24), Tiles(8, 4))


FEW = [
    *("fox", "tapa", "alibi_learned", "t5", "streaming", "prefix_lm"),
    *("softpick", "ssd", "documents"),
]


@pytest.mark.parametrize("tiles", [(4, 8), (16, 16), (32, 8)])
@pytest.mark.parametrize("name", FEW)
def test_tile_sizes_do_not_matter(name: str, tiles: tuple[int, int]) -> None:
    declaration = getattr(gn.catalogue, name)
    bound = declaration.bind(**small_windows(name))
    compare(bound, small_tensors(declaration, time=19), Tiles(*tiles))


def small_windows(name: str) -> dict[str, int]:
    """Windows that cut through a short sequence."""
    return {"streaming": {"size": 5, "sinks": 3}, "prefix_lm": {"count": 6}}.get(name, {})


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("cu", [[0, 0, 5, 5, 6, 19], [0, 19], [0, 1, 2, 19]])
def test_packed_sequences(name: str, cu: list[int]) -> None:
    """Empty sequences, sequences of one token, and the whole as one sequence."""
    declaration = getattr(gn.catalogue, name)
    bound = declaration.bind(**small_windows(name))
    tensors = small_tensors(declaration, batch=1, time=19)
    compare(bound, tensors, Tiles(8, 4), (cu, cu))


@pytest.mark.parametrize("queries", [1, 4, 11])
@pytest.mark.parametrize("name", ["fox", "tapa", "t5", "rope", "streaming", "grape_a_query"])
def test_fewer_queries_than_keys(name: str, queries: int) -> None:
    declaration = getattr(gn.catalogue, name)
    bound = declaration.bind(**small_windows(name))
    compare(bound, small_tensors(declaration, time=19, queries=queries), Tiles(4, 8))


def test_more_queries_than_keys_leaves_dead_rows() -> None:
    """Rows in front of the first key give 0 and take no part in any gradient."""
    tensors = small_tensors(gn.catalogue.tapa, time=5, queries=13)
    compare(gn.catalogue.tapa.node, tensors, Tiles(4, 4))
    do = torch.ones(2, 13, 4, 16)
    made = attend(gn.catalogue.tapa.node, tensors, do, tiles=Tiles(4, 4))
    assert (made.out[:, :8] == 0).all()
    assert made.lse is not None
    assert made.lse[:, :8].isneginf().all()
    assert (made.grads["q"][:, :8] == 0).all()


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (3, 0)])
def test_nothing_to_see(shape: tuple[int, int]) -> None:
    queries, keys = shape
    tensors = small_tensors(gn.catalogue.nope, time=keys, queries=queries)
    tensors["q"] = torch.randn(2, queries, 4, 16)
    compare(gn.catalogue.nope.node, tensors, Tiles(4, 4))


def test_a_formula_nobody_prepared_for() -> None:
    @gn.variant
    def odd(
        q: Any,
        k: Any,
        a: gn.Token[gn.Head],
        b: gn.Token[gn.KVHead],
        table: gn.Param[gn.Head, gn.Entry],
    ) -> Any:
        "tanh(s1) * sigmoid(s2) + a_i b_j log1p(i - j) + table[i - j]"
        (q1, q2), (k1, k2) = gn.split(q), gn.split(k)
        product = gn.tanh(gn.dot(q1, k1)) * gn.sigmoid(gn.dot(q2, k2))
        distance = gn.distance()
        far = gn.at_query(a) * gn.at_key(b) * gn.log1p(distance)
        return gn.softmax(product + far + gn.lookup(table, distance), mask=gn.causal())

    compare(odd.node, small_tensors(odd, time=21, entries=9), Tiles(8, 4))


def test_log_sum_exp_and_its_gradient() -> None:
    """The log-sum-exp holds the row term, and its gradient reaches every pair."""
    tensors = small_tensors(gn.catalogue.fox, time=21)
    do, dlse = torch.randn(2, 21, 4, 16), torch.randn(2, 21, 4)
    made = attend(gn.catalogue.fox.node, tensors, do, dlse=dlse, tiles=Tiles(8, 4))
    leaves = {n: x.double().requires_grad_() for n, x in tensors.items()}
    out, lse = reference(gn.catalogue.fox, **leaves, return_lse=True)
    assert made.lse is not None
    assert_close("lse", lse, made.lse, BOUND)
    loss = (out * do).sum() + (lse * dlse).sum()
    for name in ("q", "k", "v"):
        (expected,) = torch.autograd.grad(loss, leaves[name], retain_graph=True)
        assert_close(f"d{name}", expected, made.grads[name], BOUND)

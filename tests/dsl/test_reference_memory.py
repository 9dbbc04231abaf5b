"""The oracle of an ordered product keeps few copies of its rows and loses no bit by it."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import gnomon as gn
from gnomon.dsl import evaluate_transports
from gnomon.dsl.evaluate_transports import KEYS
from gnomon.dsl.reference import reference
from gnomon.runtime.sample import Sampler, Shape

TIME = 2 * KEYS + 9


def results(name: str, shape: Shape) -> list[Tensor]:
    """The output and every gradient."""
    node = gn.catalogue.find(name).node
    made = Sampler(shape, far=True).tensors(node, torch.float64)
    leaves = [x.requires_grad_() for x in made.values()]
    out = reference(node, **made)
    do = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
    return [out, *torch.autograd.grad(out, leaves, do)]


@pytest.mark.parametrize("name", ["path_fox", "delta_product", "kda"])
@pytest.mark.parametrize("queries", [TIME, 70])
def test_parts_change_no_bit(name: str, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(batch=2, time=TIME, queries=queries, heads=2, kv_heads=1, dim=8)
    found = results(name, shape)
    monkeypatch.setattr(evaluate_transports, "KEYS", TIME)
    whole = results(name, shape)
    for x, y in zip(found, whole, strict=True):
        assert torch.equal(x, y)


@pytest.fixture
def kept() -> Iterator[dict[int, int]]:
    """Storage -> its bytes, of everything that autograd keeps while a test runs."""
    sizes: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        yield sizes


def test_few_copies_of_the_rows_are_kept(kept: dict[int, int]) -> None:
    """Not one for each of the T keys: what a part makes of its rows is not kept."""
    time, d, calls = 4 * KEYS, 32, 0
    a, b, w = (torch.randn(1, 1, time, d, dtype=torch.float64).requires_grad_() for _ in range(3))
    each = w[:, :, :, None].unbind(2)

    def step(x: Tensor, s: int) -> Tensor:
        nonlocal calls
        calls += 1
        return x - (x @ each[s].mT) * each[s] / d

    score = evaluate_transports._towards_the_first_key(a, b, step, torch.arange(time))
    rows, pairs = time * d * 8, time * time * 8
    assert sum(kept.values()) < 4 * rows + pairs
    score.sum().backward()
    assert calls == 2 * time  # formed again, each part once

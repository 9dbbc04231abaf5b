"""The oracle of an ordered product keeps few copies of its rows and is the same for it."""

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
def test_parts_change_nothing(name: str, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(batch=2, time=TIME, queries=queries, heads=2, kv_heads=1, dim=8)
    found = results(name, shape)
    monkeypatch.setattr(evaluate_transports, "KEYS", TIME)
    whole = results(name, shape)
    for x, y in zip(found, whole, strict=True):
        assert (x - y).norm() <= 1e-13 * y.norm()


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


def test_keys_after_the_query_are_reached_through_their_own_steps() -> None:
    """a_i B_{i+1} ... B_j . b_j of some pairs, one step after another; queries begin later."""
    time, queries, d = KEYS + 40, 70, 3
    random = torch.Generator().manual_seed(4)
    a, b = (torch.randn(1, 1, n, d, dtype=torch.float64, generator=random) for n in (queries, time))
    steps = torch.eye(d) + 0.1 * torch.randn(time, d, d, dtype=torch.float64, generator=random)
    index = torch.arange(queries) + time - queries
    walk = evaluate_transports._towards_the_last_key
    found = walk(a, b, lambda x, s: x @ steps[s], index)
    for query, key in ((0, 35), (0, 103), (20, 60), (40, 75), (68, 103), (69, 103)):
        x = a[0, 0, query]
        for s in range(int(index[query]) + 1, key + 1):
            x = x @ steps[s]
        torch.testing.assert_close(found[0, 0, query, key], x @ b[0, 0, key], rtol=1e-12, atol=0)

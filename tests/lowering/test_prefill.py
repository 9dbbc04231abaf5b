"""A prefill's cache, continued token by token in plain torch, gives what the whole call gives."""

from types import ModuleType
from typing import Any

import pytest
import torch
from generated_modules import execute, plain_python
from support import assert_close
from torch import Tensor
from torch.nn.functional import pad

import gnomon as gn
from gnomon.dsl.reference import reference
from gnomon.dsl.trace import Declaration
from gnomon.lowering.emit.module import print_module
from gnomon.runtime.sample import Sampler, Shape

LEAF = 8


def module_of(variant: Declaration) -> ModuleType:
    return execute(print_module(plain_python(variant, packed=False, leaf=LEAF)))


def append(leaf: Any, k: Tensor, v: Tensor, w: Tensor, beta: Tensor) -> Any:
    """One token [batch, kv_head, d] more: a row of Y and of M."""
    u = w[:, :, None]
    a = u @ leaf.w.mT
    y = beta[..., None, None] * (u - a @ leaf.y)
    m = beta[..., None, None] * (u @ leaf.k.mT - a @ leaf.m)
    grown = pad(torch.cat((leaf.m, m), 2), (0, 1))  # a token acts on no key from itself on
    more = [torch.cat((x, n[:, :, None]), 2) for x, n in ((leaf.k, k), (leaf.v, v), (leaf.w, w))]
    return type(leaf)(*more, torch.cat((leaf.y, y), 2), grown)


def closed(nodes: list[Any], leaf: Any, node: Any) -> tuple[list[Any], Any]:
    """A full leaf becomes a node; two of one size join, as a binary counter carries."""
    one = torch.eye(leaf.w.shape[-1])
    made = node(leaf.k - leaf.m.mT @ leaf.w, leaf.v, one - leaf.w.mT @ leaf.y)
    while nodes and nodes[-1].k.shape[2] == made.k.shape[2]:
        before = nodes.pop()
        keys = torch.cat((before.k @ made.product.mT, made.k), 2)
        values = torch.cat((before.v, made.v), 2)
        made = node(keys, values, made.product @ before.product)
    empty = [x[:, :, :0] for x in leaf[:4]]
    return [*nodes, made], type(leaf)(*empty, leaf.m[..., :0, :0])


def scores(nodes: list[Any], leaf: Any, q: Tensor) -> tuple[Tensor, Tensor]:
    """The dots of one query [batch, head, d] with every key, the oldest first, and the values."""
    group = q.shape[1] // leaf.k.shape[1]
    x = q.unflatten(1, (-1, group))  # [batch, kv_head, group, d]
    on_steps = x @ leaf.w.mT
    found, values = [x @ leaf.k.mT - on_steps @ leaf.m], [leaf.v]
    x = x - on_steps @ leaf.y
    for node in reversed(nodes):
        found.insert(0, x @ node.k.mT)
        values.insert(0, node.v)
        x = x @ node.product
    return torch.cat(found, -1), torch.cat(values, 2)


@pytest.mark.parametrize("first", [1, 7, 8, 16, 21])
@pytest.mark.parametrize("variant", [gn.catalogue.path, gn.catalogue.path_fox], ids=["path", "fox"])
def test_decoding_goes_on_from_the_cache(variant: Declaration, first: int) -> None:
    time, d = 34, 6
    shape = Shape(1, time, 4, 2, d, value_dim=5)
    given = Sampler(shape, 2, True).tensors(variant.node, torch.float32)
    part = {n: x[:, :first] for n, x in given.items()}
    out, cache = getattr(module_of(variant), f"{variant.node.name}_prefill")(**part)
    assert_close("prefill", reference(variant, **part), out, 2e-6)
    assert [n.k.shape[2] // LEAF for n in cache.nodes] == [
        1 << bit for bit in (2, 1, 0) if first // LEAF >> bit & 1
    ]
    nodes, leaf, node = list(cache.nodes), cache.leaf, module_node(cache)
    gate = given["log_f"].double().cumsum(1) if "log_f" in given else None
    rows = []
    for t in range(first, time):
        leaf = append(leaf, *(given[x][:, t] for x in ("k", "v", "w", "beta")))
        score, values = scores(nodes, leaf, given["q"][:, t])
        score = score * d**-0.5
        if gate is not None:
            apart = (gate[:, t, None] - gate[:, : t + 1]).transpose(1, 2)
            score = score + apart.unflatten(1, (2, -1))
        rows.append((score.softmax(-1) @ values.to(score.dtype)).flatten(1, 2))
        if leaf.k.shape[2] == LEAF:
            nodes, leaf = closed(nodes, leaf, node)
    expected = reference(variant, **given)[:, first:]
    assert_close("decoded", expected, torch.stack(rows, 1), 5e-6)


def module_node(cache: Any) -> Any:
    """The class of a cache's nodes, or one of the same fields where it has none yet."""
    from collections import namedtuple

    return type(cache.nodes[0]) if cache.nodes else namedtuple("Node", ("k", "v", "product"))


def test_several_steps_of_a_token_are_in_the_cache() -> None:
    variant = gn.catalogue.delta_product
    given = Sampler(Shape(1, 19, 2, 1, 6), 2).tensors(variant.node, torch.float32)
    out, cache = module_of(variant).delta_product_prefill(**given)
    assert_close("prefill", reference(variant, **given), out, 2e-6)
    score, _ = scores(list(cache.nodes), cache.leaf, given["q"][:, -1])
    values = torch.cat([x.v for x in (*cache.nodes, cache.leaf)], 2)
    row = ((score * 6**-0.5).softmax(-1) @ values).flatten(1, 2)
    assert_close("last row", reference(variant, **given)[:, -1], row, 5e-6)

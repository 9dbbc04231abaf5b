"""Versions and leaf logits token by token in float64: what the stages of a transport must give."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tree:
    """Leaves, levels and compact rows a level of T tokens."""

    tokens: int
    leaf: int

    @property
    def leaves(self) -> int:
        return -(-self.tokens // self.leaf)

    @property
    def levels(self) -> int:
        return (self.leaves - 1).bit_length()

    @property
    def rows(self) -> int:
        return self.leaf << self.levels >> 1 if self.levels else 0

    def row(self, level: int, time: int) -> int:
        """The compact row of a token."""
        size = self.leaf << level
        return level * self.rows + time // (2 * size) * size + time % size


def expected(
    q: Tensor, k: Tensor, w: Tensor, u: Tensor, beta: Tensor, leaf: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(qv, kv, loc) by one transition after the other; differentiable.

    q [batch, T, H, D], k, w, u [batch, T, KV, D], beta [batch, T, KV].
    """
    group = q.shape[2] // k.shape[2]
    k_q, w_q, u_q, beta_q = (x.repeat_interleave(group, 2) for x in (k, w, u, beta))
    tree = Tree(q.shape[1], leaf)
    qv, loc = _queries(tree, q, k_q, w_q, u_q, beta_q)
    return qv, _keys(tree, k, w, u, beta), loc


def _crossed(x: Tensor, s: int, a: Tensor, b: Tensor, beta: Tensor, rows: Tensor) -> Tensor:
    """x - beta_s (x . a_s) b_s in the rows given."""
    step = beta[:, s : s + 1, :, None] * (x * a[:, s : s + 1]).sum(-1, keepdim=True)
    return x - torch.where(rows[None, :, None, None], step * b[:, s : s + 1], 0.0)


def _queries(
    tree: Tree, q: Tensor, k: Tensor, w: Tensor, u: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    batch, tokens, heads, width = q.shape
    time = torch.arange(tokens)
    found: list[Tensor] = [torch.zeros(batch, heads, width)] * (tree.levels * tree.rows)
    columns: list[Tensor] = []
    x = q
    for s in reversed(range(tokens)):
        near = (time >= s) & (time // tree.leaf == s // tree.leaf)
        inner = (x * k[:, s : s + 1]).sum(-1)
        columns.append(torch.where(near[None, :, None], inner, 0.0))
        x = _crossed(x, s, w, u, beta, time >= s)
        for level in range(tree.levels):
            size = tree.leaf << level
            if s % size == 0 and s // size % 2 == 1:
                for i in range(s, min(s + size, tokens)):
                    found[tree.row(level, i)] = x[:, i]
    every = torch.stack(columns[::-1], -1)  # [batch, T, head, key]
    loc = torch.zeros(batch, tokens, heads, tree.leaf)
    parts = [
        torch.nn.functional.pad(part, (0, tree.leaf - part.shape[-1]))
        for start in range(0, tokens, tree.leaf)
        for part in [every[:, start : start + tree.leaf, :, start : start + tree.leaf]]
    ]
    loc = torch.cat(parts, 1)
    return _stacked(found, q), loc


def _keys(tree: Tree, k: Tensor, w: Tensor, u: Tensor, beta: Tensor) -> Tensor:
    batch, tokens, heads, width = k.shape
    time = torch.arange(tokens)
    found: list[Tensor] = [torch.zeros(batch, heads, width)] * (tree.levels * tree.rows)
    x = k
    for s in range(tokens):
        x = _crossed(x, s, u, w, beta, time < s)
        for level in range(tree.levels):
            size = tree.leaf << level
            node = s // size
            if (s + 1) % size == 0 and node % 2 == 0 and s + 1 < tree.leaves * tree.leaf:
                for j in range(node * size, s + 1):
                    found[tree.row(level, j)] = x[:, j]
    return _stacked(found, k)


def _stacked(rows: list[Tensor], like: Tensor) -> Tensor:
    if rows:
        return torch.stack(rows, 1)
    return like[:, :0]

"""Transports by their definition in float64, step by step, and data where the past counts."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from generated_modules import execute
from torch import Tensor
from torch.nn.functional import normalize

from gnomon.lowering.emit import transport_library
from gnomon.lowering.emit.torch_library import functions

HEAD = """
from contextlib import contextmanager
from typing import NamedTuple
import torch
import torch.nn.functional as F
"""


def dense_steps(w: Tensor, u: Tensor, beta: Tensor, log: Tensor | None = None) -> Tensor:
    """Diag(e^log) - beta w u^T of each token; several reflections of one token are multiplied.

    w, u [batch, time, head, (repeat,) d], beta [batch, time, head (, repeat)] -> [.., d, d]
    """
    one = torch.eye(w.shape[-1], dtype=w.dtype)
    base = one if log is None else torch.diag_embed(log.exp())
    low = beta[..., None, None] * w[..., :, None] * u[..., None, :]
    if w.ndim == 4:
        return base - low
    product = one - low[:, :, :, 0]
    for repeat in range(1, w.shape[3]):
        product = (one - low[:, :, :, repeat]) @ product
    return product


def logits(q: Tensor, k: Tensor, steps: Tensor, lengths: Sequence[tuple[int, int]]) -> Tensor:
    """q_i M_i ... M_{j+1} k_j for j <= i of one sequence, 0 elsewhere.

    Gives [batch, head, time_q, time_k]. Sequences (queries, keys) lie one behind the other; the
    queries are the last of their tokens.
    """
    group = q.shape[2] // k.shape[2]
    k, steps = k.repeat_interleave(group, 2), steps.repeat_interleave(group, 2)
    found = torch.zeros(q.shape[0], q.shape[2], q.shape[1], k.shape[1], dtype=q.dtype)
    first_q = first_k = 0
    for queries, keys in lengths:
        for row in range(queries):
            x = q[:, first_q + row]
            for token in reversed(range(keys - queries + row + 1)):
                found[:, :, first_q + row, first_k + token] = (x * k[:, first_k + token]).sum(-1)
                x = (x[..., None, :] @ steps[:, first_k + token])[..., 0, :]
        first_q, first_k = first_q + queries, first_k + keys
    return found


def swap_tokens(time: int, heads: int, d: int, *, slots: int = 5, seed: int = 0) -> Tensor:
    """w of reflections at beta = 2 that exchange two of the first slots: [1, time, heads, d].

    Their product is a permutation, so that the oldest key still counts as much as the newest.
    """
    random = torch.Generator().manual_seed(seed)
    w = torch.zeros(1, time, heads, d, dtype=torch.float64)
    for token in range(time):
        for head in range(heads):
            a, b = torch.randperm(slots, generator=random)[:2].tolist()
            w[0, token, head, a], w[0, token, head, b] = 2**-0.5, -(2**-0.5)
    return w


def directions(*shape: int, seed: int = 0) -> Tensor:
    """Vectors of length 1."""
    random = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(shape, generator=random, dtype=torch.float64), dim=-1)


def stages(flavour: str, leaf: int) -> ModuleType:
    """The functions of a flavour as a module."""
    shared = functions(["call", "query_rows", "refuse_second_derivative"])
    text = [HEAD, f"LEAF = {leaf}", *shared, *transport_library.functions([flavour])]
    return execute("\n\n\n".join(text))


def call_of(module: ModuleType, lengths: Sequence[tuple[int, int]], heads: int, kv: int) -> Any:
    """The call of one padded sequence, or of several packed ones."""
    queries, keys = ([n[side] for n in lengths] for side in (0, 1))
    sizes = 1, sum(queries), sum(keys), heads, kv, len(lengths), max(queries), max(keys)
    if len(lengths) == 1:
        return module.Call(*sizes)
    offsets = [torch.tensor([0, *n]).cumsum(0, dtype=torch.int32) for n in (queries, keys)]
    if queries == keys:
        offsets[1] = offsets[0]
    return module.Call(*sizes, *offsets)

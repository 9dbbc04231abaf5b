"""Ordered products of the score IR, by their plain definition.

A dot through T is a_i T_i T_{i-1} ... T_{j+1} . b_j with row vectors: the query's own step in, the
key's out. Nothing is factored over tokens, so that every cleverer form has something to be compared
with.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gnomon.dsl.errors import InputError
from gnomon.dsl.evaluate_layout import Values
from gnomon.dsl.evaluate_matrices import collapsed, dense, exponential, rotation
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import Apply, Contract, Diagonal, Dot, Expr, MatrixExp, Outer, Rotation

KEYS = 64
"""Keys of a part of a walk along the sequence."""
Step = Callable[[Tensor, int], Tensor]
Part = Callable[[Tensor, range], tuple[Tensor, Tensor]]
"""(a before the first of some keys, the keys) -> their columns of the score, a behind the last."""


def carried_dot(values: Values, node: Dot, through: Expr) -> Tensor:
    """a_i T_i ... T_{j+1} . b_j for every pair, [batch, head, time_q, time_k]."""
    if kind(through).place == "constant":
        return _powers(values, node, through)
    a, b = values.at(node.a, "row")[:, :, :, 0], values.at(node.b, "column")[:, :, 0]
    shape = (values.call.sizes["batch"], values.call.sizes["Head"])
    a = a.double().expand(*shape, values.call.time_q, a.shape[-1])
    b = b.double().expand(*shape, values.call.time_k, b.shape[-1])
    index = values.call.query_index()
    score = _towards_the_first_key(a, b, _act(values, through), index)
    later = values.call.offsets() < 0
    if bool((values.visible() & later).any()):
        steps = dense(through, collapsed(values, through, "token"))
        ahead = _towards_the_last_key(a, b, _times(values, torch.linalg.inv(steps)), index)
        return torch.where(later, ahead, score)
    return score


def _towards_the_first_key(a: Tensor, b: Tensor, step: Step, index: Tensor) -> Tensor:
    each_key = b.unsqueeze(-1).unbind(2)

    def part(a: Tensor, keys: range) -> tuple[Tensor, Tensor]:
        waiting = int((index < keys[-1]).sum())  # queries that no key of this part steps
        still, moving, own = a[:, :, :waiting], a[:, :, waiting:], index[waiting:, None]
        columns: list[Tensor] = []
        for key in keys:
            columns.append(torch.cat([still @ each_key[key], moving @ each_key[key]], 2))
            moving = torch.where(own >= key, step(moving, key), moving)
        return torch.cat(columns[::-1], -1), torch.cat([still, moving], 2)

    return torch.cat(_by_parts(part, a, range(b.shape[2])[::-1])[::-1], -1)


def _towards_the_last_key(a: Tensor, b: Tensor, back: Step, index: Tensor) -> Tensor:
    """For keys after the query: the product over (i, j], inverted."""
    each_key = b.unsqueeze(-1).unbind(2)

    def part(a: Tensor, keys: range) -> tuple[Tensor, Tensor]:
        count = int((index < keys[-1]).sum())  # queries that some key of this part steps
        moving, still, own = a[:, :, :count], a[:, :, count:], index[:count, None]
        columns: list[Tensor] = []
        for key in keys:
            moving = torch.where(own < key, back(moving, key), moving)
            columns.append(torch.cat([moving @ each_key[key], still @ each_key[key]], 2))
        return torch.cat(columns, -1), torch.cat([moving, still], 2)

    return torch.cat(_by_parts(part, a, range(b.shape[2])), -1)


def _by_parts(part: Part, a: Tensor, keys: range) -> list[Tensor]:
    """The columns of each `KEYS` keys in turn, while `a` moves on from one part to the next.

    Autograd keeps `a` where a part begins and forms the rest of it again: of T keys T / KEYS + KEYS
    copies of `a` instead of T. In a part all rows that move do so in tensors of one size, so that
    torch's allocator on a GPU takes the same blocks again and again.
    """
    columns: list[Tensor] = []
    for start in range(0, len(keys), KEYS):
        few = keys[start : start + KEYS]
        if len(few) == len(keys):
            found, a = part(a, few)
        else:
            found, a = checkpoint(part, a, few, use_reentrant=False, preserve_rng_state=False)
        columns.append(found)
    return columns


def _act(values: Values, node: Expr) -> Step:
    """What x @ T_s is for rows x and the token s; low ranks without their d x d matrix."""
    match node:
        case Apply(fn="-", args=(base, Outer() as low)):
            return _minus_outer(values, _act(values, base), low)
        case Contract():
            first, second = _act(values, node.x), _act(values, node.m)
            return lambda x, s: second(first(x, s), s)
        case Diagonal():
            factors = _by_token(values, torch.exp(_vector(values, node.log)).unsqueeze(-2))
            return lambda x, s: x * factors[s]
        case _:
            return _times(values, dense(node, collapsed(values, node, "token")))


def _minus_outer(values: Values, base: Step, low: Outer) -> Step:
    """X @ (D - scale w u^T), or the product of one such for each repeat: index 0 acts last."""
    w, u, scale = (values.at(x, "token").double() for x in (low.w, low.u, low.scale))
    if len(kind(low.w).axes) < 2:
        w, u = w.unsqueeze(-2), u.unsqueeze(-2)
    if not kind(low.scale).axes:
        scale = scale.unsqueeze(-1)
    ws = _by_token(values, (scale[..., None] * w)[..., None])
    us = _by_token(values, u[..., None, :])

    def act(x: Tensor, s: int) -> Tensor:
        for repeat in reversed(range(ws[s].shape[2])):
            x = base(x, s) - (x @ ws[s][:, :, repeat]) * us[s][:, :, repeat]
        return x

    return act


def _times(values: Values, matrices: Tensor) -> Step:
    each = _by_token(values, matrices)
    return lambda x, s: x @ each[s]


def _vector(values: Values, log: Expr) -> Tensor:
    """The logarithms of a diagonal, [batch, head, 1, time, d | 1]."""
    value = values.at(log, "token").double()
    return value if kind(log).axes else value.unsqueeze(-1)


def _by_token(values: Values, value: Tensor) -> tuple[Tensor, ...]:
    """A token value [batch, head, 1, time, ...] key by key; a constant one for every key."""
    value = value[:, :, 0]
    if value.shape[2] == 1:
        value = value.expand(-1, -1, values.call.time_k, *value.shape[3:])
    return value[:, :, value.shape[2] - values.call.time_k :].unbind(2)


def _powers(values: Values, node: Dot, through: Expr) -> Tensor:
    """A constant transport to the power of the distance, all pairs of one distance at a time."""
    call = values.call
    a, b = values.at(node.a, "row")[:, :, :, 0].double(), values.at(node.b, "column")[:, :, 0]
    row = call.read(call.positions[None], "token", "row")
    column = call.read(call.positions[None], "token", "column")
    batch, heads = call.sizes["batch"], call.sizes["Head"]
    distance = (row - column)[:, 0].expand(batch, call.time_q, call.time_k)
    shown = values.visible().expand(-1, -1, call.time_q, call.time_k).any(1).expand_as(distance)
    a = a.expand(batch, heads, call.time_q, -1)
    b = b.double().expand(batch, heads, call.time_k, -1)
    score = a.new_zeros(batch, call.time_q, call.time_k, heads).permute(0, 3, 1, 2)
    steps = torch.unique(distance[shown])
    if not steps.numel():
        return score
    powers = _power(values, through, steps).expand(-1, heads, -1, -1).unbind(0)
    pairs = [torch.nonzero((distance == step) & shown) for step in steps]
    found = [
        torch.einsum("phd,hde,phe->ph", a[p[:, 0], :, p[:, 1]], power, b[p[:, 0], :, p[:, 2]])
        for p, power in zip(pairs, powers, strict=True)
    ]
    at, i, j = torch.cat(pairs).unbind(1)
    filled = score.permute(0, 2, 3, 1).index_put((at, i, j), torch.cat(found))
    return filled.permute(0, 3, 1, 2)


def _power(values: Values, node: Expr, steps: Tensor) -> Tensor:
    """The matrix to each of the powers, [power, head | 1, d, d]; InputError for a real one."""
    match node:
        case Rotation():
            angle = values(node.angle).double()[0, :, 0, 0]
            return rotation(steps[:, None, None] * angle, node.layout)
        case Diagonal() if kind(node.log).axes:
            return torch.diag_embed(
                torch.exp(steps[:, None, None] * values(node.log).double()[0, :, 0, 0])
            )
        case MatrixExp():
            generator = collapsed(values, node.x, "constant")[0, :, 0, 0]
            scale = steps.reshape(-1, *(1,) * generator.ndim)
            return dense(node, exponential(scale * generator))
        case _ if bool((steps == steps.round()).all()):
            whole = collapsed(values, node, "constant").double()[0, :, 0, 0]
            return torch.stack([torch.linalg.matrix_power(whole, int(n)) for n in steps])
        case _:
            wanted = "integers, because a matrix is raised to their difference"
            raise InputError("positions", wanted, "reals")

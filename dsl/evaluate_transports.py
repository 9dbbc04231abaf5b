"""Matrices and ordered products of the score IR, by their plain definition.

A dot through T is a_i T_i T_{i-1} ... T_{j+1} . b_j with row vectors: the query's own step in, the
key's out. Nothing is factored, so that every cleverer form has something to be compared with.
"""

import torch
from torch import Tensor

from gnomon.dsl.errors import InputError
from gnomon.dsl.evaluate_layout import LEADING, Values, align
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    Apply,
    Contract,
    Diagonal,
    Dot,
    Expr,
    MatrixExp,
    Outer,
    Place,
    Rotation,
)


def matrix(values: Values, node: Expr) -> Tensor:
    """The matrix of each token, [..., d, e]; blocks and repeats keep their axis before it."""
    place = kind(node).place
    match node:
        case Rotation():
            return rotation(values.at(node.angle, place).double(), node.layout)
        case Diagonal():
            log = values.at(node.log, place).double()
            if kind(node.log).axes:
                return torch.diag_embed(torch.exp(log))
            eye = torch.eye(values.size(node.width), dtype=log.dtype, device=log.device)
            return torch.exp(log)[..., None, None] * eye
        case Outer():
            w, u = values.at(node.w, place).double(), values.at(node.u, place).double()
            product = w[..., :, None] * u[..., None, :]
            product, scale = align([product, values.at(node.scale, place).double()])
            return scale * product
        case MatrixExp():
            return exponential(collapsed(values, node.x, place))
        case Contract():
            return collapsed(values, node.x, place) @ collapsed(values, node.m, place)
        case Apply(fn="transpose"):
            return values.at(node.args[0], place).transpose(-1, -2)
        case Apply():
            return _combine(node.fn, [values.at(x, place).double() for x in node.args])
        case _:
            raise TypeError(f"no matrix in a node of the class {type(node).__name__}")


def rotation(angle: Tensor, layout: str) -> Tensor:
    """The matrix R with (x @ R) in each plane = (x0 cos - x1 sin, x1 cos + x0 sin)."""
    planes = angle.shape[-1]
    first = torch.arange(planes, device=angle.device)
    first, second = (first, first + planes) if layout == "half" else (2 * first, 2 * first + 1)
    result = angle.new_zeros(*angle.shape[:-1], 2 * planes, 2 * planes)
    cos, sin = torch.cos(angle), torch.sin(angle)
    result[..., first, first], result[..., second, second] = cos, cos
    result[..., first, second], result[..., second, first] = sin, -sin
    return result


def exponential(x: Tensor) -> Tensor:
    """The matrix exponential; torch's own derivative wants one axis before the matrix."""
    flat = x.double().flatten(0, -3)
    result: Tensor = torch.linalg.matrix_exp(flat)
    return result.reshape(x.shape)


def collapsed(values: Values, node: Expr, place: Place) -> Tensor:
    """The matrix of each token, its repeats multiplied out: index 0 acts first, next to the key."""
    each = values.at(node, place)
    if not _is_repeated(node, each):
        return each
    total = each[..., 0, :, :]
    for repeat in range(1, each.shape[-3]):
        total = each[..., repeat, :, :] @ total
    return total


def carried_dot(values: Values, node: Dot, through: Expr) -> Tensor:
    """a_i T_i ... T_{j+1} . b_j for every pair, [batch, head, time_q, time_k]."""
    if kind(through).place == "constant":
        return _powers(values, node, through)
    steps = _dense(through, collapsed(values, through, "token"))[:, :, 0]
    a, b = values.at(node.a, "row")[:, :, :, 0], values.at(node.b, "column")[:, :, 0]
    shape = torch.broadcast_shapes(a.shape[:2], b.shape[:2], steps.shape[:2])
    a = a.double().expand(*shape, values.call.time_q, a.shape[-1])
    b = b.double().expand(*shape, values.call.time_k, b.shape[-1])
    before = max(values.call.time_q - values.call.time_k, 0)
    index = values.call.query_index()
    score = _towards_the_first_key(a, b, steps[:, :, before:], index)
    later = values.call.offsets() < 0
    if bool((values.visible() & later).any()):
        ahead = _towards_the_last_key(a, b, steps[:, :, before:], index)
        return torch.where(later, ahead, score)
    return score


def _towards_the_first_key(a: Tensor, b: Tensor, steps: Tensor, index: Tensor) -> Tensor:
    columns: list[Tensor] = []
    for key in reversed(range(b.shape[2])):
        columns.append(a @ b[:, :, key, :, None])
        waiting = int((index < key).sum())  # queries before this step do not take it
        a = torch.cat([a[:, :, :waiting], a[:, :, waiting:] @ steps[:, :, key]], 2)
    return torch.cat(columns[::-1], -1)


def _towards_the_last_key(a: Tensor, b: Tensor, steps: Tensor, index: Tensor) -> Tensor:
    """For keys after the query: the product over (i, j], inverted."""
    columns: list[Tensor] = []
    back = torch.linalg.inv(steps)
    for key in range(b.shape[2]):
        moving = int((index < key).sum())
        a = torch.cat([a[:, :, :moving] @ back[:, :, key], a[:, :, moving:]], 2)
        columns.append(a @ b[:, :, key, :, None])
    return torch.cat(columns, -1)


def _powers(values: Values, node: Dot, through: Expr) -> Tensor:
    """A constant transport, raised to the distance in positions, pair by pair of one distance."""
    call = values.call
    a, b = values.at(node.a, "row")[:, :, :, 0].double(), values.at(node.b, "column")[:, :, 0]
    row = call.read(call.positions[None], "token", "row")
    column = call.read(call.positions[None], "token", "column")
    heads = max(a.shape[1], b.shape[1], values(through).shape[1])
    batch = max(a.shape[0], b.shape[0])
    distance = (row - column)[:, 0].expand(batch, call.time_q, call.time_k)
    shown = values.visible().expand(-1, -1, call.time_q, call.time_k).any(1).expand_as(distance)
    a = a.expand(batch, heads, call.time_q, -1)
    b = b.double().expand(batch, heads, call.time_k, -1)
    score = a.new_zeros(batch, call.time_q, call.time_k, heads)
    for step in torch.unique(distance[shown]).tolist():
        power = _dense(through, _power(values, through, step))[0, :, 0, 0]
        at, i, j = torch.nonzero((distance == step) & shown, as_tuple=True)
        found = torch.einsum(
            "phd,hde,phe->ph", a[at, :, i], power.expand(heads, -1, -1), b[at, :, j]
        )
        score = score.index_put((at, i, j), found)
    return score.permute(0, 3, 1, 2)


def _power(values: Values, node: Expr, step: float) -> Tensor:
    match node:
        case Rotation():
            return rotation(step * values(node.angle).double(), node.layout)
        case Diagonal() if kind(node.log).axes:
            return torch.diag_embed(torch.exp(step * values(node.log).double()))
        case MatrixExp():
            return exponential(step * collapsed(values, node.x, "constant"))
        case _ if step == int(step):
            whole = collapsed(values, node, "constant").double()
            result: Tensor = torch.linalg.matrix_power(whole, int(step))
            return result
        case _:
            raise InputError(
                "positions", "integers, because a matrix is raised to their difference", f"{step}"
            )


def _combine(fn: str, args: list[Tensor]) -> Tensor:
    if fn in ("+", "-") and len(args) == 2:
        most = max(x.ndim for x in args)  # repeats stand before the two axes of the matrix
        left, right = (
            x.reshape(*x.shape[:LEADING], *(1,) * (most - x.ndim), *x.shape[LEADING:]) for x in args
        )
        return left + right if fn == "+" else left - right
    if fn in ("neg", "detach"):
        return -args[0] if fn == "neg" else args[0].detach()
    if fn == "*":  # a scalar times a matrix, or two lists of vectors entry by entry
        left, right = align(args)
        return left * right
    raise TypeError(f"matrices do not know {fn!r}")


def _is_repeated(node: Expr, value: Tensor) -> bool:
    return value.ndim - LEADING == 3 and len(kind(node).axes) == 2


def _dense(node: Expr, value: Tensor) -> Tensor:
    """Blocks on the diagonal of one matrix; other matrices as they are."""
    if len(kind(node).axes) < 3:
        return value
    blocks, size = value.shape[-3], value.shape[-1]
    rows = torch.arange(blocks * size, device=value.device).reshape(blocks, size)
    result = value.new_zeros(*value.shape[:-3], blocks * size, blocks * size)
    result[..., rows[:, :, None], rows[:, None, :]] = value
    return result

"""The matrices of the score IR in float64."""

import torch
from torch import Tensor

from gnomon.dsl.evaluate_layout import LEADING, Values, align
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    Apply,
    Contract,
    Diagonal,
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


def dense(node: Expr, value: Tensor) -> Tensor:
    """Blocks on the diagonal of one matrix; other matrices as they are."""
    if len(kind(node).axes) < 3:
        return value
    blocks, size = value.shape[-3], value.shape[-1]
    rows = torch.arange(blocks * size, device=value.device).reshape(blocks, size)
    result = value.new_zeros(*value.shape[:-3], blocks * size, blocks * size)
    result[..., rows[:, :, None], rows[:, None, :]] = value
    return result

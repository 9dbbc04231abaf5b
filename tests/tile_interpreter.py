"""A kernel run statement by statement in numpy: the meaning of the tile IR, independent of every printer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gnomon.lowering import tile
from gnomon.lowering.tile import Kernel, type_of

Array = npt.NDArray[Any]
_DTYPES = {"io": np.float32, "f32": np.float32, "f64": np.float64, "i32": np.int64, "i64": np.int64}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.mod,
    "**": lambda a, b: np.power(np.asarray(a, np.float64), b),
    "neg": np.negative,
    "abs": np.abs,
    "cdiv": lambda a, b: -(-a // b),
    "cos_turns": lambda x: np.cos(2 * np.pi * np.asarray(x, np.float64)),
    "sin_turns": lambda x: np.sin(2 * np.pi * np.asarray(x, np.float64)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 0.5 * (1 + np.tanh(0.5 * np.asarray(x, np.float64))),
    "softplus": lambda x: np.logaddexp(0.0, x),
    "log_sigmoid": lambda x: -np.logaddexp(0.0, -np.asarray(x, np.float64)),
    "relu": lambda x: np.maximum(x, 0),
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "where": np.where,
}
_FUNCTIONS |= {
    name: getattr(np, name)
    for name in "exp exp2 log log2 log1p expm1 sqrt sin cos tanh minimum maximum floor".split()
}


class Exit(Exception):
    """The program has nothing to do."""


def run(kernel: Kernel, tensors: dict[str, Array], numbers: dict[str, float | int]) -> None:
    """Run every program of the grid; outputs are written into `tensors`."""
    extents = []
    for _, extent in kernel.grid:
        extents.append(int(_Program(kernel, tensors, dict(numbers)).value(extent)))
    with np.errstate(all="ignore"):
        for point in np.ndindex(*extents):
            names = dict(numbers)
            names |= {axis: i for (axis, _), i in zip(kernel.grid, point, strict=True)}
            try:
                _Program(kernel, tensors, names).run(kernel.body)
            except Exit:
                continue


class _Program:
    def __init__(self, kernel: Kernel, tensors: dict[str, Array], names: dict[str, Any]) -> None:
        self.kernel, self.tensors, self.names = kernel, tensors, names

    def run(self, body: tuple[tile.Stmt, ...]) -> None:
        for stmt in body:
            match stmt:
                case tile.Let(ref, value, _) | tile.Set(ref, value):
                    self.names[ref.name] = self.fitted(value, ref.type)
                case tile.For(index, start, stop, step, inner, _):
                    first, last, by = (int(self.value(x)) for x in (start, stop, step))
                    for i in range(first, last, by):
                        self.names[index.name] = i
                        self.run(inner)
                case tile.Store(tensor, index, value, limits):
                    shape = tile._index_shape(index)
                    values = self.broadcast(value, shape)
                    places, inside = self.places(index, limits, shape)
                    np.broadcast_to(values, inside.shape)
                    target = self.tensors[tensor.name]
                    for at in zip(*np.nonzero(inside), strict=True) if shape else [()]:
                        if shape or bool(inside):
                            target[tuple(int(p[at]) for p in places)] = values[at]
                case tile.Scatter(tensor, index, entry, value, limits):
                    shape = type_of(value).shape
                    full = (*index, entry)
                    places, inside = self.places(full, limits, shape)
                    target = self.tensors[tensor.name]
                    values = self.broadcast(value, shape)
                    for at in zip(*np.nonzero(inside), strict=True):
                        target[tuple(int(p[at]) for p in places)] += values[at]
                case tile.ExitIf(condition):
                    if bool(self.value(condition)):
                        raise Exit

    def fitted(self, expr: tile.Expr, type: tile.Type) -> Array:
        value = np.asarray(self.broadcast(expr, type.shape))
        return value if type.dtype == "bool" else value.astype(_DTYPES[type.dtype])

    def size(self, extent: str) -> int:
        return int(self.names[extent])

    def broadcast(self, expr: tile.Expr, shape: tuple[str, ...]) -> Array:
        """The value with axes in the order of `shape`, size 1 where it does not vary."""
        value, own = np.asarray(self.value(expr)), type_of(expr).shape
        assert set(own) <= set(shape), (own, shape)
        order = [own.index(name) for name in shape if name in own]
        value = value.transpose(order)
        value = value[tuple(slice(None) if name in own else None for name in shape)]
        return np.broadcast_to(value, tuple(self.size(name) for name in shape))

    def places(
        self, index: tuple[tile.Expr, ...], limits: tuple[tile.Expr | None, ...], shape: tuple[str, ...]
    ) -> tuple[list[Array], Array]:
        places = [self.broadcast(part, shape) for part in index]
        inside = np.ones(tuple(self.size(name) for name in shape), bool)
        for place, limit in zip(places, limits, strict=True):
            if limit is not None:
                inside = inside & (place < int(self.value(limit)))
        return places, inside

    def value(self, expr: tile.Expr) -> Any:
        match expr:
            case tile.Ref(name, _):
                return self.names[name]
            case tile.Number(number, _):
                return number
            case tile.Arange(extent):
                return np.arange(self.size(extent))
            case tile.Full(number, type):
                return np.full([self.size(n) for n in type.shape], number, _DTYPES[type.dtype])
            case tile.Op(fn, args, shape, dtype):
                values = [self.broadcast(arg, shape) for arg in args]
                result = _FUNCTIONS[fn](*values)
                return result if dtype == "bool" else np.asarray(result).astype(_DTYPES[dtype])
            case tile.Load(tensor, index, limits, fill):
                shape = type_of(expr).shape
                places, inside = self.places(index, limits, shape)
                source = self.tensors[tensor.name]
                safe = tuple(np.where(inside, place, 0).astype(int) for place in places)
                for place, extent, axis in zip(safe, source.shape, tensor.axes, strict=True):
                    assert (place < extent).all() and (place >= 0).all(), f"{tensor.name} {axis}"
                return np.where(inside, source[safe], fill).astype(_DTYPES[tensor.dtype])
            case tile.Dot(a, b):
                left, right = type_of(a).shape, type_of(b).shape
                (shared,) = [n for n in left if n in right]
                return np.tensordot(
                    np.asarray(self.value(a), np.float64),
                    np.asarray(self.value(b), np.float64),
                    axes=(left.index(shared), right.index(shared)),
                ).astype(np.float32)
            case tile.Reduce(fn, x, axis):
                return getattr(np, fn)(self.value(x), axis=type_of(x).shape.index(axis))
            case tile.Cast(x, dtype):
                return np.asarray(self.value(x)).astype(_DTYPES[dtype])
        raise TypeError(f"{expr!r}")

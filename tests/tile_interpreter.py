"""A kernel run in numpy: the meaning of the tile IR, independent of every printer.

Each expression becomes a function of the names that are known when it runs, once for a kernel; the
programs of the grid then run one after another.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnomon.lowering import tile
from gnomon.lowering.tile import Kernel, type_of

Array = npt.NDArray[Any]
Names = dict[str, Any]
Value = Callable[[Names], Any]
Step = Callable[[Names], None]

_DTYPES: dict[str, Any] = {
    "io": np.float32,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int64,
    "i64": np.int64,
    "bool": np.bool_,
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.mod,
    "**": lambda a, b: np.power(np.asarray(a, np.float64), b),
    "<<": np.left_shift,
    ">>": np.right_shift,
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
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "apart": lambda a, b, low: a - b + low,
    "floor": np.floor,
}


class ProgramExit(Exception):  # noqa: N818 - it ends a program as it should end
    """The program has nothing to do."""


def run(kernel: Kernel, tensors: dict[str, Array], numbers: Mapping[str, float]) -> None:
    """Run every program of the grid; outputs, NaN before (or 0: inout), are written once."""
    meaning = Meaning(tensors)
    extents = [int(meaning.value(extent)(dict(numbers))) for _, extent in kernel.grid]
    steps = meaning.body(kernel.body)
    with np.errstate(all="ignore"):
        for point in np.ndindex(*extents):
            names: Names = dict(numbers)
            names |= {axis: i for (axis, _), i in zip(kernel.grid, point, strict=True)}
            try:
                _walk(steps, names)
            except ProgramExit:
                continue


def _walk(steps: list[Step], names: Names) -> None:
    for step in steps:
        step(names)


class Meaning:
    """Statements and expressions as functions of the names in scope."""

    def __init__(self, tensors: dict[str, Array]) -> None:
        self.tensors = tensors

    # -- statements

    def body(self, body: tuple[tile.Stmt, ...]) -> list[Step]:
        """The statements that do something, in order."""
        shown = (stmt for stmt in body if not isinstance(stmt, (tile.Remark, tile.Blank)))
        return [self.statement(stmt) for stmt in shown]

    def statement(self, stmt: tile.Stmt) -> Step:
        match stmt:
            case tile.Let(ref, value, _) | tile.Set(ref, value):
                return self._assign(ref, value)
            case tile.For():
                return self._loop(stmt)
            case tile.Store():
                return self._store(stmt)
            case tile.Scatter():
                return self._scatter(stmt)
            case tile.ExitIf(condition):
                return self._exit(condition)
        raise TypeError(f"{stmt!r}")

    def _assign(self, ref: tile.Ref, expr: tile.Expr) -> Step:
        assert type_of(expr).shape == ref.type.shape, (ref, expr)
        value = _cast(self.value(expr), ref.type.dtype)

        def assign(names: Names) -> None:
            names[ref.name] = value(names)

        return assign

    def _loop(self, loop: tile.For) -> Step:
        ends = [self.value(x) for x in (loop.start, loop.stop, loop.step)]
        inner, index = self.body(loop.body), loop.index.name

        def walk(names: Names) -> None:
            for i in range(*(int(end(names)) for end in ends)):
                names[index] = i
                _walk(inner, names)

        return walk

    def _exit(self, condition: tile.Expr) -> Step:
        value = self.value(condition)

        def leave(names: Names) -> None:
            if value(names):
                raise ProgramExit

        return leave

    def _store(self, stmt: tile.Store) -> Step:
        shape = tile._index_shape(stmt.index)
        places = [self.aligned(part, shape) for part in stmt.index]
        inside, value = self.inside(stmt.index, stmt.limits, shape), self.aligned(stmt.value, shape)
        target = self.tensors[stmt.tensor.name]

        def store(names: Names) -> None:
            parts = np.broadcast_arrays(inside(names), value(names), *(p(names) for p in places))
            shown = parts[0]
            where = tuple(part[shown] for part in parts[2:])
            before = target[where]
            poisoned = stmt.tensor.mode == "out" and before.dtype.kind == "f"
            fresh = np.isnan(before) if poisoned else before == 0
            assert fresh.all(), f"{stmt.tensor.name} is written twice"
            target[where] = parts[1][shown]

        return store

    def _scatter(self, stmt: tile.Scatter) -> Step:
        index, shape = (*stmt.index, stmt.entry), type_of(stmt.value).shape
        places = [self.aligned(part, shape) for part in index]
        inside, value = self.inside(index, stmt.limits, shape), self.value(stmt.value)
        target = self.tensors[stmt.tensor.name]

        def scatter(names: Names) -> None:
            parts = np.broadcast_arrays(inside(names), value(names), *(p(names) for p in places))
            shown = parts[0]
            np.add.at(target, tuple(part[shown] for part in parts[2:]), parts[1][shown])

        return scatter

    # -- expressions

    def value(self, expr: tile.Expr) -> Value:
        """The function that evaluates an expression."""
        match expr:
            case tile.Ref(name, _) | tile.Relabel(tile.Ref(name, _), _):
                return operator.itemgetter(name)
            case tile.Number(number, _):
                return lambda _: number
            case tile.Arange(extent):
                return lambda names: np.arange(names[tile.extent_of(extent)])
            case tile.Full(number, of):
                dtype = _DTYPES[of.dtype]
                extents = [tile.extent_of(name) for name in of.shape]
                return lambda names: np.full([names[n] for n in extents], number, dtype)
            case tile.Op():
                return self._op(expr)
            case tile.Load():
                return self._load(expr)
            case tile.Dot(a, b, _):
                return self._dot(a, b)
            case tile.Cast(x, dtype):
                return _cast(self.value(x), dtype)
            case tile.Reduce(fn, x, axis):
                inner, number = self.value(x), type_of(x).shape.index(axis)
                fold = getattr(np, fn)
                return lambda names: fold(inner(names), axis=number)
        raise TypeError(f"{expr!r}")

    def _op(self, op: tile.Op) -> Value:
        wide = [tile.Cast(x, "f32") if type_of(x).dtype == "f16" else x for x in op.args]
        fn, args = FUNCTIONS[op.fn], [self.aligned(arg, op.shape) for arg in wide]
        return _cast(lambda names: fn(*[arg(names) for arg in args]), op.dtype)

    def _dot(self, a: tile.Expr, b: tile.Expr) -> Value:
        left, right = self.value(a), self.value(b)
        (shared,) = set(type_of(a).shape) & set(type_of(b).shape)
        axes = type_of(a).shape.index(shared), type_of(b).shape.index(shared)

        def product(names: Names) -> Array:
            x, y = np.asarray(left(names), np.float64), np.asarray(right(names), np.float64)
            result: Array = np.moveaxis(x, axes[0], 1) @ np.moveaxis(y, axes[1], 0)
            return result.astype(np.float32)

        return product

    def _load(self, load: tile.Load) -> Value:
        source, shape = self.tensors[load.tensor.name], type_of(load).shape
        axes = zip(load.index, load.limits, source.shape, strict=True)
        places = [self.bounded(part, limit, size, shape) for part, limit, size in axes]
        inside = self.inside(load.index, load.limits, shape)

        def read(names: Names) -> Any:
            found = source[tuple(place(names) for place in places)]
            return np.where(inside(names), found, load.fill)

        return _cast(read, load.tensor.dtype)

    def bounded(
        self, index: tile.Expr, limit: tile.Expr | None, size: int, shape: tuple[str, ...]
    ) -> Value:
        """An index with 0 in place of what its limit refuses; what is left must be in memory."""
        value = self.aligned(index, shape)
        end = None if limit is None else self.value(limit)

        def safe(names: Names) -> Any:
            place = np.asarray(value(names))
            if end is not None:
                place = np.where(place < end(names), place, 0)
            assert place.min(initial=0) >= 0, f"{index} is negative"
            assert place.max(initial=-1) < size, f"{index} reaches past {size}"
            return place

        return safe

    def inside(
        self,
        index: tuple[tile.Expr, ...],
        limits: tuple[tile.Expr | None, ...],
        shape: tuple[str, ...],
    ) -> Value:
        """Which elements stand below every limit."""
        pairs = [
            (self.aligned(part, shape), self.value(limit))
            for part, limit in zip(index, limits, strict=True)
            if limit is not None
        ]

        def shown(names: Names) -> Any:
            result: Any = np.True_
            for place, limit in pairs:
                result = result & (place(names) < limit(names))
            return result

        return shown

    def aligned(self, expr: tile.Expr, shape: tuple[str, ...]) -> Value:
        """The value with its axes in the order of `shape`, size 1 where it does not vary."""
        value, own = self.value(expr), type_of(expr).shape
        assert set(own) <= set(shape), (own, shape)
        if not own or own == shape[-len(own) :]:
            return value
        order = [own.index(name) for name in shape if name in own]
        spread = tuple(slice(None) if name in own else None for name in shape)
        return lambda names: np.transpose(value(names), order)[spread]


def _cast(value: Value, dtype: str) -> Value:
    kind = _DTYPES[dtype]
    return lambda names: np.asarray(value(names)).astype(kind, copy=False)

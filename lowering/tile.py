"""The tile IR: one program of a kernel, statement by statement.

    kernel ::= Kernel(name, doc, params, grid, body)
    param  ::= Tensor(name, axes, dtype, mode) | Scalar(name, dtype) | Tunable(name)
    stmt   ::= Let(ref, expr)                    a value with a name, made once
             | Set(ref, expr)                    a new value for a carried name
             | For(index, start, stop, step, body, stages)
             | Store(tensor, index, value, limits)
             | Scatter(tensor, index, entry, value, limits)   tensor[index, entry] += value
             | ExitIf(condition) | Remark(text) | Blank()
    expr   ::= Ref(name, type) | Number(value, dtype) | Op(fn, args) | Arange(extent)
             | Load(tensor, index, limits, fill) | Dot(a, b, precision) | Reduce(fn, x, axis)
             | Cast(x, dtype) | Full(value, type) | Relabel(x, shape)

A value is a pure tile: a dtype and a shape made of *named* extents ("BM" query rows, "BN" keys,
"BD0" channels of dot 0, "BV" channels of v, "BE0" channels of a sum). Names do the aligning: in an
`Op` every operand is broadcast to the union of the names, in the order of the longest operand (two
vectors: the order of the kernel's axes); `Dot` contracts the one name its operands share; `Reduce`
folds a name away. A primed name, "BT'", is another axis of the same extent: a square is [BT, BT'],
and `Relabel` says by which names a tile goes on.
An index is one scalar or tile for each axis of the tensor; `limits` says axis by axis below which
bound an element exists (None: always). What lies outside reads as `fill` and is never stored.
Every load of a loop body is a load of that iteration: `For.stages` says how many iterations ahead a
target may start it (0: as many as the launch says), and its consumers are the statements that name
it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from gnomon.lowering.made import Powers, Reach, SumByTile

DType = Literal["io", "f16", "f32", "f64", "i32", "i64", "bool"]
"""io is the dtype of q, k and v in this kernel (bf16, fp16 or fp32); f16 is fp32 on a CPU."""

Precision = Literal["ieee", "tf32", "tf32x3"]
"""How fp32 operands are multiplied: exactly, rounded to tf32, or by three products in tf32."""

Scalarish = int | float


@dataclass(frozen=True, slots=True)
class Type:
    """What a value is: element type and named extents; () is a scalar."""

    dtype: DType
    shape: tuple[str, ...] = ()


# ---- parameters


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in memory with any strides; axes are named, e.g. ("batch", "time_q", "head").

    The launch makes what is "made" from what is "in" (`Kernel.made`).
    """

    name: str
    axes: tuple[str, ...]
    dtype: DType
    mode: Literal["in", "out", "inout", "made"]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number known at the launch (T_q, T_k, H, scale, ...)."""

    name: str
    dtype: DType
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Tunable:
    """A compile-time extent (BM, BN) or padded width (BD0, BV): a power of two on a GPU."""

    name: str
    doc: str = ""


Param = Tensor | Scalar | Tunable


# ---- expressions


@dataclass(frozen=True, slots=True)
class Expr:
    """A pure value."""


@dataclass(frozen=True, slots=True)
class Ref(Expr):
    """A named value: a Let, a loop index, an axis of the grid, a scalar parameter or a tunable."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Number(Expr):
    """A literal; float("-inf") and float("inf") are allowed."""

    value: Scalarish
    dtype: DType = "f32"


@dataclass(frozen=True, slots=True)
class Op(Expr):
    """A pointwise function.

    + - * / // % ** << >> neg abs exp exp2 log log2 log1p expm1 sqrt rsqrt sin cos cos_turns
    sin_turns tanh sigmoid log_sigmoid softplus relu minimum maximum floor where < <= > >= == != and
    or not cdiv apart. apart(a, b, low) is a - b + low in this order, whatever else is reordered.
    """

    fn: str
    args: tuple[Expr, ...]
    shape: tuple[str, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Arange(Expr):
    """0, 1, ..., extent - 1."""

    extent: str


@dataclass(frozen=True, slots=True)
class Full(Expr):
    """A tile of one number: what a carried value starts as."""

    value: Scalarish
    type: Type


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """tensor[index]; elements at or past a limit read as `fill`."""

    tensor: Tensor
    index: tuple[Expr, ...]
    limits: tuple[Expr | None, ...]
    fill: Scalarish = 0


@dataclass(frozen=True, slots=True)
class Dot(Expr):
    """The matrix product over the one extent that both operands share; accumulates in f32.

    Operands of one 16-bit type are multiplied as they are, others as fp32 by `precision`.
    """

    a: Expr
    b: Expr
    precision: Precision = "ieee"


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """max, min or sum over one named extent."""

    fn: Literal["max", "min", "sum"]
    x: Expr
    axis: str


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Another element type; to io it rounds to the dtype of the call."""

    x: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Relabel(Expr):
    """A named tile with other names for its axes, extent for extent the same: nothing is done.

    It stands where a product takes an operand, so that a tile can meet itself.
    """

    x: Ref
    shape: tuple[str, ...]


def extent_of(name: str) -> str:
    """The extent of an axis: that of its name without primes."""
    return name.rstrip("'")


# ---- statements


@dataclass(frozen=True, slots=True)
class Stmt:
    """One line, or one loop."""


@dataclass(frozen=True, slots=True)
class Let(Stmt):
    """A value with a name, made once in its scope."""

    ref: Ref
    value: Expr
    note: str = ""
    """A shape or why remark that stands above the line; empty for none."""


@dataclass(frozen=True, slots=True)
class Set(Stmt):
    """A new value for a carried name; its type stays."""

    ref: Ref
    value: Expr


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """for index in range(start, stop, step); carried names are those that `Set` changes inside."""

    index: Ref
    start: Expr
    stop: Expr
    step: Expr
    body: tuple[Stmt, ...]
    stages: int = 0


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    """tensor[index] = value, where the index is inside its limits."""

    tensor: Tensor
    index: tuple[Expr, ...]
    value: Expr
    limits: tuple[Expr | None, ...]


@dataclass(frozen=True, slots=True)
class Scatter(Stmt):
    """tensor[*index, entry] += value.

    `index` has a scalar or a stationary vector for every axis but the last; `entry` and `value` are
    tiles. Where several elements of the tile meet in one place they are summed; the place belongs
    to this program alone, so no atomics are needed.
    """

    tensor: Tensor
    index: tuple[Expr, ...]
    entry: Expr
    value: Expr
    limits: tuple[Expr | None, ...]


@dataclass(frozen=True, slots=True)
class ExitIf(Stmt):
    """This program has nothing to do."""

    condition: Expr


@dataclass(frozen=True, slots=True)
class Remark(Stmt):
    """A comment line over what follows."""

    text: str


@dataclass(frozen=True, slots=True)
class Blank(Stmt):
    """An empty line of the text."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: one program for every point of the grid (axes named, the first runs fastest)."""

    name: str
    doc: str
    params: tuple[Param, ...]
    grid: tuple[tuple[str, Expr], ...]
    body: tuple[Stmt, ...]
    order: tuple[str, ...] = ("BM", "BN")
    """The axes that meet in tiles; of a score tile the stationary one first."""
    widths: tuple[tuple[str, str], ...] = field(default=())
    """(padded tunable, true width scalar) pairs, e.g. ("BD0", "D0")."""
    fuses: bool = True
    """Whether a target may round a product and a sum once. Not where a row statistic of scores is
    taken off them again: masked and whole tiles must give a score the same digits."""
    made: tuple[SumByTile | Powers | Reach, ...] = ()
    """What a launch makes before it starts the kernel."""


# ---- types


def type_of(expr: Expr) -> Type:
    """The dtype and the named shape of an expression."""
    match expr:
        case Ref(_, type) | Full(_, type):
            return type
        case Number(_, dtype):
            return Type(dtype)
        case Op(_, _, shape, dtype):
            return Type(dtype, shape)
        case Arange(extent):
            return Type("i32", (extent,))
        case Load(tensor, index, _, _):
            return Type(tensor.dtype, _index_shape(index))
        case Dot(a, b, _):
            return Type("f32", _dot_shape(type_of(a).shape, type_of(b).shape))
        case Reduce(_, x, axis):
            of = type_of(x)
            return Type(of.dtype, tuple(name for name in of.shape if name != axis))
        case Cast(x, dtype):
            return Type(dtype, type_of(x).shape)
        case Relabel(x, shape):
            return Type(x.type.dtype, shape)
    raise TypeError(f"no type for {expr!r}")


def _index_shape(index: tuple[Expr, ...]) -> tuple[str, ...]:
    shape: list[str] = []
    for part in index:
        shape += [name for name in type_of(part).shape if name not in shape]
    return tuple(shape)


def _dot_shape(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    shared = [name for name in a if name in b]
    if len(a) != 2 or len(b) != 2 or len(shared) != 1:
        raise TypeError(f"a dot wants two matrices that share one extent; got {a} and {b}")
    return (*(n for n in a if n != shared[0]), *(n for n in b if n != shared[0]))


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that a statement itself evaluates (not those of a loop's body)."""
    match stmt:
        case Let(_, value, _) | Set(_, value):
            return (value,)
        case For(_, start, stop, step, _, _):
            return (start, stop, step)
        case Store(_, index, value, limits):
            return (*index, value, *(x for x in limits if x is not None))
        case Scatter(_, index, entry, value, limits):
            return (*index, entry, value, *(x for x in limits if x is not None))
        case ExitIf(condition):
            return (condition,)
    return ()


def operands(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside an expression."""
    match expr:
        case Op(_, args, _, _):
            return args
        case Load(_, index, limits, _):
            return (*index, *(x for x in limits if x is not None))
        case Dot(a, b, _):
            return (a, b)
        case Reduce(_, x, _) | Cast(x, _) | Relabel(x, _):
            return (x,)
    return ()


def names_in(expr: Expr) -> set[str]:
    """Every name that an expression reads."""
    if isinstance(expr, Ref):
        return {expr.name}
    return {name for part in operands(expr) for name in names_in(part)}


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, loops before their bodies."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, For):
            yield from walk(stmt.body)

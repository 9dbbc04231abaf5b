"""Building tile programs: a `Block` collects statements and gives tiles Python's arithmetic."""

from collections.abc import Iterator
from contextlib import contextmanager

from gnomon.lowering import tile
from gnomon.lowering.tile import DType, Expr, Number, Op, Ref, Stmt, Type, type_of

_BOOL = {"<", "<=", ">", ">=", "==", "!=", "and", "or", "not"}
_RANK: dict[DType, int] = {"bool": 0, "i32": 1, "i64": 2, "f16": 3, "io": 3, "f32": 4, "f64": 5}
_REAL = {
    *("/", "**", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt"),
    *("sin", "cos", "sin_turns", "cos_turns", "tanh", "sigmoid", "log_sigmoid", "softplus"),
}

Operand = Expr | int | float


def lift(x: Operand) -> Expr:
    """A Python number as a literal."""
    if isinstance(x, Expr):
        return x
    return Number(x, "i32" if isinstance(x, int) else "f32")


class Block:
    """Statements in the order in which they run; names are given once."""

    def __init__(self, order: tuple[str, ...]) -> None:
        self.order = order
        self.body: list[Stmt] = []
        self.names: set[str] = set()

    # -- expressions

    def op(self, fn: str, *args: Operand) -> Expr:
        """A pointwise function of tiles, broadcast by the names of their extents."""
        values = tuple(lift(arg) for arg in args)
        types = [type_of(value) for value in values]
        return Op(fn, values, self._join([t.shape for t in types]), _dtype(fn, values, types))

    def _join(self, shapes: list[tuple[str, ...]]) -> tuple[str, ...]:
        longest = max(shapes, key=len)
        extra = [name for shape in shapes for name in shape if name not in longest]
        if not extra:
            return longest
        names = dict.fromkeys([*longest, *extra])
        if not set(names) <= set(self.order):
            raise TypeError(f"cannot broadcast {shapes} together: only {self.order} meet in a tile")
        return tuple(name for name in self.order if name in names)

    # -- statements

    def let(self, name: str, value: Operand, note: str = "") -> Ref:
        """A new name for a value."""
        if name in self.names:
            raise ValueError(f"the name {name!r} is taken")
        self.names.add(name)
        lifted = lift(value)
        ref = Ref(name, type_of(lifted))
        self.body.append(tile.Let(ref, lifted, note))
        return ref

    def set(self, ref: Ref, value: Expr) -> None:
        """A new value for a carried name; its type stays."""
        if type_of(value).shape != ref.type.shape:
            raise TypeError(f"{ref.name} has shape {ref.type.shape}; got {type_of(value).shape}")
        self.body.append(tile.Set(ref, value))

    def remark(self, text: str) -> None:
        """A comment line."""
        self.body.append(tile.Remark(text))

    def blank(self) -> None:
        """An empty line."""
        self.body.append(tile.Blank())

    def add(self, stmt: Stmt) -> None:
        """A statement that gives no name."""
        self.body.append(stmt)

    @contextmanager
    def loop(
        self, index: str, start: Operand, stop: Operand, step: Operand, stages: int = 0
    ) -> Iterator[Ref]:
        """A loop over range(start, stop, step); names made inside are free again afterwards."""
        outer, names = self.body, set(self.names)
        self.body = []
        ref = Ref(index, Type("i32"))
        yield ref
        body, self.body, self.names = tuple(self.body), outer, names
        self.body.append(tile.For(ref, lift(start), lift(stop), lift(step), body, stages))

    @contextmanager
    def when(self, name: str, condition: Expr) -> Iterator[None]:
        """Statements that run where the condition holds: a loop of one round, or none."""
        rounds = self.op("where", condition, 1, 0)
        with self.loop(f"_{name}", 0, rounds, 1):
            yield


def _dtype(fn: str, values: tuple[Expr, ...], types: list[Type]) -> DType:
    if fn in _BOOL:
        return "bool"
    counted = list(zip(values, types, strict=True))[1 if fn == "where" else 0 :]
    # literals adapt to the tile beside them: x * 2 stays f32, i + 1 stays i32
    firm = [t.dtype for v, t in counted if not isinstance(v, Number)] or [
        t.dtype for _, t in counted
    ]
    widest = max(firm, key=lambda d: _RANK[d])
    soft_real = any(isinstance(v, Number) and v.dtype in ("f32", "f64") for v, _ in counted)
    if widest in ("bool", "i32", "i64") and (fn in _REAL or soft_real):
        return "f32"
    if widest in ("io", "f16"):
        return "f32"
    return widest

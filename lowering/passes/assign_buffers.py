"""Which values of a tile program have memory of their own, where a target computes in place.

The body becomes one in which every tile is a buffer, and every statement one of

    x = load | x = full | x = dot(buffer, buffer) | x = x + dot(buffer, buffer)
    x = reduce(buffer) | x = pointwise(buffers)

Offsets (a scalar plus an Arange) and conditions stay expressions: memory would cost more than they.
A buffer is `shared` by the threads of a program where a matrix product reads it from there (every
tile that is loaded, and every second operand), or where it lies along the moving axis of the score
tile: each thread needs other elements of it than it makes. Any other tile is a `fragment`, spread
over the threads' registers. A scalar that is a sum, or is carried, is a `cell`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from gnomon.lowering import tile
from gnomon.lowering.tile import Cast, Dot, Expr, Kernel, Load, Op, Reduce, Ref, Stmt, type_of

Home = Literal["shared", "fragment", "cell"]
_AFFINE = ("+", "-")


@dataclass(frozen=True, slots=True)
class Buffered:
    """A kernel in which every tile is a buffer, and the buffers in the order of their making."""

    kernel: Kernel
    buffers: dict[str, tuple[Ref, Home]]


def assign_buffers(kernel: Kernel) -> Buffered:
    """A buffer for every tile of a kernel."""
    flat = _Flat(kernel)
    made = replace(kernel, body=flat.body(kernel.body))
    return Buffered(made, _homes(made, flat.made, flat.cells))


class _Flat:
    """Takes statements apart until each does one thing."""

    def __init__(self, kernel: Kernel) -> None:
        statements = list(tile.walk(kernel.body))
        self.carried = {s.ref.name for s in statements if isinstance(s, tile.Set)}
        self.taken = {p.name for p in kernel.params} | {name for name, _ in kernel.grid}
        self.taken |= {s.ref.name for s in statements if isinstance(s, tile.Let)}
        self.taken |= {s.index.name for s in statements if isinstance(s, tile.For)}
        self.made: dict[str, Ref] = {}
        self.cells: set[str] = set()
        self.known: dict[Expr, Expr] = {}
        """What stands for an expression here: the value of a name, or a buffer for a part."""
        self.out: list[Stmt] = []

    # -- statements

    def body(self, stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        outer, known = self.out, dict(self.known)
        self.out = []
        for stmt in stmts:
            self.statement(stmt)
        made, self.out, self.known = tuple(self.out), outer, known
        return made

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case tile.Let(ref, value, note):
                self.let(ref, self.plain(value), note)
            case tile.Set(ref, value):
                target = self.known.get(ref, ref)
                assert isinstance(target, Ref)
                self.assign(target, self.plain(value), carried=True)
            case tile.For(index, start, stop, step, body, stages):
                first, last, by = (self.plain(x) for x in (start, stop, step))
                self.out.append(tile.For(index, first, last, by, self.body(body), stages))
            case tile.Store(tensor, index, value, limits):
                value = self.pointwise(self.plain(value), f"b_{tensor.name}")
                places, ends = self.all(index), self.bounds(limits)
                self.out.append(tile.Store(tensor, places, value, ends))
            case tile.Scatter(tensor, index, entry, value, limits):
                entry = self.pointwise(self.plain(entry), f"e_{tensor.name}")
                value = self.pointwise(self.plain(value), f"b_{tensor.name}")
                places, ends = self.all(index), self.bounds(limits)
                self.out.append(tile.Scatter(tensor, places, entry, value, ends))
            case tile.ExitIf(condition):
                self.out.append(tile.ExitIf(self.plain(condition)))
            case _:
                self.out.append(stmt)

    def let(self, ref: Ref, value: Expr, note: str) -> None:
        if self.is_virtual(ref, value):
            self.known[ref] = value
            return
        own = self.home(ref)
        self.known[ref] = own
        if note and not note.startswith("["):
            self.out.append(tile.Remark(note))
        self.assign(own, value, carried=False)

    def is_virtual(self, ref: Ref, value: Expr) -> bool:
        """Whether a value is written out where it is used: offsets and conditions of tiles."""
        if not ref.type.shape or ref.name in self.carried or self.changes(value):
            return False
        inside = list(parts(value))
        if ref.type.dtype == "bool":
            return not any(isinstance(x, Load | Dot | Reduce) for x in inside)
        offsets = all(isinstance(x, Ref | tile.Number | tile.Arange | Op) for x in inside)
        sums = all(x.fn in _AFFINE for x in inside if isinstance(x, Op) and x.shape)
        tiles = [x for x in inside if isinstance(x, Ref) and x.type.shape]
        return ref.type.dtype == "i32" and offsets and sums and not tiles

    def changes(self, value: Expr) -> bool:
        return any(isinstance(x, Ref) and x.name in self.carried for x in parts(value))

    def home(self, ref: Ref) -> Ref:
        """The name under which a value has its memory: another type needs another name."""
        name, number = ref.name, 2
        while name in self.made and self.made[name].type != ref.type:
            name, number = f"{ref.name}_{number}", number + 1
        own = Ref(name, ref.type)
        if ref.type.shape or name in self.carried:
            self.made[name] = own
        if not ref.type.shape and name in self.carried:
            self.cells.add(name)
        return own

    def assign(self, ref: Ref, value: Expr, *, carried: bool) -> None:
        """The statements that give a buffer its value; a product is added in place."""
        total = _accumulated(value) if ref.type.shape else None
        if total is None:
            self.put(ref, self.single(value, ref.name), carried=carried)
            return
        start, product = total
        product = self.product(product, ref.name)
        if start != ref:
            self.put(ref, self.pointwise(start, ref.name), carried=carried)
        self.put(ref, Op("+", (ref, product), ref.type.shape, "f32"), carried=True)

    def put(self, ref: Ref, value: Expr, *, carried: bool) -> None:
        if isinstance(value, Reduce) and not ref.type.shape:
            self.made[ref.name] = ref
            self.cells.add(ref.name)
        self.out.append(tile.Set(ref, value) if carried else tile.Let(ref, value))

    # -- expressions

    def single(self, value: Expr, stem: str) -> Expr:
        match value:
            case Dot():
                return self.product(value, stem)
            case Reduce(fn, x, axis):
                return Reduce(fn, self.buffer(x, f"{stem}_of"), axis)
        return self.pointwise(value, stem)

    def product(self, value: Dot, stem: str) -> Dot:
        return Dot(self.buffer(value.a, f"{stem}_a"), self.buffer(value.b, f"{stem}_b"))

    def pointwise(self, value: Expr, stem: str) -> Expr:
        """The value with every product and every sum in a buffer of its own."""
        match value:
            case Dot():
                return self.buffer(value, f"{stem}_dot")
            case Reduce(fn, x, _):
                name = x.name if isinstance(x, Ref) else stem
                return self.buffer(value, f"{name}_{fn}")
            case Op(fn, args, shape, dtype):
                return Op(fn, tuple(self.pointwise(x, stem) for x in args), shape, dtype)
            case Cast(x, dtype):
                return Cast(self.pointwise(x, stem), dtype)
            case Load(tensor, index, limits, fill):
                places = tuple(self.pointwise(x, f"{stem}_index") for x in index)
                return Load(tensor, places, limits, fill)
        return value

    def buffer(self, value: Expr, stem: str) -> Ref:
        """The buffer that holds a value."""
        if isinstance(value, Ref):
            return value
        if isinstance(known := self.known.get(value), Ref):
            return known
        if isinstance(value, Cast) and isinstance(value.x, Ref):
            stem = f"{value.x.name}_{value.dtype}"
        name = stem
        while name in self.taken and self.made.get(name) != Ref(name, type_of(value)):
            name += "_"
        self.taken.add(name)
        ref = self.home(Ref(name, type_of(value)))
        self.assign(ref, value, carried=False)
        if not self.changes(value):
            self.known[value] = ref
        return ref

    # -- names of this scope

    def plain(self, x: Expr) -> Expr:
        """The expression over buffers, with offsets and conditions written out."""
        match x:
            case Ref():
                return self.known.get(x, x)
            case Op(fn, args, shape, dtype):
                return Op(fn, self.all(args), shape, dtype)
            case Load(tensor, index, limits, fill):
                return Load(tensor, self.all(index), self.bounds(limits), fill)
            case Dot(a, b):
                return Dot(self.plain(a), self.plain(b))
            case Reduce(fn, a, axis):
                return Reduce(fn, self.plain(a), axis)
            case Cast(a, dtype):
                return Cast(self.plain(a), dtype)
        return x

    def all(self, parts: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(self.plain(part) for part in parts)

    def bounds(self, limits: tuple[Expr | None, ...]) -> tuple[Expr | None, ...]:
        return tuple(None if limit is None else self.plain(limit) for limit in limits)


def parts(expr: Expr) -> Iterator[Expr]:
    """An expression and everything inside it."""
    yield expr
    for part in tile.operands(expr):
        yield from parts(part)


def first_of(part: Expr) -> Expr | None:
    """The first element of an index that counts upwards by one."""
    match part:
        case tile.Arange():
            return tile.Number(0, "i32")
        case tile.Op("+", (a, b), _, _):
            for scalar, vector in ((a, b), (b, a)):
                if not type_of(scalar).shape and (first := first_of(vector)) is not None:
                    is_zero = isinstance(first, tile.Number) and first.value == 0
                    return scalar if is_zero else tile.Op("+", (scalar, first), (), "i32")
    return None


def _accumulated(value: Expr) -> tuple[Expr, Dot] | None:
    """The parts x and a . b of a value x + a . b."""
    if not isinstance(value, Op) or value.fn != "+":
        return None
    for x, y in (value.args, value.args[::-1]):
        if isinstance(y, Dot) and type_of(x) == type_of(y):
            return x, y
    return None


def products(body: tuple[Stmt, ...]) -> Iterator[Dot]:
    """The matrix products of statements that each do one thing."""
    for stmt in tile.walk(body):
        if isinstance(stmt, tile.Let | tile.Set):
            for x in (stmt.value, *tile.operands(stmt.value)):
                if isinstance(x, Dot):
                    yield x


def _homes(kernel: Kernel, made: dict[str, Ref], cells: set[str]) -> dict[str, tuple[Ref, Home]]:
    lets = [s for s in tile.walk(kernel.body) if isinstance(s, tile.Let)]
    loaded = {s.ref.name for s in lets if isinstance(s.value, Load)}
    shared = set()
    for dot in products(kernel.body):
        assert isinstance(dot.a, Ref)
        assert isinstance(dot.b, Ref)
        (common,) = set(dot.a.type.shape) & set(dot.b.type.shape)
        # only the first operand, and only as it stands, can come from registers
        if dot.a.name in loaded or dot.a.type.shape[0] == common:
            shared.add(dot.a.name)
        shared.add(dot.b.name)
    homes: dict[str, tuple[Ref, Home]] = {}
    for name, ref in made.items():
        moves = ref.type.shape == (kernel.order[1],)
        home: Home = (
            "cell" if name in cells else "shared" if name in shared or moves else "fragment"
        )
        homes[name] = (ref, home)
    return homes

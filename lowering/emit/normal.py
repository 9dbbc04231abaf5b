"""Statements of the tile IR as steps that each do one thing, where a target writes its own loops.

    step ::= scalar(ref, value) | fill(ref, Full) | copy(ref, Load) | dot(ref, Dot(Ref, Ref))
           | point(ref, value) | fold(ref, Reduce) | store | scatter | loop | exit

A `point` is a pointwise expression; a `copy` reads a rectangle. A dot, a reduction or a rectangle
inside an expression becomes a step of its own. A vector `first + Arange(extent)` becomes its first
element, a scalar: element r of it is `first + r`. Dots multiply in f32 here, so a cast to io, or
from io to f32, is no step. A name that is made anew in a second loop, or that a parameter has too,
becomes a name of its own.
"""

from dataclasses import dataclass, replace
from typing import Literal

from gnomon.lowering import tile
from gnomon.lowering.tile import Cast, Dot, Expr, Load, Number, Op, Reduce, Ref, Stmt, Type, type_of

Kind = Literal["scalar", "fill", "copy", "dot", "point", "fold", "store", "scatter", "loop", "exit"]
NOTHING = Ref("", Type("f32"))


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One thing to do; `domain` is what a point or a fold runs over, its outer extent first."""

    kind: Kind
    ref: Ref = NOTHING
    value: Expr = NOTHING
    stmt: Stmt | None = None
    body: tuple["Step", ...] = ()
    above: tuple[str, ...] = ()
    carried: bool = False
    domain: tuple[str, ...] = ()


@dataclass(slots=True)
class Steps:
    """The steps of a kernel, and how its names are printed."""

    body: tuple[Step, ...]
    firsts: set[str]
    """Vectors that are known by their first element."""
    printed: dict[str, str]
    read: set[str]
    """Every name that some step reads."""


def steps(kernel: tile.Kernel) -> Steps:
    """The body of a kernel as steps, without those that nobody needs."""
    normal = _Normal(kernel)
    body = normal.body(kernel.body)
    while (read := _read(body)) and (kept := _kept(body, read)) != body:
        body = kept
    return Steps(body, normal.firsts, normal.printed, read)


def _read(body: tuple[Step, ...]) -> set[str]:
    return set[str]().union(*(reads(step) for step in body))


def _kept(body: tuple[Step, ...], read: set[str]) -> tuple[Step, ...]:
    """The steps with an effect, or with a value that somebody reads."""
    needed = (step for step in body if step.stmt is not None or step.ref.name in read)
    return tuple(
        replace(step, body=inner) if (inner := _kept(step.body, read)) != step.body else step
        for step in needed
    )


def expressions(step: Step) -> tuple[Expr, ...]:
    """What a step itself evaluates."""
    if step.stmt is not None:
        return tile.expressions(step.stmt)
    return (step.value,)


def reads(step: Step) -> set[str]:
    """The names, of values and of tensors, that a step and its body read."""
    found: set[str] = set()
    stack = list(expressions(step))
    while stack:
        x = stack.pop()
        if isinstance(x, Ref):
            found.add(x.name)
        elif isinstance(x, Load):
            found.add(x.tensor.name)
        stack.extend(tile.operands(x))
    return found.union(*(reads(inner) for inner in step.body))


def writes(step: Step) -> set[str]:
    """The names, of values and of tensors, that a step and its body write."""
    found = {step.ref.name} if step.ref.name else set()
    if isinstance(step.stmt, (tile.Store, tile.Scatter)):
        found.add(step.stmt.tensor.name)
    return found.union(*(writes(inner) for inner in step.body))


class _Normal:
    def __init__(self, kernel: tile.Kernel) -> None:
        self.params = {param.name for param in kernel.params}
        self.names = self.params | {name for name, _ in kernel.grid}
        self.names |= {s.ref.name for s in tile.walk(kernel.body) if isinstance(s, tile.Let)}
        self.carried = {s.ref.name for s in tile.walk(kernel.body) if isinstance(s, tile.Set)}
        self.made: set[str] = set()
        self.renamed: dict[str, Ref] = {}
        self.firsts: set[str] = set()
        self.printed: dict[str, str] = {}
        self.out: list[Step] = []
        self.above: list[str] = []

    def body(self, stmts: tuple[Stmt, ...]) -> tuple[Step, ...]:
        outer, self.out = self.out, []
        renamed = dict(self.renamed)
        for stmt in stmts:
            self.statement(stmt)
        made, self.out, self.renamed = tuple(self.out), outer, renamed
        return made

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case tile.Remark(text):
                self.above.append(text)
            case tile.Blank():
                self.above.append("")
            case tile.Let(ref, value, note):
                self.above += [note] if note else []
                self.let(ref, self.plain(value))
            case tile.Set(ref, value):
                self.set(self.renamed.get(ref.name, ref), self.plain(value))
            case tile.For():
                self.loop(stmt)
            case tile.Store(tensor, index, value, limits):
                self.store(
                    tile.Store(tensor, self.all(index), self.plain(value), self.bounds(limits))
                )
            case tile.Scatter(tensor, index, entry, value, limits):
                entry, value = self.plain(entry), self.plain(value)
                entry = self.named(entry, f"{tensor.name}_entry")
                value = self.named(value, f"{tensor.name}_value")
                made = tile.Scatter(tensor, self.all(index), entry, value, self.bounds(limits))
                self.add(Step("scatter", stmt=made))
            case tile.ExitIf(condition):
                self.add(Step("exit", stmt=tile.ExitIf(self.plain(condition))))

    def set(self, ref: Ref, value: Expr) -> None:
        """A new value for a carried name; a product that reads the old one is made beside it."""
        if isinstance(value, Dot) and ref.name in tile.names_in(value):
            value = self.named(value, f"{self.printed.get(ref.name, ref.name)}_dot")
        self.assign(ref, value, carried=True)

    def add(self, step: Step) -> None:
        self.out.append(replace(step, above=tuple(self.above)))
        self.above = []

    def remarks(self) -> list[str]:
        """Take the remarks that wait; blank lines stay, for the very next step."""
        taken = [text for text in self.above if text]
        self.above = [text for text in self.above if not text]
        return taken

    def loop(self, stmt: tile.For) -> None:
        start, stop, step = (self.plain(x) for x in (stmt.start, stmt.stop, stmt.step))
        above, self.above = self.above, []
        body = self.body(stmt.body)
        self.above = above
        made = tile.For(stmt.index, start, stop, step, (), stmt.stages)
        self.add(Step("loop", stmt=made, body=body))

    def store(self, stmt: tile.Store) -> None:
        stem = f"b_{stmt.tensor.name}"
        if type_of(stmt.value).shape:
            stmt = replace(stmt, value=self.named(stmt.value, stem))
        else:
            stmt = replace(stmt, value=self.apart(stmt.value, stem, top=False))
        self.add(Step("store", stmt=stmt))

    # -- values

    def let(self, ref: Ref, value: Expr) -> None:
        carried = ref.name in self.carried
        if isinstance(value, Ref) and value.type.shape and self._settled(value) and not carried:
            self.renamed[ref.name] = value
            return
        own = self.fresh(ref)
        first = first_of(value, self.firsts)
        if first is not None:
            self.firsts.add(own.name)
            self.assign(Ref(own.name, Type("i32")), first)
            return
        self.assign(own, value)

    def _settled(self, value: Ref) -> bool:
        """Whether a value never changes, so that a second name for it is only a name."""
        return value.name not in self.carried

    def fresh(self, ref: Ref) -> Ref:
        """The value under a name of its own, where the name has been made before."""
        name, number = ref.name, 2
        while name in self.made or name in self.params:
            name, number = f"{ref.name}@{number}", number + 1
        self.made.add(name)
        self.printed[name] = f"{ref.name}_tile" if ref.name in self.params else ref.name
        own = Ref(name, ref.type)
        self.renamed[ref.name] = own
        return own

    def named(self, value: Expr, stem: str) -> Ref:
        """The value as a step of its own, under a new name."""
        if isinstance(value, Ref):
            return value
        name, number = stem, 2
        while name in self.names:
            name, number = f"{stem}{number}", number + 1
        ref = self.fresh(Ref(name, type_of(value)))
        self.assign(ref, value)
        return ref

    def assign(self, ref: Ref, value: Expr, *, carried: bool = False) -> None:
        stem, remarks = self.printed.get(ref.name, ref.name), self.remarks()
        value = self.apart(value, stem, top=True)
        self.above += remarks
        shape = type_of(value).shape
        kind: Kind = "point" if ref.type.shape else "scalar"
        if isinstance(value, tile.Full) and shape:
            kind = "fill"
        elif isinstance(value, Dot):
            kind = "dot"
        elif isinstance(value, Reduce):
            kind, shape = "fold", type_of(value.x).shape
        elif isinstance(value, Load) and self.is_rectangle(value):
            kind = "copy"
        self.add(Step(kind, ref, value, carried=carried, domain=shape))

    def apart(self, value: Expr, stem: str, *, top: bool) -> Expr:
        """The value, where what is no pointwise function of its operands stands for itself."""
        match value:
            case Dot(a, b):
                value = Dot(self.named(a, f"{stem}_a"), self.named(b, f"{stem}_b"))
                return value if top else self.named(value, f"{stem}_dot")
            case Reduce(fn, x, axis):
                value = Reduce(fn, self.apart(x, stem, top=False), axis)
                return value if top else self.named(value, f"{stem}_{fn}")
            case Op(fn, args, shape, dtype):
                return Op(fn, tuple(self.apart(x, stem, top=False) for x in args), shape, dtype)
            case Cast(x, dtype):
                return Cast(self.apart(x, stem, top=False), dtype)
            case Load(tensor, index, limits, fill):
                index = tuple(self.apart(x, f"{stem}_index", top=False) for x in index)
                load = Load(tensor, index, limits, fill)
                if not top and len(type_of(load).shape) == 2 and self.is_rectangle(load):
                    return self.named(load, f"{stem}_{tensor.name}")
                return load
        return value

    def all(self, parts: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(self.plain(part) for part in parts)

    def bounds(self, limits: tuple[Expr | None, ...]) -> tuple[Expr | None, ...]:
        return tuple(None if limit is None else self.plain(limit) for limit in limits)

    def plain(self, x: Expr) -> Expr:
        """The expression over the names of this scope, without casts that change nothing here."""
        match x:
            case Ref(name, _):
                return self.renamed.get(name, x)
            case Cast(a, "io" | "f16"):
                return self.plain(a)
            case Cast(a, "f32") if type_of(a).dtype in ("io", "f16", "f32"):
                return self.plain(a)
            case tile.Relabel(a, shape):
                return replace(self.renamed.get(a.name, a), type=Type(a.type.dtype, shape))
            case Cast(a, dtype):
                return Cast(self.plain(a), dtype)
            case Op(fn, args, shape, dtype):
                return Op(fn, self.all(args), shape, dtype)
            case Load(tensor, index, limits, fill):
                return Load(tensor, self.all(index), self.bounds(limits), fill)
            case Dot(a, b):
                return Dot(self.plain(a), self.plain(b))
            case Reduce(fn, a, axis):
                return Reduce(fn, self.plain(a), axis)
        return x

    # -- rectangles

    def is_rectangle(self, load: Load) -> bool:
        """Whether every index is one number, or counts upwards by one along an axis of its own."""
        vectors = [part for part in load.index if type_of(part).shape]
        counted = all(first_of(part, self.firsts) is not None for part in vectors)
        return counted and 0 < len(vectors) == len(type_of(load).shape) <= 2


def first_of(x: Expr, firsts: set[str]) -> Expr | None:
    """The first element of a vector whose elements count upwards by one."""
    if len(type_of(x).shape) != 1:
        return None
    match x:
        case tile.Arange():
            return Number(0, "i32")
        case Ref(name, _) if name in firsts:
            return Ref(name, Type("i32"))
        case Op("+" | "-" as fn, (a, b), _, _) if not type_of(b).shape:
            first = first_of(a, firsts)
            return None if first is None else _sum(fn, first, b)
        case Op("+", (a, b), _, _) if not type_of(a).shape:
            first = first_of(b, firsts)
            return None if first is None else _sum("+", a, first)
    return None


def _sum(fn: str, a: Expr, b: Expr) -> Expr:
    if isinstance(b, Number) and b.value == 0:
        return a
    if fn == "+" and isinstance(a, Number) and a.value == 0:
        return b
    return Op(fn, (a, b), (), "i32")

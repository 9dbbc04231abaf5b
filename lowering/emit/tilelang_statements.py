"""Statements of a tile program as TileLang: each does one thing (see `assign_buffers`)."""

from dataclasses import dataclass
from typing import Literal

from gnomon.dsl.errors import UnsupportedError
from gnomon.lowering import tile
from gnomon.lowering.emit import text
from gnomon.lowering.emit.text import Code, atom, call, infix, keyword, statement
from gnomon.lowering.emit.tilelang_expressions import DTYPES, Elements, argument, number
from gnomon.lowering.emit.tilelang_sizes import Sizes
from gnomon.lowering.passes.assign_buffers import Buffered, first_of, parts, products
from gnomon.lowering.tile import Expr, Ref, Stmt, type_of

On = Literal["gpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Words:
    """How a target calls its memory and its loops over elements of vectors and of matrices."""

    shared: str
    fragment: str
    vector: str
    matrix: str
    pipeline: bool


WORDS: dict[On, Words] = {
    "gpu": Words("T.alloc_shared", "T.alloc_fragment", "T.Parallel", "T.Parallel", True),
    "cpu": Words("T.alloc_local", "T.alloc_local", "T.serial", "T.grid", False),
}


class Statements:
    """Prints the statements of one kernel."""

    def __init__(self, buffered: Buffered, sizes: Sizes, words: Words) -> None:
        self.kernel, self.buffers, self.words = buffered.kernel, buffered.buffers, words
        self.taken = self._given() | set(self.buffers)
        self.taken |= {s.ref.name for s in tile.walk(self.kernel.body) if isinstance(s, tile.Let)}
        variables = {extent: self._variable(extent) for extent in sizes.extents}
        cells = {name for name, (_, home) in self.buffers.items() if home == "cell"}
        self.elements = Elements(cells, variables)
        self.limits = sizes.limits
        loops = [s for s in tile.walk(self.kernel.body) if isinstance(s, tile.For)]
        ends = [x for loop in loops for end in (loop.start, loop.stop) for x in parts(end)]
        self.bounds = {x.name for x in ends if isinstance(x, Ref)} - self._given()
        self.pipeline = _pipeline(self.kernel.body) if words.pipeline else None
        self.rings = self._rings()
        self.out: list[str] = []
        self.piped = False
        self.domain: tuple[str, ...] = ()
        """The extents of the loop over elements that the last line stands in."""
        self.written: set[str] = set()
        """The buffers that this loop writes."""

    def _given(self) -> set[str]:
        """The names that the kernel does not make."""
        return {p.name for p in self.kernel.params} | {name for name, _ in self.kernel.grid}

    def _variable(self, extent: str) -> str:
        return self._fresh(extent.removeprefix("B").lower() if extent in self.kernel.order else "d")

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        return name

    # -- buffers

    def allocations(self, depth: int) -> list[str]:
        """The buffers, in the order in which they are filled, then those of the pipeline alone."""
        lines = []
        for name, own in (*zip(self.buffers, self.buffers, strict=True), *self.rings.items()):
            ref, home = self.buffers[name]
            function = self.words.shared if home == "shared" else self.words.fragment
            shape = ", ".join(ref.type.shape) or "1"
            shape = f"({shape},)" if "," not in shape else f"({shape})"
            code = call(function, atom(shape), atom(DTYPES[ref.type.dtype]))
            lines += statement(f"{own} = ", code, depth)
        return lines

    def _rings(self) -> dict[str, str]:
        """Shared buffers of which the pipeline has several, where other loops use one."""
        piped = _made(self.pipeline.body) if self.pipeline else {}
        others = _made(self.kernel.body)
        shared = [n for n in piped if self.buffers[n][1] == "shared" and others[n] > piped[n]]
        return {name: self._fresh(name.replace("b_", "ring_", 1)) for name in shared}

    def _name(self, ref: Expr) -> Code:
        assert isinstance(ref, Ref)
        return atom(self.elements.name(ref))

    # -- statements

    def body(self, body: tuple[Stmt, ...], depth: int) -> None:
        """The statements of a block."""
        self._leave()
        for place, stmt in enumerate(body):
            match stmt:
                case tile.Let(ref, value, _) | tile.Set(ref, value):
                    self._value(ref, value, depth)
                case tile.For():
                    self._loop(stmt, depth)
                case tile.Store():
                    self._store(stmt, depth)
                case tile.Scatter(tensor):
                    what = f"sums into the entries of {tensor.name}"
                    fix = "the Triton and Numba targets have them"
                    raise UnsupportedError(what, fix, target="tilelang")
                case tile.ExitIf(condition):
                    self._leave()
                    stays = call("T.Not", self.elements.code(condition))
                    self.out += statement("if ", stays, depth, ":")
                    self.body(body[place + 1 :], depth + 1)
                    return
                case tile.Remark() | tile.Blank():
                    self._remark(stmt, depth, last=place + 1 == len(body))

    def _remark(self, stmt: Stmt, depth: int, *, last: bool) -> None:
        self._leave()
        if isinstance(stmt, tile.Remark):
            self.out += text.remark(stmt.text, depth)
        elif self.out and self.out[-1] and not self.out[-1].endswith(":") and not last:
            self.out.append("")

    def _value(self, ref: Ref, value: Expr, depth: int) -> None:
        if not ref.type.shape and ref.name not in self.elements.cells:
            code = self.elements.code(value)
            if ref.name in self.bounds:
                # TileLang would write any other scalar out wherever the index of the loop stands
                code = call("T.alloc_var", atom('"int32"'), keyword("init", code))
            self._line(f"{ref.name} = ", code, depth)
            return
        match value:
            case tile.Full(fill, _) if ref.type.shape:
                self._line("", call("T.fill", self._name(ref), number(fill)), depth)
            case tile.Load() if self._is_rectangle(value):
                self._copy(ref, value, depth)
            case tile.Dot():
                self._product(value, ref, depth, clear=True)
            case tile.Op("+", (Ref() as start, tile.Dot() as dot), _, _) if start == ref:
                self._product(dot, ref, depth, clear=False)
            case tile.Reduce(fn, Ref() as x, axis):
                dim = keyword("dim", atom(str(x.type.shape.index(axis))))
                code = call(f"T.reduce_{fn}", self._name(x), self._name(ref), dim)
                self._line("", code, depth)
            case _:
                self._element(ref, value, depth)

    def _line(self, start: str, code: Code, depth: int) -> None:
        self._leave()
        self.out += statement(start, code, depth)

    def _product(self, dot: tile.Dot, ref: Ref, depth: int, *, clear: bool) -> None:
        """A matrix product, added to the buffer or in its place."""
        a, b = type_of(dot.a).shape, type_of(dot.b).shape
        (shared,) = set(a) & set(b)
        flags = {
            "transpose_A": a[0] == shared,
            "transpose_B": b[1] == shared,
            "clear_accum": clear,
        }
        given = (keyword(name, atom("True")) for name, on in flags.items() if on)
        names = (self._name(x) for x in (dot.a, dot.b, ref))
        self._line("", call("T.gemm", *names, *given), depth)

    # -- rectangles

    def _is_rectangle(self, load: tile.Load) -> bool:
        """Whether a matrix is cut off by the ends of the tensor alone, and filled with 0 there."""
        for axis, part, limit in zip(load.tensor.axes, load.index, load.limits, strict=True):
            if not type_of(part).shape:
                if limit is not None:
                    return False
                continue
            own = isinstance(limit, Ref) and limit.name == self.limits.get(axis)
            if not (limit is None or own) or first_of(part) is None:
                return False
        return len(type_of(load).shape) == 2 and load.fill == 0

    def _copy(self, ref: Ref, load: tile.Load, depth: int) -> None:
        """What lies past the end of a tensor is filled with 0 by the copy itself."""
        source = atom(f"{argument(load.tensor)}[{', '.join(self._span(x) for x in load.index)}]")
        # TileLang waits inside the pipeline for what a copy engine brings before it: a pipeline
        # without turns would not wait
        plain = self.words.pipeline and not self.piped
        flags = [keyword("disable_tma", atom("True"))] if plain else []
        self._line("", call("T.copy", source, self._name(ref), *flags), depth)

    def _span(self, part: Expr) -> str:
        first = first_of(part)
        if first is None:
            return str(self.elements.code(part))
        (extent,) = type_of(part).shape
        start = self.elements.code(first)
        if str(start) == "0":
            return f"0:{extent}"
        return f"{start} : {infix('+', start, atom(extent))}"

    # -- elements

    def _element(self, ref: Ref, value: Expr, depth: int) -> None:
        """The element of a buffer, in a loop over all of them."""
        if isinstance(value, tile.Cast) and not tile.names_in(value) & self.written:
            # an operand of a product and a tile it is not made of, in one loop, keep TileLang's
            # layouts of two products from being found (0.1.15: not in 300 s)
            self._leave()
        inner = self._enter(ref.type.shape, value, depth)
        self.written.add(ref.name)
        code, target = self.elements.cast(value, ref.type.dtype), self.elements.code(ref)
        flat = len(f"{text.INDENT * inner}{target} = {code}") <= text.WIDTH
        if not flat and len(code.chain) == 2 and code.chain[0][1].plain and not _reads(value, ref):
            # a long sum in parentheses gets a line of its own
            (_, first), (operator, second) = code.chain
            self.out += statement(f"{target} = ", first.items[0], inner)
            code = infix(operator, target, second)
        self.out += statement(f"{target} = ", code, inner)

    def _store(self, store: tile.Store, depth: int) -> None:
        shape = tuple(dict.fromkeys(n for part in store.index for n in type_of(part).shape))
        inner = self._enter(shape, store.value, depth)
        inside = self.elements.inside(store.index, store.limits)
        if inside is not None:
            self.out += statement("if ", inside, inner, ":")
            inner += 1
        place = self.elements.place(store.tensor, store.index)
        code = self.elements.cast(store.value, store.tensor.dtype)
        self.out += statement(f"{place} = ", code, inner)

    def _enter(self, shape: tuple[str, ...], value: Expr, depth: int) -> int:
        """The depth inside a loop over elements; the one that is open serves where it can."""
        if not shape:
            self._leave()
            return depth
        turned = any(
            isinstance(x, Ref) and x.name in self.written and x.type.shape != shape
            for x in parts(value)
        )
        if self.domain != shape or turned:
            self._leave()
            names = ", ".join(self.elements.variables[extent] for extent in shape)
            loop = self.words.vector if len(shape) == 1 else self.words.matrix
            head = call(loop, *(atom(extent) for extent in shape))
            self.out += statement(f"for {names} in ", head, depth, ":")
            self.domain = shape
        return depth + 1

    def _leave(self) -> None:
        self.domain, self.written = (), set()

    # -- loops

    def _loop(self, loop: tile.For, depth: int) -> None:
        """A loop; one over tiles counts them, and makes its index from the count."""
        start, stop, step = (self.elements.code(x) for x in (loop.start, loop.stop, loop.step))
        if str(step) == "1":
            self._line(f"for {loop.index.name} in ", call("T.serial", start, stop), depth)
            self.out[-1] += ":"
            self.body(loop.body, depth + 1)
            self._leave()
            return
        count = call("T.ceildiv", stop if str(start) == "0" else infix("-", stop, start), step)
        head = call("T.serial", count)
        self.piped = loop is self.pipeline
        if self.piped:
            stages = str(loop.stages) if loop.stages > 1 else "num_stages"
            head = call("T.Pipelined", count, keyword("num_stages", atom(stages)))
        self._leave()
        counter = self._fresh("i_t")
        self.out += statement(f"for {counter} in ", head, depth, ":")
        passed = infix("*", atom(counter), step)
        here = passed if str(start) == "0" else infix("+", start, passed)
        self.out += statement(f"{loop.index.name} = ", here, depth + 1)
        self.elements.rings = self.rings if self.piped else {}
        self.body(loop.body, depth + 1)
        self.piped, self.elements.rings = False, {}
        self._leave()


def _pipeline(body: tuple[Stmt, ...]) -> tile.For | None:
    """The loop that becomes a pipeline: the first one, where it is a loop over tiles with products.

    TileLang gives the copies of a pipeline to threads of their own, and moves what stands before it
    to directly before it, past other loops: an accumulator would be cleared once more.
    """
    first = next((stmt for stmt in body if isinstance(stmt, tile.For)), None)
    if first is None or isinstance(first.step, tile.Number) or not any(products(first.body)):
        return None
    return first


def _made(body: tuple[Stmt, ...]) -> dict[str, int]:
    """How often each tile is made."""
    made: dict[str, int] = {}
    for stmt in tile.walk(body):
        if isinstance(stmt, tile.Let) and stmt.ref.type.shape:
            made[stmt.ref.name] = made.get(stmt.ref.name, 0) + 1
    return made


def _reads(value: Expr, ref: Ref) -> bool:
    return any(x == ref for x in parts(value))

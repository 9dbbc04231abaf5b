"""Prints tile programs as Triton, in the naming grammar of flash-linear-attention.

    i_ index   o_ offsets   p_ pointer   b_ block   s_ stride (s_q_t: of q along time)

A kernel has the tensors as arguments, then the strides it uses, the scalars, and as `tl.constexpr`
the true widths and the tunables. Its grid has one dimension, in which the first axis runs fastest.
A pointer is a 64-bit scalar part plus 32-bit offsets inside the tile: extent * stride must stay
below 2^31 along every axis, for which a launcher copies what reaches further. Loads have masks from
their limits; there are no block pointers, no flags and no atomics. 16-bit tiles are f32 in all
arithmetic but products.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gnomon.lowering import tile
from gnomon.lowering.emit import text, triton_descriptors, triton_helpers
from gnomon.lowering.emit.text import (
    Code,
    atom,
    call,
    grouped,
    infix,
    keyword,
    statement,
    suffix,
)
from gnomon.lowering.emit.triton_expressions import Expressions, add, number
from gnomon.lowering.emit.triton_names import Argument, arguments, index_shape
from gnomon.lowering.emit.triton_words import NARROW
from gnomon.lowering.tile import Expr, Ref, Stmt, type_of


@dataclass(frozen=True, slots=True)
class Printed:
    """A kernel in Triton: its text, its arguments in order, the helper functions it calls."""

    source: str
    arguments: tuple[Argument, ...]
    helpers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Line:
    """A printed statement; `target` is the name it gives a value to, if that is all it does."""

    lines: tuple[str, ...]
    target: str = ""


def print_kernel(kernel: tile.Kernel, *, descriptors: bool = False) -> str:
    """The kernel as a @triton.jit function, without the helper functions it calls."""
    return printed(kernel, descriptors=descriptors).source


def print_module(kernels: Iterable[tile.Kernel], header: str, *, descriptors: bool = False) -> str:
    """A module with the kernels and the helpers they call; it imports triton and nothing else.

    `header` is its docstring. The text is what `ruff format` would make of it. `descriptors`: tiles
    come through tensor descriptors where they can (triton_descriptors), and cosines of 16-bit
    phases from the special-function unit of an NVIDIA GPU.
    """
    parts = [printed(kernel, descriptors=descriptors) for kernel in kernels]
    helpers = triton_helpers.closure({name for part in parts for name in part.helpers})
    opening = "\n".join(
        [*text.docstring(header, 0), "", "import triton", "import triton.language as tl\n"]
    )
    functions = [*(triton_helpers.source(name) for name in helpers), *(p.source for p in parts)]
    source = "\n\n".join([opening, *functions])
    ast.parse(source)
    return source


def printed(kernel: tile.Kernel, *, descriptors: bool = False) -> Printed:
    """The kernel as text, and what a launch of it has to know."""
    printer = Statements(kernel, descriptors=descriptors)
    printer.grid(kernel)
    opened = len(printer.out)
    printer.body(kernel.body, 1)
    printer.out[opened:opened] = [
        Line((f"{text.INDENT}{name} = tl.arange(0, {extent})",), name)
        for extent, name in printer.expressions.channels.items()
    ]
    lines = [line for item in _read(printer.out) for line in item.lines]
    given = arguments(kernel, printer.expressions.strides, printer.described)
    opening = [
        *_decorator([a.name for a in given if a.varies]),
        f"def {kernel.name}(",
        *(f"    {a.name}{': tl.constexpr' if a.kind == 'constexpr' else ''}," for a in given),
        "):",
        *text.docstring(kernel.doc, 1),
    ]
    source = text.body([*opening, *_spaced(lines)])
    return Printed(source, given, frozenset(printer.expressions.helpers))


class Statements:
    """Prints the statements of one kernel."""

    def __init__(self, kernel: tile.Kernel, *, descriptors: bool) -> None:
        self.described = triton_descriptors.described_tensors(kernel) if descriptors else {}
        self.expressions = Expressions(kernel, frozenset(self.described), approximate=descriptors)
        self.names = self.expressions.names
        self.out: list[Line] = []
        self.shape: tuple[str, ...] = ()

    # -- the place in the grid

    def grid(self, kernel: tile.Kernel) -> None:
        """Decodes the one program index into the axes of the grid, the first running fastest."""
        program = call("tl.program_id", atom("0"))
        if len(kernel.grid) > 1:
            name = self._fresh("i_p")
            self._assign(name, program, 1)
            program = atom(name)
        passed: Code | None = None
        for place, (axis, extent) in enumerate(kernel.grid):
            size = self.expressions.code(extent) if place < len(kernel.grid) - 1 else None
            index = program if passed is None else infix("//", program, passed)
            index = index if size is None else infix("%", index, size)
            if axis in self.names.wide:
                function = call("tl.cast", index, atom("tl.int64"))
                index = suffix(index, ".to(tl.int64)", function)
            self._assign(axis, index, 1)
            if size is not None:
                passed = size if passed is None else infix("*", passed, size)

    # -- statements

    def body(self, body: tuple[Stmt, ...], depth: int) -> None:
        """The statements of a block."""
        self.shape = ()
        for stmt in body:
            match stmt:
                case tile.Let(ref, value, note):
                    self._let(ref, value, note, depth)
                case tile.Set(ref, value):
                    self._value(ref, value, "", depth)
                case tile.For():
                    self._loop(stmt, depth)
                case tile.Store():
                    self._store(stmt, depth)
                case tile.Scatter():
                    self._scatter(stmt, depth)
                case tile.ExitIf(condition):
                    lines = statement("if ", self.expressions.code(condition), depth, ":")
                    self._put([*lines, f"{text.INDENT * (depth + 1)}return"])
                case tile.Remark(words):
                    self._put(text.remark(words, depth))
                case tile.Blank():
                    self._put([""])

    def _let(self, ref: Ref, value: Expr, note: str, depth: int) -> None:
        if isinstance(value, tile.Number) and ref.name in self.names.carried:
            value = tile.Full(value.value, tile.Type(ref.type.dtype))
        self._value(ref, value, note, depth)
        self.expressions.lets = {**self.expressions.lets, ref.name: value}

    def _value(self, ref: Ref, value: Expr, note: str, depth: int) -> None:
        shape, remarks = type_of(value).shape, text.remark(note, depth)
        changes = shape and shape != self.shape and not ref.name.startswith("o_")
        if changes and not note.startswith("["):
            remarks += [f"{text.INDENT * depth}# [{', '.join(shape)}]"]
        self.shape = shape or self.shape
        if isinstance(value, tile.Load) and value.tensor.axes != ("distance",):
            code = self._loaded(ref, value, depth)
        else:
            code = self.expressions.code(value)
        first = len(self.out)
        self._assign(ref.name, code, depth)
        self.out[first] = replace(self.out[first], lines=(*remarks, *self.out[first].lines))

    def _loaded(self, ref: Ref, load: tile.Load, depth: int) -> Code:
        """A load by a descriptor, or from a pointer that has a line of its own."""
        if block := self.described.get(load.tensor.name):
            return triton_descriptors.load(self.expressions, load, block)
        pointer = self._pointer(load.tensor, load.index, f"p_{ref.name.removeprefix('b_')}", depth)
        return self.expressions.load(pointer, load)

    def _pointer(self, tensor: tile.Tensor, index: tuple[Expr, ...], name: str, depth: int) -> Code:
        """The pointer to a tile; its scalar part gets a line where it has any length."""
        base, offsets = self.expressions.address(tensor, index)
        scalar = add([atom(tensor.name), *base])
        if not base or not offsets or name in self.names.taken:
            return add([scalar, *offsets])
        self._assign(name, scalar, depth)
        return add([atom(name), *offsets])

    def _loop(self, loop: tile.For, depth: int) -> None:
        """A loop; one that asks for stages says so, any other takes the number of the launch."""
        outer, bounds = self.expressions.lets, [loop.start, loop.stop, loop.step]
        if isinstance(loop.step, tile.Number) and loop.step.value == 1:
            bounds.pop()
            if isinstance(loop.start, tile.Number) and loop.start.value == 0:
                bounds.pop(0)
        codes = [self.expressions.code(bound) for bound in bounds]
        if loop.stages:
            codes.append(keyword("num_stages", number(loop.stages)))
        head = call("tl.range" if loop.stages else "range", *codes)
        self._put(statement(f"for {loop.index.name} in ", head, depth, ":"))
        self.body(loop.body, depth + 1)
        self.expressions.lets, self.shape = outer, ()

    def _store(self, store: tile.Store, depth: int) -> None:
        tensor, shape = store.tensor, index_shape(store.index)
        value = self.expressions.code(store.value)
        if tensor.dtype in NARROW and type_of(store.value).dtype != tensor.dtype:
            io = f"{tensor.name}.dtype{'' if tensor.name in self.described else '.element_ty'}"
            to = io if tensor.dtype == "io" else str(self.expressions.dtype(tensor.dtype))
            value = suffix(value, f".to({to})", call("tl.cast", value, atom(to)))
        value = self.expressions.align(value, type_of(store.value).shape, shape)
        if block := self.described.get(tensor.name):
            stored = triton_descriptors.store(self.expressions, store, value, block)
            self._put(statement("", stored, depth))
            return
        pointer = self._pointer(tensor, store.index, f"p_{tensor.name}", depth)
        stored = _stored(pointer, value, self._mask(store))
        self._put(statement("", stored, depth))

    def _mask(self, store: tile.Store | tile.Scatter) -> Code | None:
        return self.expressions.mask(store.index, store.limits[: len(store.index)])

    def _scatter(self, scatter: tile.Scatter, depth: int) -> None:
        """Adds the sums over each entry, one after another: the same order in every run.

        The barrier makes what other threads of this program added before visible to its loads.
        """
        tensor, rows = scatter.tensor, index_shape(scatter.index)
        entry = self._named(scatter.entry, f"e_{tensor.name}", depth)
        value = self._named(scatter.value, f"g_{tensor.name}", depth)
        index = self._fresh("i_e")
        pointer = self._pointer(tensor, scatter.index, f"p_{tensor.name}", depth)
        self._put([f"{text.INDENT * depth}tl.debug_barrier()"])
        bounds = (
            call("tl.min", atom(entry.name)),
            infix("+", call("tl.max", atom(entry.name)), atom("1")),
        )
        head = call("tl.range", *bounds, keyword("num_stages", atom("1")))
        self._put(statement(f"for {index} in ", head, depth, ":"))
        total = call(
            "tl.where", infix("==", atom(entry.name), atom(index)), atom(value.name), atom("0.0")
        )
        shape = type_of(scatter.value).shape
        for axis in reversed(range(len(shape))):
            if shape[axis] not in rows:
                total = call("tl.sum", total, keyword("axis", atom(str(axis))))
        place, mask = atom(self._fresh("p_e")), self._mask(scatter)
        step = self.expressions.step(tensor, len(scatter.index))
        moved = infix("*", call("tl.cast", atom(index), atom("tl.int64")), step)
        self._assign(str(place), infix("+", pointer, moved), depth + 1)
        masked = () if mask is None else (keyword("mask", mask), keyword("other", atom("0.0")))
        before = call("tl.load", place, *masked)
        self._put(statement("", _stored(place, infix("+", before, total), mask), depth + 1))
        self.shape = ()

    # -- lines

    def _named(self, expr: Expr, name: str, depth: int) -> Ref:
        if isinstance(expr, Ref):
            return expr
        ref = Ref(self._fresh(name), type_of(expr))
        self._value(ref, expr, "", depth)
        return ref

    def _fresh(self, name: str) -> str:
        while name in self.names.taken:
            name += "_"
        return name

    def _put(self, lines: list[str]) -> None:
        self.out.append(Line(tuple(lines)))

    def _assign(self, target: str, code: Code, depth: int) -> None:
        """Gives a name a value; a long value of two operands is made in two steps."""
        flat = f"{text.INDENT * depth}{target} = {code}"
        if len(flat) <= text.WIDTH or len(code.chain) != 2:
            self.out.append(Line(tuple(statement(f"{target} = ", code, depth)), target))
            return
        (_, first), (operator, second) = code.chain
        if _mentions(second, target) and not _mentions(first, target) and operator in "+*":
            first, second = second, first
        if _mentions(second, target) or operator not in "+-*/&|":
            self.out.append(Line(tuple(statement(f"{target} = ", code, depth)), target))
            return
        if first.text != target:
            self._assign(target, _bare(first), depth)
        lines = statement(f"{target} {operator}= ", _bare(second), depth)
        self.out.append(Line(tuple(lines), target))


def _decorator(varying: list[str]) -> list[str]:
    """What makes a function a kernel, and says which arguments must not compile it again."""
    if not varying:
        return ["@triton.jit"]
    names = [f'"{name}"' for name in varying]
    flat = f"@triton.jit(do_not_specialize=[{', '.join(names)}])"
    if len(flat) <= text.WIDTH:
        return [flat]
    lines = [f"{text.INDENT * 2}{name}," for name in names]
    return ["@triton.jit(", f"{text.INDENT}do_not_specialize=[", *lines, f"{text.INDENT}]", ")"]


def _bare(code: Code) -> Code:
    """Code without the parentheses around it."""
    return code.items[0] if code.plain and code == grouped(code.items[0], text.ATOM) else code


def _stored(pointer: Code, value: Code, mask: Code | None) -> Code:
    if mask is None:
        return call("tl.store", pointer, value)
    return call("tl.store", pointer, value, keyword("mask", mask))


def _mentions(code: Code, name: str) -> bool:
    return re.search(rf"\b{name}\b", code.text) is not None


def _read(items: list[Line]) -> list[Line]:
    """The statements without those that give a value to a name that nobody reads."""
    while True:
        words: dict[str, int] = {}
        for item in items:
            code = "\n".join(line for line in item.lines if not line.lstrip().startswith("#"))
            for word in set(re.findall(r"\w+", code)) - {item.target}:
                words[word] = words.get(word, 0) + 1
        kept = [item for item in items if not item.target or words.get(item.target)]
        if len(kept) == len(items):
            return kept
        items = kept


def _spaced(lines: list[str]) -> list[str]:
    """The lines without blank ones that begin or end a block, or follow one another."""
    kept: list[str] = []
    for line in lines:
        opens = not kept or (kept[-1].endswith(":") and not kept[-1].lstrip().startswith("#"))
        if line or not (opens or not kept[-1]):
            kept.append(line)
    depth = [len(line) - len(line.lstrip()) for line in kept]
    return [
        line
        for place, line in enumerate(kept)
        if line or (place + 1 < len(kept) and depth[place + 1] >= depth[place - 1])
    ]

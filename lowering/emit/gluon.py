"""Prints tile programs as Gluon for Hopper: explicit layouts, shared memory, warpgroup products.

One role: all warps copy a tile to shared memory (cp.async), multiply it, and do the arithmetic in
between in the layouts of the products. A kernel has the arguments of its Triton twin, and a grid of
one dimension. Tensors that are copied have channels that lie side by side, and rows that begin at
multiples of 16 bytes. A score tile has 16 rows a warp or a multiple; io is bf16 or fp16.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from gnomon.dsl.errors import UnsupportedError
from gnomon.lowering import tile
from gnomon.lowering.emit import text, triton_helpers
from gnomon.lowering.emit.gluon_expressions import Expressions
from gnomon.lowering.emit.text import INDENT, Code, atom, call, infix, keyword, statement, suffix
from gnomon.lowering.emit.triton_expressions import add
from gnomon.lowering.emit.triton_names import Argument, arguments, index_shape, lengths
from gnomon.lowering.passes.assign_buffers import assign_buffers
from gnomon.lowering.tile import Expr, Ref, Stmt

_IMPORTS = """\
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma
"""


@dataclass(frozen=True, slots=True)
class Printed:
    """A kernel in Gluon: its text, its arguments in order, the helper functions it calls."""

    source: str
    arguments: tuple[Argument, ...]
    helpers: frozenset[str]


def print_kernel(kernel: tile.Kernel) -> str:
    """The kernel as a @gluon.jit function, without the helper functions it calls."""
    return printed(kernel).source


def print_module(kernels: Iterable[tile.Kernel], header: str) -> str:
    """A module with the kernels and the helpers they call; `header` is its docstring."""
    parts = [printed(kernel) for kernel in kernels]
    helpers = triton_helpers.closure({name for part in parts for name in part.helpers})
    opening = "\n".join([*text.docstring(header, 0), "", _IMPORTS])
    # the helpers are written in words that both languages have
    adapted = [
        triton_helpers.source(name).replace("tl.", "gl.").replace("@triton.jit", "@gluon.jit")
        for name in helpers
    ]
    source = "\n\n".join([opening, *adapted, *(p.source for p in parts)])
    ast.parse(source)
    return source


def printed(kernel: tile.Kernel) -> Printed:
    """The kernel as text, and what a launch of it has to know."""
    printer = Statements(kernel)
    printer.body(printer.kernel.body, 1)
    allocations = printer.allocations()
    given = arguments(kernel, printer.expressions.strides, {})
    held = ", ".join(f'"{name}"' for name in lengths(kernel))
    constants = [a.name for a in given if a.kind == "constexpr"]
    lines = [
        f"@gluon.jit(do_not_specialize=[{held}])" if held else "@gluon.jit",
        f"def {kernel.name}(",
        *(f"{INDENT}{a.name}," for a in given if a.kind != "constexpr"),
        *(f"{INDENT}{name}: gl.constexpr," for name in constants),
        f"{INDENT}num_warps: gl.constexpr,",
        "):",
        *text.docstring(kernel.doc, 1),
        *printer.layouts(),
        *printer.grid(),
        *printer.offsets(),
        *allocations,
        "",
        *printer.out,
    ]
    return Printed(text.body(lines), given, frozenset(printer.expressions.helpers))


class Statements:
    """Prints the statements of one kernel."""

    def __init__(self, kernel: tile.Kernel) -> None:
        buffered = assign_buffers(kernel)
        self.kernel, self.buffers = buffered.kernel, buffered.buffers
        self.expressions = Expressions(buffered)
        self.kinds = self.expressions.layouts
        self.fresh: set[str] = set()
        """Buffers whose copies nobody has waited for."""
        self.out: list[str] = []

    # -- opening

    def layouts(self) -> list[str]:
        """The named layouts."""
        lines = []
        for name, code in self.kinds.defined.items():
            lines += statement(f"{name}: gl.constexpr = ", code, 1)
        return lines

    def offsets(self) -> list[str]:
        """The named offsets, each in the layout that it is used with."""
        lines = []
        for name, code in self.kinds.offsets.items():
            lines += statement(f"{name} = ", code, 1)
        return lines

    def allocations(self) -> list[str]:
        """The tiles in shared memory."""
        lines = []
        for name, (ref, home) in self.buffers.items():
            if home == "shared" and len(ref.type.shape) == 2:
                shape = atom(f"[{', '.join(ref.type.shape)}]")
                layout = atom(self.kinds.smem(ref.type.shape))
                dtype = self.expressions.dtype(ref.type.dtype)
                code = call("gl.allocate_shared_memory", dtype, shape, layout)
                lines += statement(f"{name} = ", code, 1)
        return lines

    def grid(self) -> list[str]:
        """Decodes the one program index into the axes of the grid, the first running fastest."""
        lines, passed = [f"{INDENT}i_p = gl.program_id(0)"], None
        axes = self.kernel.grid
        for place, (axis, extent) in enumerate(axes):
            index = atom("i_p") if passed is None else infix("//", atom("i_p"), passed)
            if place < len(axes) - 1:
                size = self.expressions.code(extent, (), "")
                index = infix("%", index, size)
                passed = size if passed is None else infix("*", passed, size)
            if axis in self.expressions.names.wide:
                index = suffix(index, ".to(gl.int64)", call("gl.cast", index, atom("gl.int64")))
            lines += statement(f"{axis} = ", index, 1)
        return lines

    # -- statements

    def body(self, body: tuple[Stmt, ...], depth: int) -> None:
        """The statements of a block."""
        for place, stmt in enumerate(body):
            match stmt:
                case tile.Let(ref, value, _) | tile.Set(ref, value):
                    self._value(ref, value, depth)
                    self.expressions.lets = {**self.expressions.lets, ref.name: value}
                case tile.For():
                    self._loop(stmt, depth)
                case tile.Store():
                    self._store(stmt, depth)
                case tile.Scatter(tensor):
                    what = f"sums into the entries of {tensor.name}"
                    fix = "the Triton and Numba targets have them"
                    raise UnsupportedError(what, fix, target="gluon")
                case tile.ExitIf(condition):
                    self._line("if ", self.expressions.code(condition, (), ""), depth, ":")
                    self.out.append(f"{INDENT * (depth + 1)}return")
                case tile.Remark(words):
                    self.out += text.remark(words, depth)
                case tile.Blank():
                    if self.out and self.out[-1] and place + 1 < len(body):
                        self.out.append("")

    def _line(self, start: str, code: Code, depth: int, end: str = "") -> None:
        self.out += statement(start, code, depth, end)

    def _value(self, ref: Ref, value: Expr, depth: int) -> None:
        name, shape = ref.name, ref.type.shape
        if len(shape) == 2 and self.buffers[name][1] == "shared":
            self._fill(ref, value, depth)
            return
        match value:
            case tile.Dot():
                start = Ref("", ref.type)
                self._product(ref, value, start, depth)
            case tile.Op("+", (Ref() as start, tile.Dot() as dot), _, _) if start == ref:
                self._product(ref, dot, start, depth)
            case tile.Reduce(fn, Ref() as x, axis):
                place = keyword("axis", atom(str(x.type.shape.index(axis))))
                self._line(f"{name} = ", call(f"gl.{fn}", atom(x.name), place), depth)
            case _:
                self._assign(name, self.expressions.made(value, shape), depth)

    def _assign(self, name: str, code: Code, depth: int) -> None:
        """A new value; a long one that begins with a sum in parentheses takes two steps."""
        flat = len(f"{INDENT * depth}{name} = {code}") <= text.WIDTH
        if not flat and len(code.chain) == 2 and code.chain[0][1].plain:
            (_, first), (operator, second) = code.chain
            self._line(f"{name} = ", first.items[0], depth)
            code = infix(operator, atom(name), second)
        self._line(f"{name} = ", code, depth)

    def _fill(self, ref: Ref, value: Expr, depth: int) -> None:
        """Brings a tile to shared memory: from memory past the registers, or from these."""
        shape = ref.type.shape
        if not isinstance(value, tile.Load):
            self._line(f"{ref.name}.store", _bracketed(self.expressions.made(value, shape)), depth)
            self.fresh.add("")
            return
        matrix, x = self.kinds.copy(shape), self.expressions
        base, offsets = x.pointers(value.tensor, value.index, shape, matrix)
        pointer = f"p_{ref.name.removeprefix('b_')}"
        self._line(f"{pointer} = ", base, depth)
        mask = x.mask(value.index, value.limits, shape, matrix)
        masked = [] if mask is None else [keyword("mask", mask)]
        pointers = add([atom(pointer), *offsets])
        function = "async_copy.async_copy_global_to_shared"
        self.out.append(f"{INDENT * depth}# [{', '.join(shape)}]")
        self._line("", call(function, atom(ref.name), pointers, *masked), depth)
        self.fresh.add(ref.name)

    def _arrived(self, depth: int) -> None:
        """What was copied is there, and the matrix unit sees it."""
        indent = INDENT * depth
        if self.fresh - {""}:
            self.out += [f"{indent}async_copy.commit_group()", f"{indent}async_copy.wait_group(0)"]
        if self.fresh:
            self.out.append(f"{indent}fence_async_shared()")
        self.fresh = set()

    def _product(self, ref: Ref, dot: tile.Dot, start: Ref, depth: int) -> None:
        """A matrix product, added to `start` or in its place."""
        assert isinstance(dot.a, Ref)
        assert isinstance(dot.b, Ref)
        (shared,) = set(dot.a.type.shape) & set(dot.b.type.shape)
        shape, matrix = ref.type.shape, self.kinds.mma(ref.type.shape)
        if self.fresh & {dot.a.name, dot.b.name, ""}:
            self._arrived(depth)
        if self.buffers[dot.a.name][1] == "shared":
            a = _turned(dot.a, turned=dot.a.type.shape[0] == shared)
        else:
            a = call("gl.convert_layout", atom(dot.a.name), atom(self.kinds.left(shape)))
        b = _turned(dot.b, turned=dot.b.type.shape[1] == shared)
        self.out.append(f"{INDENT * depth}# [{', '.join(shape)}]")
        if start.name:
            code = call("warpgroup_mma", a, b, atom(start.name))
        else:
            extents = atom(f"[{', '.join(shape)}]")
            zero = call("gl.zeros", extents, atom("gl.float32"), atom(matrix))
            code = call("warpgroup_mma", a, b, zero, keyword("use_acc", atom("False")))
        self._line(f"{ref.name} = ", code, depth)

    def _loop(self, loop: tile.For, depth: int) -> None:
        bounds = [self.expressions.code(x, (), "") for x in (loop.start, loop.stop, loop.step)]
        if str(bounds[2]) == "1":
            bounds.pop()
        if self.fresh:
            self._arrived(depth)
        self._line(f"for {loop.index.name} in ", call("range", *bounds), depth, ":")
        outer = self.expressions.lets
        self.body(loop.body, depth + 1)
        self.expressions.lets = outer

    def _store(self, store: tile.Store, depth: int) -> None:
        tensor, shape, x = store.tensor, index_shape(store.index), self.expressions
        frame = shape if len(shape) == 2 else self.kinds.score
        matrix = self.kinds.mma(frame)
        base, offsets = x.pointers(tensor, store.index, frame, matrix)
        self._line(f"p_{tensor.name} = ", base, depth)
        value = x.cast(store.value, tensor.dtype, frame, matrix)
        mask = x.mask(store.index, store.limits, frame, matrix)
        masked = [] if mask is None else [keyword("mask", mask)]
        pointer = add([atom(f"p_{tensor.name}"), *offsets])
        self._line("", call("gl.store", pointer, value, *masked), depth)


def _bracketed(code: Code) -> Code:
    return call("", code)


def _turned(ref: Ref, *, turned: bool) -> Code:
    return atom(f"{ref.name}.permute((1, 0))" if turned else ref.name)

"""The tile IR as Python for Numba: dots by BLAS, the rest as fused loops, shared by workers.

    print_kernel(kernel, io)    the kernel, a function of numpy arrays of any strides, and numbers;
                                before them worker and workers: which share of the programs to run
    helpers([kernel, ...], io)  imports, constants and the functions that those kernels call
    print_module(kernels, io)   both

With `jit=False` the same text runs as plain Python. Tensors of bf16 and fp16 are views as uint16;
what is written is always fp32. B, the extent of the last axis of the grid, is read off the tensors
where it is no parameter. Steps come from `normal.py`, fused loops from `fuse.py`, buffers from
`storage.py`.
"""

import ast
from collections.abc import Iterable
from typing import Literal

from gnomon.lowering import tile
from gnomon.lowering.emit import numba_helpers
from gnomon.lowering.emit.fuse import Alone, Block, Rows, fuse
from gnomon.lowering.emit.normal import Step, Steps, steps
from gnomon.lowering.emit.numba_copies import Copies
from gnomon.lowering.emit.numba_expressions import Writer, assignment, number
from gnomon.lowering.emit.numba_rows import Loops
from gnomon.lowering.emit.storage import Storage, storage
from gnomon.lowering.emit.text import (
    INDENT,
    Code,
    atom,
    body,
    call,
    docstring,
    infix,
    keyword,
    remark,
    statement,
)
from gnomon.lowering.tile import DType, Expr, Kernel, Load, Ref

Io = Literal["f32", "f16", "bf16"]
_ELEMENTS: dict[DType, str] = {
    "f16": "float32",
    "f32": "float32",
    "f64": "float64",
    "i32": "int32",
    "i64": "int64",
    "bool": "boolean",
}
WORKERS = ("worker", "workers")
"""The first parameters of a kernel: it runs programs worker, worker + workers, ... without the GIL.

Threads of Python share a launch. Numba's own parallel loops take twice as long to compile, and
their threads quarrel with those of BLAS."""
_FLAGS = '{"contract", "nsz", "arcp", "afn"}'

_SUMMING = 'summing = njit(fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")\n'
"""Sums over a row may be made in any order, so that they are vector code. Nothing else may: where a
kernel could be reassociated, differences of prefix sums lost their low digits beside other terms,
though the function that forms them keeps its order (lse off by 2e-6 at 300 tokens)."""


def print_kernel(kernel: Kernel, io: Io, *, jit: bool = True) -> str:
    """The kernel as a function of its parameters, in their order."""
    text = body(_Printer(kernel, io, jit=jit).kernel())
    ast.parse(text)
    return text


def helpers(kernels: Iterable[Kernel], io: Io, *, jit: bool = True) -> str:
    """Imports, constants and the functions that the kernels call."""
    texts = [print_kernel(kernel, io, jit=jit) for kernel in kernels]
    parts = ["import numpy as np\n"]
    if jit:
        words = _imported(texts)
        parts = [f"import numpy as np\nfrom numba import {', '.join(words)}\n"]
    parts.append(numba_helpers.PREAMBLE)
    if jit:
        parts[-1] += 'inline = njit(fastmath={"contract"}, error_model="numpy")\n'
        parts[-1] += _SUMMING * any("added(" in text for text in texts)
    functions = numba_helpers.helpers(texts, jit=jit)
    return "\n".join(parts) + (f"\n\n{functions}" if functions else "")


def print_module(kernels: Iterable[Kernel], io: Io, *, jit: bool = True) -> str:
    """A file with the kernels and all they need."""
    kernels = tuple(kernels)
    parts = [helpers(kernels, io, jit=jit)]
    parts += [print_kernel(kernel, io, jit=jit) for kernel in kernels]
    return "\n\n".join(parts)


def _imported(texts: list[str]) -> list[str]:
    types = sorted({*_ELEMENTS.values(), "uint16"})
    used = [name for name in types if any(f"    {name}" in text for text in texts)]
    return sorted([*used, "njit", "void"])


class _Printer:
    """The lines of one kernel."""

    def __init__(self, kernel: Kernel, io: Io, *, jit: bool) -> None:
        made: Steps = steps(kernel)
        self.kernel_, self.io, self.jit = kernel, io, jit
        self.blocks: list[Block] = fuse(made.body)
        self.storage: Storage = storage(self.blocks, made.printed)
        self.read = made.read
        printed = self.storage.printed(made.printed)
        taken = made.read | {param.name for param in kernel.params}
        self.writer = Writer(io, made.firsts, printed, {}, _indices(taken))
        self.loops = Loops(self.writer, self.storage)
        self.copies = Copies(self.writer)
        self.lines: list[str] = []

    def say(self, depth: int, start: str, code: Code | None = None, end: str = "") -> None:
        """One statement, on as many lines as it takes."""
        self.lines += statement(start, code or atom(""), depth, end)

    def kernel(self) -> list[str]:
        """The whole function."""
        kernel = self.kernel_
        self.lines += signature(kernel, self.io) if self.jit else ['@np.errstate(all="ignore")']
        names = [atom(name) for name in (*WORKERS, *(param.name for param in kernel.params))]
        self.say(0, "def ", call(kernel.name, *names), ":")
        self.lines += docstring(kernel.doc or f"{kernel.name}.", 1)
        self.sizes()
        extents = [self.writer.code(extent) for _, extent in kernel.grid]
        total = extents[0]
        for extent in extents[1:]:
            total = infix("*", total, extent)
        mine = call("range", atom(WORKERS[0]), total, atom(WORKERS[1]))
        self.say(1, "for program in ", mine, ":")
        self.place(extents)
        self.blocks_(self.blocks, 2, top=True)
        return self.lines

    def sizes(self) -> None:
        """Extents of the grid that are no parameters, from the shapes of the tensors."""
        known = {param.name for param in self.kernel_.params}
        for name in _free(extent for _, extent in self.kernel_.grid):
            if name not in known:
                tensor, axis, less = _sized(self.kernel_)
                self.say(1, f"{name} = {tensor}.shape[{axis}]{less}")

    def place(self, extents: list[Code]) -> None:
        """Where this program stands in the grid: the first axis runs fastest."""
        before: Code | None = None
        for axis, (name, _) in enumerate(self.kernel_.grid):
            index = atom("program") if before is None else infix("//", atom("program"), before)
            if axis < len(extents) - 1:
                index = infix("%", index, extents[axis])
            before = extents[axis] if before is None else infix("*", before, extents[axis])
            if name in self.read:
                self.say(2, f"{name} = ", index)

    # -- bodies

    def blocks_(self, blocks: list[Block], depth: int, *, top: bool) -> None:
        """The lines of a body; buffers are made before the first step that needs one."""
        pending = top
        for block in blocks:
            quiet = isinstance(block, Alone) and block.step.kind in ("scalar", "exit")
            if pending and not quiet:
                self.buffers(depth)
                pending = False
            if isinstance(block, Rows):
                self.lines += self.loops.rows(block, depth)
            else:
                self.above(block.step, depth)
                self.step(block, depth)

    def buffers(self, depth: int) -> None:
        """One allocation for every buffer, a name for those that share."""
        self.lines.append("")
        said = set[str]()
        for name, ref in self.storage.buffers.items():
            own, owner = self.writer.name(ref), self.writer.printed[self.storage.shares[name]]
            if own not in said:
                made = call("np.empty", *_shape(ref.type.shape, ref.type.dtype))
                self.say(depth, f"{own} = ", made if own == owner else atom(owner))
            said.add(own)
        self.lines.append("")

    def above(self, step: Step, depth: int) -> None:
        """The remarks and the blank line over a step."""
        for text in step.above:
            if text:
                self.lines += remark(text, depth)
            elif self.lines[-1] and not self.lines[-1].endswith(":"):
                self.lines.append("")

    def step(self, block: Alone, depth: int) -> None:
        """A step that is no loop over elements."""
        step, writer = block.step, self.writer
        match step.kind, step.stmt, step.value:
            case "scalar", _, value:
                code = writer.real(value, step.ref.type.dtype)
                self.lines += assignment(writer.name(step.ref), code, depth)
            case "fill", _, tile.Full(value, type):
                self.fill(step.ref, value, type.dtype, depth)
            case "copy", _, Load() as load:
                self.say(depth, "", self.copies.load(step.ref, load))
            case "dot", _, tile.Dot(a, b):
                self.say(depth, "", self.dot(step.ref, a, b))
            case _, tile.For() as loop, _:
                self.loop(loop, block, depth)
            case _, tile.ExitIf(condition), _:
                self.say(depth, "if ", writer.code(condition), ":")
                self.say(depth + 1, "continue")
            case _, tile.Store() as store, _:
                self.lines += self.copies.store(store, depth)
            case _, tile.Scatter() as scatter, _:
                self.lines += self.copies.scatter(scatter, depth)

    def fill(self, ref: Ref, value: float, dtype: DType, depth: int) -> None:
        name, start = self.writer.name(ref), number(value, dtype)
        if ref.name in self.storage.buffers:
            self.say(depth, f"{name}[:] = ", start)
        elif value == 0:
            self.say(depth, f"{name} = ", call("np.zeros", *_shape(ref.type.shape, dtype)))
        else:
            shape, element = _shape(ref.type.shape, dtype)
            self.say(depth, f"{name} = ", call("np.full", shape, start, element))

    def dot(self, ref: Ref, a: Expr, b: Expr) -> Code:
        """A product of two buffers into a third; a transposed operand is a flag of BLAS."""
        assert isinstance(a, Ref)
        assert isinstance(b, Ref)
        (shared,) = set(a.type.shape) & set(b.type.shape)
        left = self.writer.name(a) + (".T" if a.type.shape[0] == shared else "")
        right = self.writer.name(b) + (".T" if b.type.shape[1] == shared else "")
        return call("np.dot", atom(left), atom(right), keyword("out", atom(self.writer.name(ref))))

    def loop(self, loop: tile.For, block: Alone, depth: int) -> None:
        start, stop, step = (self.writer.code(x) for x in (loop.start, loop.stop, loop.step))
        args = [start, stop, step] if str(step) != "1" else [start, stop]
        args = args[1:] if len(args) == 2 and str(start) == "0" else args
        self.say(depth, f"for {loop.index.name} in ", call("range", *args), ":")
        self.blocks_(block.body, depth + 1, top=False)


def _indices(taken: set[str]) -> tuple[str, str]:
    """Names for the loops over rows and columns that nothing else in the kernel has."""
    row = next(name for name in ("r", "row", "i_row") if name not in taken)
    column = next(name for name in ("c", "column", "i_column") if name not in taken)
    return row, column


def signature(kernel: Kernel, io: Io) -> list[str]:
    """The decorator: the types of the parameters, with what they are."""
    lines = ["@njit(", f"{INDENT}void("]
    lines += [f"{INDENT * 2}int64,  # {name}" for name in WORKERS]
    for param in kernel.params:
        if isinstance(param, tile.Tensor):
            element = _element(param, io)
            axes = f"[{', '.join(':' * len(param.axes))}]"
            note = f"{param.name} [{', '.join(param.axes)}]"
            lines.append(f"{INDENT * 2}{element}{axes},  # {note}")
        else:
            real = isinstance(param, tile.Scalar) and param.dtype in ("f32", "f64")
            element = _ELEMENTS[param.dtype] if real and isinstance(param, tile.Scalar) else "int64"
            lines.append(f"{INDENT * 2}{element},  # {param.name}")
    options = ("nogil=True", "cache=True", 'error_model="numpy"', f"fastmath={_FLAGS}")
    return [*lines, f"{INDENT}),", *(f"{INDENT}{option}," for option in options), ")"]


def _element(tensor: tile.Tensor, io: Io) -> str:
    if tensor.dtype == "io":
        return "float32" if io == "f32" or tensor.mode != "in" else "uint16"
    return _ELEMENTS[tensor.dtype]


def _shape(shape: tuple[str, ...], dtype: DType) -> tuple[Code, Code]:
    """The first and the last argument of np.empty."""
    names = [tile.extent_of(name) for name in shape]
    extents = names[0] if len(names) == 1 else f"({', '.join(names)})"
    element = {"io": "f32", "f16": "f32", "i32": "np.int32", "bool": "np.bool_"}.get(dtype, dtype)
    return atom(extents), atom(element)


def _free(exprs: Iterable[Expr]) -> list[str]:
    """The names in some expressions, each once."""
    found: dict[str, None] = {}
    stack = list(exprs)
    for x in stack:
        if isinstance(x, Ref):
            found[x.name] = None
        stack.extend(tile.operands(x))
    return list(found)


def _sized(kernel: Kernel) -> tuple[str, int, str]:
    """Where the number of sequences stands: (tensor, axis, what to take away)."""
    tensors = [param for param in kernel.params if isinstance(param, tile.Tensor)]
    for axis, less in (("offset", " - 1"), ("sequence", ""), ("batch", "")):
        for tensor in tensors:
            if axis in tensor.axes:
                return tensor.name, tensor.axes.index(axis), less
    raise ValueError(f"no tensor of {kernel.name} tells the number of its sequences")

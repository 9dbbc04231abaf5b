"""Prints tile programs as TileLang: buffers, copies, matrix products, loops over elements.

A kernel is a function of its sizes that builds a program. A size is a number, or `T.dynamic("T_q")`
for one that each call may choose. Tensors are contiguous; the grid is (blocks, heads, batch), with
at most 65535 heads and batches. The first loop over tiles is a pipeline of `num_stages`; `threads`
is the size of a program. A GPU multiplies fp32 operands in TF32, so io is bf16 or fp16 there.

With `on="cpu"` the same statements are printed for TileLang's C target, which has no shared memory
and no threads: every buffer is local, every loop is serial, io is "float32".
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from gnomon.lowering import tile
from gnomon.lowering.emit import text, tilelang_helpers
from gnomon.lowering.emit.text import INDENT, atom, call, keyword, statement
from gnomon.lowering.emit.tilelang_expressions import DTYPES, argument
from gnomon.lowering.emit.tilelang_sizes import Sizes
from gnomon.lowering.emit.tilelang_statements import WORDS, On, Statements
from gnomon.lowering.passes.assign_buffers import assign_buffers

_OPTIONS: dict[On, tuple[str, ...]] = {
    "gpu": ('io="bfloat16"', "num_stages=2", "threads=128"),
    "cpu": ('io="float32"',),
}


@dataclass(frozen=True, slots=True)
class Printed:
    """A kernel in TileLang: its text, and what one has to know to build and to call it.

    sizes    the arguments of the builder
    numbers  the arguments of the program behind its tensors
    helpers  the functions that the text calls
    """

    source: str
    sizes: tuple[str, ...]
    numbers: tuple[str, ...]
    helpers: frozenset[str]


def print_kernel(kernel: tile.Kernel, *, on: On = "gpu") -> str:
    """The kernel as a function that builds its program, without the helpers it calls."""
    return printed(kernel, on=on).source


def print_module(kernels: Iterable[tile.Kernel], header: str, *, on: On = "gpu") -> str:
    """A module with the builders of the kernels and the helpers they call.

    `header` is its docstring. The text is what `ruff format` would make of it.
    """
    parts = [printed(kernel, on=on) for kernel in kernels]
    helpers = tilelang_helpers.closure({name for part in parts for name in part.helpers})
    opening = "\n".join([*text.docstring(header, 0), "", "import tilelang.language as T\n"])
    functions = [*(tilelang_helpers.source(name) for name in helpers), *(p.source for p in parts)]
    source = "\n\n".join([opening, *functions])
    ast.parse(source)
    return source


def printed(kernel: tile.Kernel, *, on: On = "gpu") -> Printed:
    """The kernel as text.

    Raises UnsupportedError where TileLang has no such statement: sums into entries of a table.
    """
    sizes = Sizes(kernel)
    printer = Statements(assign_buffers(kernel), sizes, WORDS[on])
    printer.body(printer.kernel.body, 3)
    lines = [
        *sizes.signature(_OPTIONS[on]),
        *text.docstring(kernel.doc, 1),
        *sizes.derived(1),
        "",
        f"{INDENT}@T.prim_func",
        f"{INDENT}def main(",
        *_parameters(kernel, sizes),
        f"{INDENT}):",
        *_launch(kernel, printer, on),
        *printer.allocations(3),
        "",
        *printer.out,
        "",
        f"{INDENT}return main",
    ]
    numbers = (*sizes.numbers, *sizes.counts)
    helpers = frozenset(printer.elements.helpers)
    return Printed(text.body(lines), tuple(sizes.arguments), numbers, helpers)


def _parameters(kernel: tile.Kernel, sizes: Sizes) -> list[str]:
    """Tensors, then the numbers of each call."""
    indent, lines = INDENT * 2, []
    for tensor in (p for p in kernel.params if isinstance(p, tile.Tensor)):
        shape, dtype = atom(f"({sizes.shape(tensor)})"), atom(DTYPES[tensor.dtype])
        lines.append(f"{indent}{argument(tensor)}: {call('T.Tensor', shape, dtype)},")
    lines += [f"{indent}{name}: T.float32," for name in sizes.numbers]
    return [*lines, *(f"{indent}{name}: T.int32," for name in sizes.counts)]


def _launch(kernel: tile.Kernel, printer: Statements, on: On) -> list[str]:
    """The grid, its first axis running fastest."""
    extents = [printer.elements.code(extent) for _, extent in kernel.grid]
    threads = [keyword("threads", atom("threads"))] if on == "gpu" else []
    axes = ", ".join(name for name, _ in kernel.grid)
    axes = f"({axes})" if len(kernel.grid) > 1 else axes
    return statement("with ", call("T.Kernel", *extents, *threads), 2, f" as {axes}:")

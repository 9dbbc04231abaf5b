"""What the names of a kernel stand for in Triton: arguments, strides, 64-bit indices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gnomon.lowering import tile
from gnomon.lowering.tile import DType, Expr, Ref, type_of

_LETTERS = {
    "batch": "b",
    "sequence": "b",
    "offset": "b",
    "block": "t",
    "time": "t",
    "time_q": "t",
    "time_k": "t",
    "padded": "t",
    "pair": "t",
    "pair_tile": "t",
    "version": "t",
    "node": "n",
    "head": "h",
    "kv_head": "h",
    "one": "h",
}
_TIMES = ("T_q", "T_k", "NM", "NN", "T", "N", "L", "R", "NODES", "PARENTS", "FIRST", "SPAN")
_COLUMNS = frozenset(("leaf", "token"))
"""Last axes as long as a tile, which is a multiple of 16 elements."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a printed kernel, in its place in the signature.

    pointer    the tensor `tensor`
    descriptor of the tensor `tensor`, which gives tiles of the extents `block`, one wide along
               `leading` more axes
    stride     of the axis `axis` of the tensor `tensor`, in elements; `is_unit` where it is 1
               unless the caller's tensor is laid out otherwise, `is_even` where it is a
               multiple of 16 whatever the lengths
    scalar     a number known at the launch
    constexpr  a tunable, or a true width
    """

    name: str
    kind: Literal["pointer", "descriptor", "stride", "scalar", "constexpr"]
    dtype: DType = "i64"
    tensor: str = ""
    axis: int = 0
    is_unit: bool = False
    is_even: bool = False
    varies: bool = False
    """Whether it changes with the lengths of the data: a new value must not compile again."""
    block: tuple[str, ...] = ()
    leading: int = 2


def stride(tensor: tile.Tensor, axis: int) -> str:
    """The name of a stride: s_<tensor>_<b t h d or e>."""
    letters = [_LETTERS.get(name, "e" if name.startswith("N_") else "d") for name in tensor.axes]
    letter = letters[axis]
    return f"s_{tensor.name}_{letter if letters.count(letter) == 1 else f'{letter}{axis}'}"


def arguments(
    kernel: tile.Kernel, strides: set[str], blocks: Mapping[str, tuple[str, ...]]
) -> tuple[Argument, ...]:
    """The arguments of the printed kernel: tensors, the strides it uses, scalars, constants.

    `blocks` has the tiles of the tensors that come as descriptors.
    """
    widths = {name for _, name in kernel.widths}
    columns = widths | _COLUMNS
    tensors = [p for p in kernel.params if isinstance(p, tile.Tensor)]
    scalars = [p for p in kernel.params if isinstance(p, tile.Scalar)]
    steps = [
        _stride(t, axis, columns)
        for t in tensors
        for axis in range(len(t.axes))
        if stride(t, axis) in strides
    ]
    return (
        *(_pointer(t, blocks) for t in tensors),
        *steps,
        *(
            Argument(s.name, "scalar", s.dtype, varies=s.name in _TIMES)
            for s in scalars
            if s.name not in widths
        ),
        *(Argument(s.name, "constexpr", s.dtype) for s in scalars if s.name in widths),
        *(
            Argument(p.name, "constexpr", "i32")
            for p in kernel.params
            if isinstance(p, tile.Tunable)
        ),
    )


def _pointer(tensor: tile.Tensor, blocks: Mapping[str, tuple[str, ...]]) -> Argument:
    if tensor.name in blocks:
        block = blocks[tensor.name]
        leading = len(tensor.axes) - len(block)
        return Argument(
            tensor.name, "descriptor", tensor.dtype, tensor.name, block=block, leading=leading
        )
    return Argument(tensor.name, "pointer", tensor.dtype, tensor.name)


def lengths(kernel: tile.Kernel) -> list[str]:
    """The scalars that change with the lengths of the data."""
    return [p.name for p in kernel.params if isinstance(p, tile.Scalar) and p.name in _TIMES]


def _stride(tensor: tile.Tensor, axis: int, widths: set[str]) -> Argument:
    """The argument for a stride.

    Between batches or heads of a tensor with channels, or of one with a number a token that the
    launcher laid along time, it is a multiple of 16 whatever the length: worth knowing at compile
    time, since only then a copy takes 16 bytes. Otherwise it varies.
    """
    letter, channels = _LETTERS.get(tensor.axes[axis]), tensor.axes[-1] in widths
    numbers = len(tensor.axes) == 3 and tensor.axes[1] in ("time_q", "time_k")
    is_even = channels or (numbers and tensor.mode in ("in", "made"))
    varies = not is_even and letter in ("b", "h")
    is_unit = letter == "t" if numbers else axis == len(tensor.axes) - 1
    return Argument(
        stride(tensor, axis), "stride", "i64", tensor.name, axis, is_unit, is_even, varies
    )


class Names:
    """Facts about the names of one kernel.

    wide     scalars that only ever index a tensor, so that the kernel keeps them as 64-bit numbers
    natural  integers that are never negative
    carried  names that a `Set` changes
    taken    every name that occurs
    """

    def __init__(self, kernel: tile.Kernel) -> None:
        statements = list(tile.walk(kernel.body))
        lets = [s for s in statements if isinstance(s, tile.Let)]
        loops = [s for s in statements if isinstance(s, tile.For)]
        self.axes = [name for name, _ in kernel.grid]
        self.carried = {s.ref.name for s in statements if isinstance(s, tile.Set)}
        self.wide = self._wide(statements, lets)
        self.natural = {p.name for p in kernel.params if isinstance(p, tile.Tunable)}
        self.natural |= {
            p.name for p in kernel.params if isinstance(p, tile.Scalar) and p.dtype == "i32"
        }
        self.natural |= set(self.axes)
        starts = [(loop.index.name, loop.start) for loop in loops]
        self.natural |= {
            name
            for name, _ in starts
            if all(_is_size(start, self.natural) for other, start in starts if other == name)
        }
        self.taken = {p.name for p in kernel.params} | set(self.axes)
        self.taken |= {let.ref.name for let in lets} | {loop.index.name for loop in loops}

    def _wide(self, statements: list[tile.Stmt], lets: list[tile.Let]) -> set[str]:
        scalars: dict[str, list[Expr]] = {}
        for let in lets:
            if type_of(let.value) == tile.Type("i32"):
                scalars.setdefault(let.ref.name, []).append(let.value)
        for loop in (s for s in statements if isinstance(s, tile.For)):
            scalars.setdefault(loop.index.name, []).extend((loop.start, loop.stop, loop.step))
        narrow = set(self.carried)
        for statement in statements:
            if _defined(statement) not in scalars:
                narrow.update(n for e in _calculated(statement) for n in _names(e))
        while (
            more := {n for s in narrow & set(scalars) for e in scalars[s] for n in _names(e)}
            - narrow
        ):
            narrow |= more
        wide = set(self.axes) - narrow
        for name, values in scalars.items():
            read = {n for e in values for n in _names(e) if not isinstance(e, tile.Load)}
            if name not in narrow and wide & read:
                wide.add(name)
        return wide


def _defined(statement: tile.Stmt) -> str:
    match statement:
        case tile.Let(ref, _, _):
            return ref.name
        case tile.For(index, _, _, _, _, _):
            return index.name
    return ""


def index_shape(index: tuple[Expr, ...]) -> tuple[str, ...]:
    """The named extents of what an index selects."""
    return tuple(dict.fromkeys(name for part in index for name in type_of(part).shape))


def _calculated(statement: tile.Stmt) -> tuple[Expr, ...]:
    """The expressions of a statement but its scalar indices."""
    if isinstance(statement, (tile.Store, tile.Scatter)):
        scalars = [part for part in statement.index if not type_of(part).shape]
        return tuple(e for e in tile.expressions(statement) if not any(e is s for s in scalars))
    return tile.expressions(statement)


def _names(expr: Expr) -> Iterator[str]:
    """The names that an expression calculates with: those of a scalar index may have 64 bits."""
    if isinstance(expr, Ref):
        yield expr.name
    scalars = expr.index if isinstance(expr, tile.Load) else ()
    for part in tile.operands(expr):
        if not any(part is s and not type_of(s).shape for s in scalars):
            yield from _names(part)


def _is_size(expr: Expr, natural: set[str]) -> bool:
    match expr:
        case tile.Number(value, _):
            return value >= 0
        case Ref(name, _):
            return name in natural
        case tile.Op(("*" | "+" | "//"), args, _, _):
            return all(_is_size(arg, natural) for arg in args)
    return False

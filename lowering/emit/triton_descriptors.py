"""Tiles through tensor descriptors, which newer GPUs copy by hardware: rows of one head.

A load or store fits where its index is (scalar, scalar + Arange, scalar, Arange) over the axes
batch, time, head and width, with limits on time and width, and reads 0 outside:

    desc_k = tl.make_tensor_descriptor(k + <batch and head>, shape=[T_k, D0], strides=[s_k_t, 1],
                                       block_shape=[BN, BD0])
    b_k = desc_k.load([i_n, 0])

The launch must see to it that the last stride is 1, that the others and the pointers are multiples
of 16 bytes, and that Triton has an allocator (triton.set_allocator). A descriptor stands outside of
the loops that do not change its batch, head or lengths.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gnomon.lowering import tile
from gnomon.lowering.emit.text import Code, atom, call, keyword
from gnomon.lowering.emit.triton_expressions import Expressions, add, number
from gnomon.lowering.emit.triton_names import index_shape
from gnomon.lowering.tile import Expr, Load, Ref, Store


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of a tensor by a descriptor: how to make it, what it depends on, where it begins."""

    tensor: str
    make: Code
    names: frozenset[str]
    place: Code


def described(expressions: Expressions, access: Load | Store) -> Tile | None:
    """The tile of a load or store, or None where no descriptor describes it."""
    tensor, index, limits = access.tensor, access.index, access.limits
    if len(index) != 4 or tensor.axes[1] not in ("time_q", "time_k"):
        return None
    if isinstance(access, Load) and (access.fill != 0 or tensor.dtype != "io"):
        return None
    length, width = limits[1], limits[3]
    (start, rows), (offset, channels) = expressions.split(index[1]), expressions.split(index[3])
    extents = [expressions.extent(part) for part in (rows, channels)]
    scalars = not index_shape((index[0], index[2])) and offset is limits[0] is limits[2] is None
    if not scalars or length is None or width is None or None in extents:
        return None
    zero = tile.Number(0, "i32")
    base, _ = expressions.address(tensor, (index[0], zero, index[2], zero))
    make = call(
        "tl.make_tensor_descriptor",
        add([atom(tensor.name), *base]),
        keyword("shape", _listed(expressions.code(length), expressions.code(width))),
        keyword("strides", _listed(expressions.step(tensor, 1), number(1))),
        keyword("block_shape", _listed(*(atom(str(extent)) for extent in extents))),
    )
    names = frozenset(n for e in (index[0], index[2], length, width) for n in _refs(e))
    row = number(0) if start is None else expressions.code(start)
    return Tile(tensor.name, make, names, _listed(row, number(0)))


def accesses(body: Iterable[tile.Stmt]) -> Iterator[Load | Store]:
    """The loads with a name of their own and the stores of a block, loops included."""
    for stmt in tile.walk(tuple(body)):
        match stmt:
            case tile.Let(_, Load() as load, _) | tile.Set(_, Load() as load):
                yield load
            case Store():
                yield stmt


def _listed(*parts: Code) -> Code:
    return atom(f"[{', '.join(str(part) for part in parts)}]")


def _refs(expr: Expr) -> Iterator[str]:
    if isinstance(expr, Ref):
        yield expr.name
    for part in tile.operands(expr):
        yield from _refs(part)

"""Tiles through tensor descriptors, which newer GPUs copy by hardware (TMA).

A tensor [batch, time, head, width] is an argument that describes it, where every load of it in the
kernel takes rows of one head, from some row on, up to the end of the tensor:

    x = x.transpose(1, 2)                                                at the launch
    q = TensorDescriptor(x, x.shape, x.stride(), [1, 1, BM, BD0])
    b_q = tl.reshape(q.load([i_b, i_h, i_r, 0]), BM, BD0)                in the kernel

Rows of numbers, [batch, time, head], are read through pointers: by descriptor FoX's kernels took
1.2 to 1.5 times as long on an H200 (`DECISIONS.md`).

What lies outside reads as 0, so that such a load has no mask, and a kernel no pointers to its
tiles, which take registers. Time stands behind the head, so that the axes of extent 1 come first:
only then does Triton (3.6, 3.7) leave a first operand of wgmma in shared memory. `has_descriptors`
of a generated module says which tensors a GPU can copy so.
"""

from collections.abc import Iterator, Mapping

from gnomon.lowering import tile
from gnomon.lowering.emit.text import Code, atom, call
from gnomon.lowering.emit.triton_expressions import Expressions, number
from gnomon.lowering.emit.triton_names import index_shape
from gnomon.lowering.tile import Expr, Load, Ref

_TIMES = {"time_q": "T_q", "time_k": "T_k"}


Block = tuple[str, ...]
"""The extents of the tiles of a tensor: rows and channels."""


def described_tensors(kernel: tile.Kernel) -> dict[str, Block]:
    """The tensors that descriptors can stand for, with the tile that each one gives."""
    expressions = Expressions(kernel)
    found: dict[str, set[Block | None]] = {}
    for load, lets, is_named in _loads(kernel.body, {}):
        expressions.lets = lets
        block = _block(expressions, load) if is_named else None
        found.setdefault(load.tensor.name, set()).add(block)
    return {
        name: block
        for name, blocks in found.items()
        for block in blocks
        if block is not None and len(blocks) == 1
    }


def load(expressions: Expressions, access: Load, block: Block) -> Code:
    """The load of a tile by the descriptor of its tensor."""
    batch, rows, head = access.index[:3]
    start, _ = expressions.split(rows)
    places = [_place(expressions, part) for part in (batch, head, start)]
    places += [number(0)] * (len(access.index) - 3)
    listed = atom(f"[{', '.join(map(str, places))}]")
    loaded = call(f"{access.tensor.name}.load", listed)
    made = call("tl.reshape", loaded, *map(atom, block))
    mask = None if access.fill == 0 else expressions.mask(access.index, access.limits)
    return made if mask is None else call("tl.where", mask, made, number(float(access.fill)))


def _place(expressions: Expressions, scalar: Expr | None) -> Code:
    """A coordinate: 32 bits."""
    if scalar is None:
        return number(0)
    code = expressions.code(scalar)
    is_wide = isinstance(scalar, Ref) and scalar.name in expressions.names.wide
    return call("tl.cast", code, atom("tl.int32")) if is_wide else code


def _block(expressions: Expressions, access: Load) -> Block | None:
    tensor, index, limits = access.tensor, access.index, access.limits
    described = (*_TIMES, "version")
    if len(index) != 4 or tensor.axes[1] not in described or tensor.dtype != "io":
        return None
    # behind the end of a sequence inside the tensor a descriptor would read the next one; versions
    # behind an end are numbers too, and those that no pair meets are hidden by its mask
    length = Ref(_TIMES.get(tensor.axes[1], ""), tile.Type("i32"))
    whole = limits[1] in (None, length) or tensor.axes[1] == "version"
    _, rows = expressions.split(index[1])
    height = expressions.extent(rows)
    scalars = not index_shape((index[0], index[2])) and limits[0] is limits[2] is None
    if not (scalars and whole) or height is None:
        return None
    offset, channels = expressions.split(index[3])
    width = expressions.extent(channels)
    return (height, width) if offset is None and width is not None else None


def _loads(
    body: tuple[tile.Stmt, ...], lets: Mapping[str, Expr]
) -> Iterator[tuple[Load, Mapping[str, Expr], bool]]:
    """Every load, with the names in scope and whether it is all that a name stands for."""
    for stmt in body:
        for whole in tile.expressions(stmt):
            is_named = isinstance(stmt, (tile.Let, tile.Set)) and isinstance(whole, Load)
            for part in _parts(whole):
                if isinstance(part, Load):
                    yield part, lets, is_named and part is whole
        if isinstance(stmt, tile.For):
            yield from _loads(stmt.body, lets)
        elif isinstance(stmt, tile.Let):
            lets = {**lets, stmt.ref.name: stmt.value}


def _parts(expr: Expr) -> Iterator[Expr]:
    yield expr
    for part in tile.operands(expr):
        yield from _parts(part)

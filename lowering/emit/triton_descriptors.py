"""Tiles through tensor descriptors, which newer GPUs copy by hardware (TMA).

A tensor [batch, time, head, width] is an argument that describes it, where every load of it in the
kernel takes rows of one head, from some row on, up to the end of the tensor:

    x = x.transpose(1, 2)                                                at the launch
    q = TensorDescriptor(x, x.shape, x.stride(), [1, 1, BM, BD0])
    b_q = tl.reshape(q.load([i_b, i_h, i_r, 0]), BM, BD0)                in the kernel

Rows of numbers, [batch, time, head], are read through pointers: by descriptor the kernel of key
tiles took 1.15 times as long on an H200 (`DECISIONS.md`). Tensors between the stages of a transport
are stored by descriptors too.

What lies outside reads as 0, so that such a load has no mask, and a kernel no pointers to its
tiles, which take registers. Time stands behind the head, so that the axes of extent 1 come first:
only then does Triton (3.6, 3.7) leave a first operand of wgmma in shared memory. `has_descriptors`
of a generated module says which tensors a GPU can copy so.
"""

from collections.abc import Iterator, Mapping

from gnomon.lowering import tile
from gnomon.lowering.emit.text import Code, atom, call
from gnomon.lowering.emit.triton_expressions import Expressions, number
from gnomon.lowering.tile import Expr, Load, Ref, Store

Access = Load | Store

_TIMES = {"time_q": "T_q", "time_k": "T_k", "time": "T"}
_INNER = frozenset(("padded", "pair", "version", "node"))
"""Axes of tensors between the stages of a transport, which end where the last tile ends."""


Block = tuple[str, ...]
"""The extents of the tiles of a tensor: rows and channels."""


def described_tensors(kernel: tile.Kernel) -> dict[str, Block]:
    """The tensors that descriptors can stand for, with the tile that each one gives."""
    expressions = Expressions(kernel)
    found: dict[str, set[Block | None]] = {}
    for access, lets, is_named in _accesses(kernel.body, {}):
        expressions.lets = lets
        block = _block(expressions, access) if is_named else None
        found.setdefault(access.tensor.name, set()).add(block)
    return {
        name: block
        for name, blocks in found.items()
        for block in blocks
        if block is not None and len(blocks) == 1
    }


def load(expressions: Expressions, access: Load, block: Block) -> Code:
    """The load of a tile by the descriptor of its tensor."""
    loaded = call(f"{access.tensor.name}.load", _places(expressions, access))
    return call("tl.reshape", loaded, *map(atom, block))


def store(expressions: Expressions, access: Store, value: Code, block: Block) -> Code:
    """The store of a tile by the descriptor of its tensor; the value has the tensor's type."""
    tensor = access.tensor
    shape = [*["1"] * (len(tensor.axes) - len(block)), *block]
    tile_of_rank = call("tl.reshape", value, *map(atom, shape))
    return call(f"{tensor.name}.store", _places(expressions, access), tile_of_rank)


def _places(expressions: Expressions, access: Access) -> Code:
    """The first element of a tile, the axes that are one element wide in front."""
    scalars = [part for part in access.index if not tile.type_of(part).shape]
    tiles = [part for part in access.index if tile.type_of(part).shape]
    starts = [expressions.split(part)[0] for part in tiles]
    places = [_place(expressions, part) for part in (*scalars, *starts)]
    return atom(f"[{', '.join(map(str, places))}]")


def _place(expressions: Expressions, scalar: Expr | None) -> Code:
    """A coordinate: 32 bits."""
    if scalar is None:
        return number(0)
    code = expressions.code(scalar)
    is_wide = tile.names_in(scalar) & expressions.names.wide
    return call("tl.cast", code, atom("tl.int32")) if is_wide else code


def _block(expressions: Expressions, access: Access) -> Block | None:
    tensor, index, limits = access.tensor, access.index, access.limits
    if not _is_describable(tensor) or (isinstance(access, Store) and not _is_stage(tensor)):
        return None
    if isinstance(access, Load) and access.fill != 0:  # what lies outside reads as 0
        return None
    block = []
    for part, limit in zip(index, limits, strict=True):
        if not tile.type_of(part).shape:
            if limit is not None:
                return None
            continue
        _, inner = expressions.split(part)
        extent = expressions.extent(inner)
        if extent is None:
            return None
        block.append(tile.extent_of(extent))
    # behind the end of a sequence inside the tensor a descriptor would read the next one; versions
    # behind an end are numbers too, and those that no pair meets are hidden by its mask
    length = Ref(_TIMES.get(tensor.axes[1], ""), tile.Type("i32"))
    read = isinstance(access, Load)
    whole = limits[1] in (None, length) or (read and tensor.axes[1] == "version")
    fits = _starts_whole(expressions, access) and len(block) == len(index) - _leading(tensor)
    return tuple(block) if whole and fits else None


def _is_describable(tensor: tile.Tensor) -> bool:
    """Whether its tiles are rows of one head, of a type that is copied so."""
    axis, count = tensor.axes[1] if len(tensor.axes) > 1 else "", len(tensor.axes)
    if axis in ("time_q", "time_k"):
        return count == 4 and tensor.dtype == "io"
    return _is_stage(tensor) and count in (4, 5)


def _is_stage(tensor: tile.Tensor) -> bool:
    """Whether it is a tensor of the stages of a transport."""
    return len(tensor.axes) > 1 and (tensor.axes[1] in _INNER or tensor.axes[1] == "time")


def _leading(tensor: tile.Tensor) -> int:
    """The axes that are one element wide in a tile."""
    return 3 if tensor.axes[1] == "node" else 2


def _starts_whole(expressions: Expressions, access: Access) -> bool:
    """Whether channels are read from the first on, or without a limit."""
    offset, _ = expressions.split(access.index[-1])
    return offset is None or access.limits[-1] is None


def _accesses(
    body: tuple[tile.Stmt, ...], lets: Mapping[str, Expr]
) -> Iterator[tuple[Access, Mapping[str, Expr], bool]]:
    """Every load and store, with the names in scope; of a load, whether a name stands for it."""
    for stmt in body:
        if isinstance(stmt, Store):
            yield stmt, lets, True
        for whole in tile.expressions(stmt):
            is_named = isinstance(stmt, (tile.Let, tile.Set)) and isinstance(whole, Load)
            for part in _parts(whole):
                if isinstance(part, Load):
                    yield part, lets, is_named and part is whole
        if isinstance(stmt, tile.For):
            yield from _accesses(stmt.body, lets)
        elif isinstance(stmt, tile.Let):
            lets = {**lets, stmt.ref.name: stmt.value}


def _parts(expr: Expr) -> Iterator[Expr]:
    yield expr
    for part in tile.operands(expr):
        yield from _parts(part)

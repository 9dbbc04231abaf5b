"""Read powers of the distance from a table instead of forming them pair by pair.

    b_distance ** a   ->   powers[i - j + origin]        a a number, the table made by the launch

A power takes a logarithm and an exponential, two results of the special-function unit a pair; the
entries of a tile are few (i - j has BM + BN - 1 values), and a GPU's threads hold most of theirs
several times. Only kernels whose target reads a table so (`toeplitz`, one load for all pairs of a
thread that are as far apart) take it: elsewhere a gather costs more than the power.

Takes, gives: a kernel. The table has T_k + BM + BN entries on each side of its origin: distances of
a tile that reaches past the ends of its sequence stay inside, too.
"""

from collections.abc import Mapping
from dataclasses import replace

from gnomon.lowering.made import Powers
from gnomon.lowering.passes.remove_dead import remove_dead
from gnomon.lowering.tile import (
    Arange,
    Cast,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Number,
    Op,
    Ref,
    Set,
    Stmt,
    Tensor,
    Type,
)

DISTANCE = "b_distance"


def tabulate_powers(kernel: Kernel) -> Kernel:
    """The kernel with powers of the distance from tables; the same where it has none."""
    tables: dict[float, Tensor] = {}
    body = _body(kernel.body, {}, tables)
    if not tables:
        return kernel
    places = [n for n, p in enumerate(kernel.params) if isinstance(p, Tensor)]
    behind = max(places) + 1
    params = (*kernel.params[:behind], *tables.values(), *kernel.params[behind:])
    made = tuple(Powers(table.name, exponent) for exponent, table in tables.items())
    return remove_dead(replace(kernel, params=params, body=body, made=(*kernel.made, *made)))


def _body(
    body: tuple[Stmt, ...], lets: Mapping[str, Expr], tables: dict[float, Tensor]
) -> tuple[Stmt, ...]:
    found: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Let(ref, value) | Set(ref, value):
                stmt = replace(stmt, value=_tabulated(value, lets, tables))
                lets = {**lets, ref.name: value} if isinstance(stmt, Let) else lets
            case For(body=inner):
                stmt = replace(stmt, body=_body(inner, lets, tables))
        found.append(stmt)
    return tuple(found)


def _tabulated(x: Expr, lets: Mapping[str, Expr], tables: dict[float, Tensor]) -> Expr:
    """A value with loads in place of powers."""
    match x:
        case Op("**", (Ref(name, type), Number(exponent)), _, _) if name.startswith(DISTANCE):
            tiles = _between_tiles(lets[name], lets)
            if tiles is None or exponent == int(exponent):
                return x
            table = tables.setdefault(float(exponent), _table(len(tables)))
            return Load(table, (_place(tiles, type),), (None,))
        case Op(_, args, _, _):
            return replace(x, args=tuple(_tabulated(arg, lets, tables) for arg in args))
        case Cast(inner):
            return replace(x, x=_tabulated(inner, lets, tables))
    return x


def _table(number: int) -> Tensor:
    name = "powers" if number == 0 else f"powers_{number + 1}"
    return Tensor(name, ("distance",), "f32", "made", "powers of the distance")


def _between_tiles(distance: Expr, lets: Mapping[str, Expr]) -> Expr | None:
    """How far the first query of a tile is from its first key, of rows + offsets - columns."""
    match distance:
        case Op("-", (Ref(rows), Cast(Arange())), _, _):
            pass
        case _:
            return None
    match lets.get(rows):
        case Op("+", (Cast(tiles), Cast(Arange())), _, _):
            return tiles
    return None


def _place(tiles: Expr, type: Type) -> Expr:
    """The entry of each pair: origin + (query tile - key tile) + (row - column)."""
    end = Op("+", (Ref("BM", Type("i32")), Ref("BN", Type("i32"))), (), "i32")
    origin = Op("+", (Ref("T_k", Type("i32")), end), (), "i32")
    first = Op("+", (origin, tiles), (), "i32")
    inside = Op("-", (Arange("BM"), Arange("BN")), type.shape, "i32")
    return Op("+", (first, inside), type.shape, "i32")

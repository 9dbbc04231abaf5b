"""What a tile program must keep: scopes, names, directions of tensors, shapes.

a name is given before it is read, and once in its scope; a loop's names end with the loop
`Set` changes a name that stands outside, and keeps its shape
loads read inputs, stores write outputs, scatters add to what came zeroed
one index and one limit for each axis; the operands of an `Op` are within its shape
a `Relabel` keeps the extents, axis for axis
"""

from collections.abc import Iterator

from gnomon.lowering.tile import (
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Op,
    Relabel,
    Scatter,
    Set,
    Stmt,
    Store,
    Tensor,
    expressions,
    extent_of,
    names_in,
    operands,
    type_of,
    walk,
)

_MODES: dict[type, tuple[str, ...]] = {
    Load: ("in", "made"),
    Store: ("out", "inout"),
    Scatter: ("inout",),
}


def broken(kernel: Kernel, *, all_read: bool = False) -> Iterator[str]:
    """What is wrong with a kernel; `all_read`: a name that nobody reads is wrong too."""
    scope = {param.name for param in kernel.params if not isinstance(param, Tensor)}
    counted = {name for _, extent in kernel.grid for name in names_in(extent)}
    axes = {name for name, _ in kernel.grid}
    tensors = {param.name: param for param in kernel.params if isinstance(param, Tensor)}
    yield from _body(kernel.body, scope | counted | axes, tensors)
    if all_read:
        read = {n for stmt in walk(kernel.body) for e in expressions(stmt) for n in names_in(e)}
        for stmt in walk(kernel.body):
            if isinstance(stmt, Let) and stmt.ref.name not in read:
                yield f"nobody reads {stmt.ref.name}"


def _body(body: tuple[Stmt, ...], outer: set[str], tensors: dict[str, Tensor]) -> Iterator[str]:
    scope = set(outer)
    for stmt in body:
        for expr in expressions(stmt):
            for name in sorted(names_in(expr) - scope):
                yield f"{name} is read before it is given"
            yield from _expression(expr, tensors)
        yield from _statement(stmt, scope, tensors)
        if isinstance(stmt, Let):
            scope.add(stmt.ref.name)
        elif isinstance(stmt, For):
            yield from _body(stmt.body, scope | {stmt.index.name}, tensors)


def _statement(stmt: Stmt, scope: set[str], tensors: dict[str, Tensor]) -> Iterator[str]:
    match stmt:
        case Let(ref, value, _):
            if ref.name in scope:
                yield f"{ref.name} is given twice"
            if type_of(value) != ref.type:
                yield f"{ref.name} is {ref.type} and gets {type_of(value)}"
        case Set(ref, value):
            if ref.name not in scope:
                yield f"{ref.name} changes before it is given"
            if type_of(value).shape != ref.type.shape:
                yield f"{ref.name} changes its shape to {type_of(value).shape}"
        case For(index, _, _, _, _, _) if index.name in scope:
            yield f"{index.name} is given twice"
        case Store(tensor, index, _, limits):
            yield from _access(Store, tensor, index, limits, tensors)
        case Scatter(tensor, index, entry, _, limits):
            yield from _access(Scatter, tensor, (*index, entry), limits, tensors)


def _expression(expr: Expr, tensors: dict[str, Tensor]) -> Iterator[str]:
    match expr:
        case Load(tensor, index, limits, _):
            yield from _access(Load, tensor, index, limits, tensors)
        case Op(fn, args, shape, _):
            for arg in args:
                if not set(type_of(arg).shape) <= set(shape):
                    yield f"{fn} of shape {shape} has an operand of shape {type_of(arg).shape}"
        case Relabel(x, shape):
            if tuple(map(extent_of, x.type.shape)) != tuple(map(extent_of, shape)):
                yield f"{x.name} of shape {x.type.shape} goes on as {shape}"
    for part in operands(expr):
        yield from _expression(part, tensors)


def _access(
    how: type,
    tensor: Tensor,
    index: tuple[Expr, ...],
    limits: tuple[Expr | None, ...],
    tensors: dict[str, Tensor],
) -> Iterator[str]:
    verb = how.__name__.lower()
    if tensors.get(tensor.name) != tensor:
        yield f"{verb} of {tensor.name}, which is no parameter"
    elif tensor.mode not in _MODES[how]:
        yield f"{verb} of {tensor.name}, which is {tensor.mode}"
    if not len(index) == len(limits) == len(tensor.axes):
        yield f"{verb} of {tensor.name}: {len(index)} places for {len(tensor.axes)} axes"

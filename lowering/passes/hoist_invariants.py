"""Move what a loop forms anew each time, though nothing in it changes, in front of the loop.

    for i: x = f(a, b); ...   ->   x = f(a, b); for i: ...        a, b made outside and not carried

Only vectors and scalars move: a whole score tile held over a loop would cost more than it saves.

Takes, gives: the body of a kernel. A name that two loops give to the same value is made once; where
they give it to different values it stays inside.
"""

from dataclasses import replace

from gnomon.lowering.passes.remove_dead import names_in
from gnomon.lowering.tile import Expr, For, Kernel, Let, Remark, Set, Stmt, type_of, walk


def hoist_invariants(kernel: Kernel) -> Kernel:
    """The kernel with loop-invariant vectors and scalars in front of their loops."""
    return replace(kernel, body=_hoist(kernel.body, {}))


def _hoist(body: tuple[Stmt, ...], outside: dict[str, Expr]) -> tuple[Stmt, ...]:
    made = dict(outside)
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            inner = replace(stmt, body=_hoist(stmt.body, {}))
            moved, inner = _lift(inner, made)
            new = [let for let in moved if let.ref.name not in made]
            # a remark that stands over the loop stays there
            remarks = [result.pop()] if result and isinstance(result[-1], Remark) else []
            result += [*new, *remarks]
            made |= {let.ref.name: let.value for let in new}
            stmt = inner
        elif isinstance(stmt, Let):
            made[stmt.ref.name] = stmt.value
        result.append(stmt)
    return tuple(result)


def _lift(loop: For, made: dict[str, Expr]) -> tuple[list[Let], For]:
    """The statements of a loop that can stand in front of it, and the loop without them."""
    changing = {loop.index.name}
    for stmt in walk(loop.body):
        if isinstance(stmt, (Let, Set)):
            changing.add(stmt.ref.name)
        elif isinstance(stmt, For):
            changing.add(stmt.index.name)
    updated = {stmt.ref.name for stmt in walk(loop.body) if isinstance(stmt, Set)}
    moved: list[Let] = []
    kept: list[Stmt] = []
    for stmt in loop.body:
        if isinstance(stmt, Let) and _is_movable(stmt, changing, updated, made):
            moved.append(stmt)
            changing.discard(stmt.ref.name)
        else:
            kept.append(stmt)
    return moved, replace(loop, body=tuple(kept))


def _is_movable(let: Let, changing: set[str], updated: set[str], made: dict[str, Expr]) -> bool:
    name = let.ref.name
    if name in updated or len(type_of(let.value).shape) > 1:
        return False
    if name in made and made[name] != let.value:
        return False
    return not names_in(let.value) & changing

"""Move what a loop forms anew each time, though nothing in it changes, in front of the loop.

    for i: x = f(a, b); ...   ->   x = f(a, b); for i: ...        a, b made outside and not carried

Only vectors and scalars move: a whole score tile held over a loop would cost more than it saves.

Takes, gives: the body of a kernel. A name that two loops give to the same value is made once; where
they give it to different values it stays inside both.
"""

from dataclasses import replace

from gnomon.lowering.tile import For, Kernel, Let, Remark, Set, Stmt, names_in, type_of, walk


def hoist_invariants(kernel: Kernel) -> Kernel:
    """The kernel with loop-invariant vectors and scalars in front of their loops."""
    return replace(kernel, body=_hoist(kernel.body, _ambiguous(kernel.body)))


def _ambiguous(body: tuple[Stmt, ...]) -> set[str]:
    """Names that stand for different values in different places, or change."""
    lets = [stmt for stmt in walk(body) if isinstance(stmt, Let)]
    values = {let.ref.name: let.value for let in lets}
    changed = {stmt.ref.name for stmt in walk(body) if isinstance(stmt, Set)}
    return changed | {let.ref.name for let in lets if values[let.ref.name] != let.value}


def _hoist(body: tuple[Stmt, ...], ambiguous: set[str]) -> tuple[Stmt, ...]:
    made: set[str] = set()
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            inner = replace(stmt, body=_hoist(stmt.body, ambiguous))
            moved, inner = _lift(inner, ambiguous)
            new = [let for let in moved if let.ref.name not in made]
            # a remark that stands over the loop stays there
            remarks = [result.pop()] if result and isinstance(result[-1], Remark) else []
            result += [*new, *remarks]
            made |= {let.ref.name for let in new}
            stmt = inner
        elif isinstance(stmt, Let):
            made.add(stmt.ref.name)
        result.append(stmt)
    return tuple(result)


def _lift(loop: For, ambiguous: set[str]) -> tuple[list[Let], For]:
    """The statements of a loop that can stand in front of it, and the loop without them."""
    changing = {loop.index.name}
    for stmt in walk(loop.body):
        if isinstance(stmt, (Let, Set)):
            changing.add(stmt.ref.name)
        elif isinstance(stmt, For):
            changing.add(stmt.index.name)
    moved: list[Let] = []
    kept: list[Stmt] = []
    for stmt in loop.body:
        if isinstance(stmt, Let) and _is_movable(stmt, changing, ambiguous):
            moved.append(stmt)
            changing.discard(stmt.ref.name)
        else:
            kept.append(stmt)
    return moved, replace(loop, body=tuple(kept))


def _is_movable(let: Let, changing: set[str], ambiguous: set[str]) -> bool:
    if let.ref.name in ambiguous or len(type_of(let.value).shape) > 1:
        return False
    return not names_in(let.value) & changing

"""Remove names that nothing reads, and remarks and blank lines that are left over.

    x = expr   ->   (nothing)        where no statement names x

Takes, gives: the body of a kernel.
"""

from dataclasses import replace

from gnomon.lowering.tile import (
    Blank,
    For,
    Kernel,
    Let,
    Remark,
    Set,
    Stmt,
    expressions,
    names_in,
)


def remove_dead(kernel: Kernel) -> Kernel:
    """The kernel without values that do not reach a store."""
    body = kernel.body
    while True:
        smaller = _without(body, set())
        if smaller == body:
            return replace(kernel, body=_tidy(body))
        body = smaller


def _named(body: tuple[Stmt, ...]) -> set[str]:
    """The names that a body makes; behind it they are free again."""
    return {stmt.ref.name for stmt in body if isinstance(stmt, Let)}


def _read(body: tuple[Stmt, ...]) -> set[str]:
    """Names read by a statement other than their own update; a loop's own names are not seen."""
    found: set[str] = set()
    for stmt in body:
        own = {stmt.ref.name} if isinstance(stmt, Set) else set()
        for expr in expressions(stmt):
            found |= names_in(expr) - own
        if isinstance(stmt, For):
            found |= _read(stmt.body) - _named(stmt.body)
    return found


def _without(body: tuple[Stmt, ...], outside: set[str]) -> tuple[Stmt, ...]:
    """The body without what is dead; `outside`: what is read of the names made around it."""
    named, read = _named(body), _read(body)
    live = (outside - named) | (read & named)
    kept: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, (Let, Set)) and stmt.ref.name not in live:
            continue
        if isinstance(stmt, For):
            inner = _without(stmt.body, live)
            if all(isinstance(part, (Remark, Blank)) for part in inner):
                if kept and isinstance(kept[-1], Remark):
                    kept.pop()
                continue
            stmt = stmt if inner == stmt.body else replace(stmt, body=inner)
        kept.append(stmt)
    return tuple(kept)


def _tidy(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """No remark over nothing, no blank line first, last or twice."""
    kept: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            stmt = replace(stmt, body=_tidy(stmt.body))
        if isinstance(stmt, (Blank, Remark)) and kept and isinstance(kept[-1], Remark):
            kept.pop()
        if isinstance(stmt, Blank) and (not kept or isinstance(kept[-1], Blank)):
            continue
        kept.append(stmt)
    while kept and isinstance(kept[-1], (Blank, Remark)):
        kept.pop()
    return tuple(kept)

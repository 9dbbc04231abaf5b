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
    walk,
)


def remove_dead(kernel: Kernel) -> Kernel:
    """The kernel without values that do not reach a store."""
    body = kernel.body
    while True:
        smaller = _without(body, _live(body))
        if smaller == body:
            return replace(kernel, body=_tidy(body))
        body = smaller


def _live(body: tuple[Stmt, ...]) -> set[str]:
    """Names read by a statement other than their own update."""
    live: set[str] = set()
    for stmt in walk(body):
        own = {stmt.ref.name} if isinstance(stmt, Set) else set()
        for expr in expressions(stmt):
            live |= names_in(expr) - own
    return live


def _without(body: tuple[Stmt, ...], live: set[str]) -> tuple[Stmt, ...]:
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

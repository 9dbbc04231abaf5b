"""Where a node comes from: the user's line, found when the node is made."""

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the user's source."""

    file: str
    line: int
    text: str
    function: str


_rewriting: ContextVar[Where | None] = ContextVar("rewriting", default=None)


@contextmanager
def rewriting(where: Where) -> Iterator[None]:
    """Nodes made inside belong to the line of the node that they replace."""
    token = _rewriting.set(where)
    try:
        yield
    finally:
        _rewriting.reset(token)


def origin() -> Where:
    """The nearest line outside the compiler (the catalogue counts as a user)."""
    if (given := _rewriting.get()) is not None:
        return given
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        inside = f"{module}.".startswith("gnomon.") and not module.startswith(
            "gnomon.dsl.catalogue"
        )
        if not inside and frame.f_code.co_filename != "<string>":
            break
        frame = frame.f_back
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return Where(code.co_filename, frame.f_lineno, text, code.co_name)

"""The form of a matrix: which products of it along the sequence are cheap, and which commute."""

from functools import lru_cache

from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    Apply,
    At,
    Contract,
    Diagonal,
    Expr,
    MatrixExp,
    Outer,
    Rotation,
)


@lru_cache(maxsize=4096)
def form(m: Expr) -> str:
    """diagonal, outer, transition (diagonal minus outer), rotation, blocks or dense."""
    match m:
        case Diagonal():
            return "diagonal"
        case Outer():
            return "outer"
        case Rotation():
            return "rotation"
        case MatrixExp():
            return "blocks" if len(kind(m).axes) == 3 else "dense"
        case At():
            return form(m.x)
        case Contract():
            return _product(form(m.x), form(m.m))
        case Apply(fn="+" | "-"):
            forms = {form(m.args[0]), form(m.args[1])}
            return "transition" if forms == {"diagonal", "outer"} else "dense"
        case Apply(fn="*"):
            return next(form(x) for x in m.args if len(kind(x).axes) >= 2)
        case Apply(fn="neg" | "transpose" | "detach"):
            return form(m.args[0])
    return "dense"


def _product(a: str, b: str) -> str:
    forms = {a, b}
    for one in ("outer", "dense"):
        if one in forms:
            return one
    return forms.pop() if len(forms) == 1 else "transition"


def commutes(transport: Expr) -> bool:
    """Whether the product over (j, i] does not depend on its order: then it is a map."""
    return kind(transport).place == "constant" or form(transport) in ("rotation", "diagonal")


def turns_back(transport: Expr) -> bool:
    """Whether the product over (j, i] has an inverse of the same size, for keys after the query."""
    is_power = isinstance(transport, MatrixExp) and kind(transport).place == "constant"
    return is_power or form(transport) == "rotation"

"""Derivatives of a pair formula: for each leaf, the expression of its adjoint.

    formula s(x_1, ..., x_n), cotangent g   ->   {x_k: g * ds/dx_k}

Reverse mode over the graph, by a table `function -> adjoints of its operands`. Leaves are
`PairDot`, `TransportDot`, `Read`, `Anchored` and whole `Lookup` nodes (the adjoint of a look-up is
what has to be added to the entry). A scalar that meets vectors collects a `Sum` over their
channels. Only operands that lead to a differentiable leaf are visited, so that a derivative which
nobody asked for is never formed.

Takes: a formula of the normal form (`lowering/core.py`).
Gives: expressions over the same leaves and the cotangent; nothing evaluates a quantity that the
forward formula does not have, except sin_turns beside cos_turns.
"""

import math
from collections.abc import Callable

from gnomon.dsl.nodes import Apply, Constant, Expr, Lookup, Sum, walk
from gnomon.lowering.core import Anchored, PairDot, Read, TransportDot

Adjoint = Callable[[tuple[Expr, ...], Expr, Expr], tuple[Expr | None, ...]]


def apply(fn: str, *args: Expr | float) -> Expr:
    """A pointwise node over expressions and numbers."""
    return Apply(fn, tuple(a if isinstance(a, Expr) else Constant(a) for a in args))


def _where(condition: Expr, a: Expr | float, b: Expr | float) -> Expr:
    return apply("where", condition, a, b)


def _power(x: tuple[Expr, ...], y: Expr, g: Expr) -> tuple[Expr | None, ...]:
    base, exponent = x
    if isinstance(exponent, Constant):
        slope = apply("**", base, exponent.value - 1)
        if exponent.value == 2:
            slope = base
        return apply("*", g, apply("*", exponent, slope)), None
    # 0 ** p has slope 0 in p for p > 0, and log 0 must not be multiplied by it
    logarithm = _where(apply(">", base, 0.0), apply("log", base), 0.0)
    slope = apply("*", exponent, apply("**", base, apply("-", exponent, 1.0)))
    return apply("*", g, slope), apply("*", g, apply("*", y, logarithm))


def _absolute(x: tuple[Expr, ...], _y: Expr, g: Expr) -> tuple[Expr | None, ...]:
    return (_where(apply(">", x[0], 0.0), g, _where(apply("<", x[0], 0.0), apply("neg", g), 0.0)),)


def _clip(x: tuple[Expr, ...], _y: Expr, g: Expr) -> tuple[Expr | None, ...]:
    # minimum(maximum(value, low), high): bounds in the wrong order give the upper one
    value, low, high = x
    ordered = isinstance(low, Constant) and isinstance(high, Constant) and low.value <= high.value
    raised = value if ordered else apply("maximum", value, low)
    below, above = apply("<", value, low), apply(">", raised, high)
    free = _where(above, 0.0, g)
    return _where(below, 0.0, free), _where(below, free, 0.0), _where(above, g, 0.0)


# function -> (operands x, result y, cotangent g) -> adjoints; None: no derivative
ADJOINTS: dict[str, Adjoint] = {
    "+": lambda x, y, g: (g, g),
    "-": lambda x, y, g: (g, apply("neg", g)),
    "*": lambda x, y, g: (apply("*", g, x[1]), apply("*", g, x[0])),
    "/": lambda x, y, g: (apply("/", g, x[1]), apply("neg", apply("/", apply("*", g, y), x[1]))),
    "**": _power,
    "neg": lambda x, y, g: (apply("neg", g),),
    "abs": _absolute,
    "exp": lambda x, y, g: (apply("*", g, y),),
    "expm1": lambda x, y, g: (apply("*", g, apply("+", y, 1.0)),),
    "log": lambda x, y, g: (apply("/", g, x[0]),),
    "log1p": lambda x, y, g: (apply("/", g, apply("+", x[0], 1.0)),),
    "sqrt": lambda x, y, g: (apply("/", apply("*", g, 0.5), y),),
    "rsqrt": lambda x, y, g: (apply("/", apply("*", apply("*", g, -0.5), y), x[0]),),
    "sin": lambda x, y, g: (apply("*", g, apply("cos", x[0])),),
    "cos": lambda x, y, g: (apply("neg", apply("*", g, apply("sin", x[0]))),),
    "cos_turns": lambda x, y, g: (
        apply("*", apply("*", g, -2 * math.pi), apply("sin_turns", x[0])),
    ),
    "tanh": lambda x, y, g: (apply("*", g, apply("-", 1.0, apply("*", y, y))),),
    "sigmoid": lambda x, y, g: (apply("*", g, apply("*", y, apply("-", 1.0, y))),),
    "log_sigmoid": lambda x, y, g: (apply("*", g, apply("sigmoid", apply("neg", x[0]))),),
    "softplus": lambda x, y, g: (apply("*", g, apply("sigmoid", x[0])),),
    "relu": lambda x, y, g: (_where(apply(">", x[0], 0.0), g, 0.0),),
    "minimum": lambda x, y, g: (
        _where(apply("<=", x[0], x[1]), g, 0.0),
        _where(apply("<=", x[0], x[1]), 0.0, g),
    ),
    "maximum": lambda x, y, g: (
        _where(apply(">=", x[0], x[1]), g, 0.0),
        _where(apply(">=", x[0], x[1]), 0.0, g),
    ),
    "clip": _clip,
    "where": lambda x, y, g: (None, _where(x[0], g, 0.0), _where(x[0], 0.0, g)),
}

_CONSTANT_ALMOST_EVERYWHERE = frozenset(
    ("detach", "floor", "//", "%", "<", "<=", ">", ">=", "==", "!=", "and", "or", "not")
)
_SINGULAR = frozenset(("/", "**", "log", "log1p", "sqrt", "rsqrt"))


def axes_of(expr: Expr) -> int:
    """0 for a number of the pair, 1 for a vector over the channels of a sum."""
    found: dict[int, int] = {}
    for node in walk(expr):
        match node:
            case Read(stream):
                found[id(node)] = 1 if stream.role == "vector" else 0
            case Apply(_, args):
                found[id(node)] = max(found[id(arg)] for arg in args)
            case _:
                found[id(node)] = 0
    return found[id(expr)]


def is_leaf(expr: Expr) -> bool:
    """Whether the adjoint of this node leaves the formula."""
    match expr:
        case PairDot() | TransportDot() | Anchored():
            return True
        case Read(stream):
            return stream.differentiable
        case Lookup(Read(stream), _):
            return stream.differentiable
    return False


def _active(formula: Expr) -> set[int]:
    """The nodes that lead to a differentiable leaf by functions that have a derivative."""
    active: set[int] = set()
    for node in walk(formula):
        assert isinstance(node, Expr)
        if is_leaf(node):
            active.add(id(node))
        elif isinstance(node, Apply) and node.fn not in _CONSTANT_ALMOST_EVERYWHERE:
            if any(id(arg) in active for arg in node.args):
                active.add(id(node))
        elif isinstance(node, Sum) and id(node.x) in active:
            active.add(id(node))
    return active


def differentiate(formula: Expr, cotangent: Expr) -> dict[Expr, Expr]:
    """The adjoint of every leaf of `formula` for the given cotangent, in order of first use."""
    active = _active(formula)
    order = [node for node in walk(formula) if id(node) in active]
    # a branch not taken has cotangent 0, and 0 / 0 must not come out of it
    guarded = any(isinstance(n, Apply) and n.fn == "where" for n in walk(formula))
    collected: dict[int, Expr] = {id(formula): cotangent}
    leaves: dict[Expr, Expr] = {}
    for node in reversed(order):
        g = collected.get(id(node))
        if g is None:
            continue
        assert isinstance(node, Expr)
        if is_leaf(node):
            leaves[node] = apply("+", leaves[node], g) if node in leaves else g
            continue
        for operand, adjoint in _operand_adjoints(node, g, guarded):
            if id(operand) in active:
                before = collected.get(id(operand))
                collected[id(operand)] = adjoint if before is None else apply("+", before, adjoint)
    return dict(reversed(leaves.items()))


def _operand_adjoints(node: Expr, g: Expr, guarded: bool) -> list[tuple[Expr, Expr]]:
    if isinstance(node, Sum):
        return [(node.x, g)]  # the same number for every channel
    assert isinstance(node, Apply)
    adjoints = ADJOINTS[node.fn](node.args, node, g)
    found = []
    for operand, adjoint in zip(node.args, adjoints, strict=True):
        if adjoint is None:
            continue
        if guarded and node.fn in _SINGULAR:
            adjoint = _where(apply("==", g, 0.0), 0.0, adjoint)
        if axes_of(operand) < axes_of(node):
            adjoint = Sum(adjoint)
        found.append((operand, adjoint))
    return found

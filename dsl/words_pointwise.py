"""Words that act on numbers: any place, any channels."""

import math

from gnomon.dsl.build import pointwise
from gnomon.dsl.errors import LawError, VariantError
from gnomon.dsl.kinds import describe, kind
from gnomon.dsl.nodes import Expr
from gnomon.dsl.operators import Operand


def exp(x: Operand) -> Expr:
    """e^x."""
    return pointwise("exp", x)


def expm1(x: Operand) -> Expr:
    """e^x - 1, exact near 0."""
    return pointwise("expm1", x)


def log(x: Operand) -> Expr:
    """The natural logarithm of x > 0."""
    return pointwise("log", x)


def log1p(x: Operand) -> Expr:
    """log(1 + x), exact near 0."""
    return pointwise("log1p", x)


def sqrt(x: Operand) -> Expr:
    """x^(1/2)."""
    return pointwise("sqrt", x)


def rsqrt(x: Operand) -> Expr:
    """x^(-1/2)."""
    return pointwise("rsqrt", x)


def sin(x: Operand) -> Expr:
    """The sine of x radians."""
    return pointwise("sin", x)


def cos(x: Operand) -> Expr:
    """The cosine of x radians."""
    return pointwise("cos", x)


def cos_turns(x: Operand) -> Expr:
    """cos(2 pi x), with an exact range reduction."""
    return pointwise("cos_turns", x)


def tanh(x: Operand) -> Expr:
    """The hyperbolic tangent."""
    return pointwise("tanh", x)


def sigmoid(x: Operand) -> Expr:
    """1 / (1 + e^-x)."""
    return pointwise("sigmoid", x)


def log_sigmoid(x: Operand) -> Expr:
    """log(sigmoid(x)) = -softplus(-x)."""
    return pointwise("log_sigmoid", x)


def softplus(x: Operand) -> Expr:
    """log(1 + e^x)."""
    return pointwise("softplus", x)


def relu(x: Operand) -> Expr:
    """max(x, 0)."""
    return pointwise("relu", x)


def floor(x: Operand) -> Expr:
    """The largest whole number <= x, an integer; no gradient passes."""
    return pointwise("floor", x)


def minimum(a: Operand, b: Operand) -> Expr:
    """The smaller one."""
    return pointwise("minimum", a, b)


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger one."""
    return pointwise("maximum", a, b)


def clip(x: Operand, low: Operand, high: Operand) -> Expr:
    """min(max(x, low), high)."""
    return pointwise("clip", x, low, high)


def detach(x: Operand) -> Expr:
    """x, with no gradient through it."""
    return pointwise("detach", x)


def where(condition: Expr, a: Operand, b: Operand) -> Expr:
    """A where the condition holds, else b.

    Raises:
        VariantError: the first argument is no comparison of values.
        LawError: 'hide pairs with the mask' where a branch is infinite.
    """
    if not isinstance(condition, Expr) or kind(condition).element != "bool":
        raise VariantError(
            f"gn.where wants a condition first; got {describe(condition)}",
            "write gn.where(gn.distance() < window, a, b); == compares formulas, not values",
        )
    for branch in (a, b):
        if isinstance(branch, float) and math.isinf(branch):
            raise LawError(
                "hide pairs with the mask",
                "-inf in a formula leaves no rows to skip and NaN in empty ones",
                "put the condition into mask=, e.g. gn.causal() & gn.window(n)",
            )
    return pointwise("where", condition, a, b)

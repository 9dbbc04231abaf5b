"""Torch code for pointwise functions, on tensors and on Python numbers.

A function without a finite gradient everywhere (log, sqrt, a power, a quotient) gets an argument
that is harmless wherever its result is not chosen: 0 * inf would spoil the gradient of what is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gnomon.dsl.nodes import Apply, walk
from gnomon.lowering.emit.text import LEVELS, Code, atom, call, infix, ternary
from gnomon.lowering.emit.torch_text import DType, Value, lifted, method, negative, power

if TYPE_CHECKING:
    from gnomon.lowering.emit.torch import Values

_METHODS = frozenset(
    (
        "exp",
        "expm1",
        "log",
        "log1p",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "relu",
        "abs",
        "floor",
        "detach",
    )
)
COMPARISONS = frozenset(("<", "<=", ">", ">="))
REAL = frozenset(
    [
        *("/", "**", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "cos_turns"),
        *("tanh", "sigmoid", "log_sigmoid", "softplus", "relu"),
    ]
)
ANGLES = frozenset(("sin", "cos", "cos_turns"))
SINGULAR = dict.fromkeys(("log", "log1p", "sqrt", "rsqrt", "exp", "expm1", "**"), 0) | {"/": 1}
"""The argument that has no finite gradient everywhere, by function."""


def on_tensors(fn: str, args: Sequence[Value], axes: int) -> Code:
    """A pointwise function of values, one of which at least is a tensor."""
    codes = [lifted(arg, axes) for arg in args]
    if fn in _METHODS:
        return method(codes[0], fn)
    match fn:
        case "neg":
            return negative(codes[0])
        case "**":
            return power(*codes)
        case "cos_turns":
            return call("cos_of_turns", codes[0])  # kernels have a cos_turns of their own
        case "log_sigmoid":
            return call("F.logsigmoid", codes[0])
        case "softplus":
            # torch's own turns linear at 20
            return negative(call("F.logsigmoid", negative(codes[0])))
        case "where":
            return call("torch.where", *codes)
        case "minimum" | "maximum" | "clip":
            return _bounded(fn, args, codes)
    if fn in COMPARISONS and args[0].is_number:
        return infix(fn.translate(_TURNED), *codes[::-1])
    return infix(fn, *codes)


_TURNED = str.maketrans("<>", "><")


def _bounded(fn: str, args: Sequence[Value], codes: list[Code]) -> Code:
    if fn == "clip":
        if all(arg.is_number for arg in args[1:]):
            return method(codes[0], "clamp", *codes[1:])
        low = _extreme("maximum", args[:2], codes[:2])
        return _extreme("minimum", [replace(args[0], code=low), args[2]], [low, codes[2]])
    return _extreme(fn, args, codes)


def _extreme(fn: str, args: Sequence[Value], codes: list[Code]) -> Code:
    if not any(arg.is_number for arg in args):
        return call(f"torch.{fn}", *codes)
    tensor, number = codes if args[1].is_number else codes[::-1]
    keyword = "min" if fn == "maximum" else "max"
    return method(tensor, "clamp", Code(f"{keyword}={number}"))


_MATH = frozenset(("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "floor"))

_ON_NUMBERS: dict[str, Callable[..., Code]] = {
    "neg": negative,
    "detach": lambda x: x,
    "**": power,
    "rsqrt": lambda x: power(x, atom("-0.5")),
    "where": ternary,
    "abs": lambda x: call("abs", x),
    "minimum": lambda x, y: call("min", x, y),
    "maximum": lambda x, y: call("max", x, y),
    "clip": lambda x, low, high: call("min", call("max", x, low), high),
    "relu": lambda x: call("max", x, atom("0.0")),
    "cos_turns": lambda x: call("math.cos", infix("*", atom("2 * math.pi"), x)),
    "sigmoid": lambda x: infix(
        "/", atom("1"), infix("+", atom("1"), call("math.exp", negative(x)))
    ),
    "softplus": lambda x: call("math.log1p", call("math.exp", x)),
    "log_sigmoid": lambda x: negative(call("math.log1p", call("math.exp", negative(x)))),
}


def on_numbers(fn: str, codes: Sequence[Code]) -> Code:
    """A pointwise function of Python numbers."""
    if fn in _MATH:
        return call(f"math.{fn}", *codes)
    return _ON_NUMBERS[fn](*codes) if fn in _ON_NUMBERS else infix(fn, *codes)


# ---- a node of the score IR


def applied(values: "Values", node: Apply) -> Value:
    """A pointwise function of values of one place."""
    args = _arguments(values, node)
    if node.fn == "cos_turns":
        values.helper("cos_of_turns")
    if all(arg.is_number for arg in args):
        whole = all(arg.dtype == "int" for arg in args) and node.fn not in REAL
        dtype: DType = "int" if whole or node.fn == "floor" else "float"
        return Value(on_numbers(node.fn, [arg.code for arg in args]), dtype)
    args = values.level(args)
    axes = max(arg.axes for arg in args)
    chained = LEVELS["+"] if node.fn in ("+", "-") else 0
    if node.fn == "where" and values.wants_double and args[1].is_number and args[2].is_number:
        args[2] = exactly(args[2])
    code = values.fit(node.args, args, lambda parts: on_tensors(node.fn, parts, axes), chained)
    return values.rounded(values.like(args, code, _result_dtype(values, node.fn, args)))


def exactly(number: Value) -> Value:
    """A number in float64: torch.where rounds two numbers to its default."""
    if number.dtype == "int":
        return number
    code = call("torch.tensor", number.code, Code("dtype=torch.float64"))
    return Value(code, "f64")


def _arguments(values: "Values", node: Apply) -> list[Value]:
    """The arguments as the function wants them."""
    if node.fn == "where":
        return _branches(values, node)
    exact = values.context.exact or node.fn in ANGLES
    args = [values.widened(values.value(x, exact=exact)) for x in node.args]
    if node.fn == "**" and args[0].dtype in ("int", "i64") and args[1].dtype == "i64":
        # torch rounds integer powers to integers
        args[1] = args[1].with_code(method(args[1].code, "float"), "f32")
    if node.fn in SINGULAR:
        guarded = SINGULAR[node.fn]
        args[guarded] = values.guard(args[guarded], node.fn)
    return args


def _branches(values: "Values", node: Apply) -> list[Value]:
    """A choice, whose branches know when they count."""
    condition = values.value(node.args[0], guards=())
    if condition.is_number:
        return [condition, *(values.widened(values.value(x)) for x in node.args[1:])]
    singular = any(
        isinstance(n, Apply) and n.fn in SINGULAR for x in node.args[1:] for n in walk(x)
    )
    if singular and not condition.is_atomic:
        condition = values.bind(values.name(node.args[0]), condition)
    guards = values.context.guards
    sides = [
        values.widened(values.value(x, guards=(*guards, (condition, chosen))))
        for x, chosen in zip(node.args[1:], (True, False), strict=True)
    ]
    return [condition, *sides]


def guarded(values: "Values", value: Value, fn: str) -> Value:
    """A value that is harmless wherever it is not chosen."""
    if value.is_number:
        return value
    safe = atom("0.0" if fn in ("exp", "expm1") else "1.0")
    for condition, chosen in values.context.guards:
        test, x = values.level([condition, value])
        axes = max(test.axes, x.axes)
        sides = (lifted(x, axes), safe) if chosen else (safe, lifted(x, axes))
        value = values.like([test, x], call("torch.where", lifted(test, axes), *sides), x.dtype)
    return value


def _result_dtype(values: "Values", fn: str, args: Sequence[Value]) -> DType:
    """What torch makes of these dtypes."""
    if fn in COMPARISONS:
        return "bool"
    if values.wants_double or any(arg.dtype == "f64" for arg in args):
        return "f64"
    found = {arg.dtype for arg in (args[1:] if fn == "where" else args)}
    return "f32" if fn in REAL or found & {"f32", "float"} else "i64"

"""Names of values in the generated torch code: words for what they are."""

from gnomon.dsl.nodes import (
    Apply,
    At,
    Builtin,
    Concat,
    Contract,
    Decay,
    Dot,
    Expr,
    Input,
    Lookup,
    MatrixExp,
    Outer,
    PrefixSum,
    Rotation,
    Slice,
    Sum,
    walk,
)

MODULE_NAMES = frozenset(
    [
        *(
            "torch",
            "math",
            "F",
            "np",
            "o",
            "lse",
            "do",
            "dv",
            "delta",
            "B",
            "T_q",
            "T_k",
            "H",
            "KV",
        ),
        *("G", "rows", "starts", "head", "each_head", "each_kv_head", "position", "length"),
        *("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "positions", "return_lse"),
        *("sum", "max", "min", "abs"),
    ]
)
"""What names in a generated module mean already."""

_FUNCTIONS = {
    "+": "total",
    "-": "difference",
    "*": "product",
    "/": "quotient",
    "//": "quotient",
    "**": "power",
    "neg": "negative",
    "where": "choice",
    "abs": "size",
    "floor": "whole",
    "minimum": "least",
    "maximum": "most",
    "clip": "clipped",
    "transpose": "transposed",
}


def name_of(node: Expr) -> str:
    """What a value is called: the input it is made of, if it is one, and what was done to it."""
    match node:
        case Input(name):
            return name
        case Builtin(which):
            return which
        case At(x, place):
            return f"{name_of(x)}_{'q' if place == 'row' else 'k'}"
        case PrefixSum():
            return _of_input(node, "running_sum")
        case Contract(x, Rotation()):
            return f"{name_of(x)}_turned"
        case Rotation():
            return "angle"
        case Apply("<" | "<=" | ">" | ">="):
            return "condition"
    return _rotary_word(node) or _of_input(node, _word(node))


def _word(node: Expr) -> str:
    match node:
        case Apply(fn):
            return _FUNCTIONS.get(fn, fn)
        case Slice(_, start):
            return "rest" if start.parts else "first"
        case Lookup():
            return "entry"
        case Dot():
            return "score"
        case Decay():
            return "decay"
        case MatrixExp():
            return "turn"
        case Outer():
            return "outer"
        case Concat() | Contract():
            return "mapped"
        case Sum():
            return "total"
    return "value"


def _of_input(node: Expr, word: str) -> str:
    inputs = dict.fromkeys(n.name for n in walk(node) if isinstance(n, Input))
    name = next(iter(inputs)) if len(inputs) == 1 else ""
    if word == "running_sum" and name:
        return f"{name}_sum"
    return f"{name}_{word}" if name else word


def _rotary_word(node: Expr) -> str:
    """A value made of planes and positions alone: omega, angle, or the share of a plane."""
    below = list(walk(node))
    found = [n.which for n in below if isinstance(n, Builtin)]
    if "plane" not in found or any(isinstance(n, Input) for n in below):
        return ""
    if "position" in found:
        return "angle"
    if not any(isinstance(n, Apply) and n.fn == "**" for n in below):
        return "exponent"
    return "ramp" if isinstance(node, Apply) and node.fn == "clip" else "omega"

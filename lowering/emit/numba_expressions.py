"""Expressions of the tile IR, an element at a time, in the words that Numba and plain Python share.

Numbers are written in the dtype of their neighbours, f32(0.5), for a bare 0.5 would make Numba go
on in fp64; integers beside reals are converted for the same reason. Conditions are joined by & and
|, and `where` is a function: both sides exist already, so that nothing branches.
"""

import math
import re
from dataclasses import dataclass, field

from gnomon.lowering import tile
from gnomon.lowering.emit.text import (
    INDENT,
    WIDTH,
    Code,
    atom,
    call,
    infix,
    literal,
    prefix,
    statement,
    ternary,
)
from gnomon.lowering.tile import DType, Expr, Load, Number, Op, Ref, type_of

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_NAMED = {math.log2(math.e): "LOG2E", math.log(2): "LN2"}
"""Numbers that the preamble of a file has names for."""
_RANK: dict[DType, int] = {"bool": 0, "i32": 1, "i64": 2, "io": 3, "f16": 3, "f32": 3, "f64": 4}
_CASTS = {
    "f32": "f32",
    "io": "f32",
    "f16": "f32",
    "f64": "f64",
    "i32": "i64",
    "i64": "i64",
    "bool": "bool",
}
_WORDS = {
    "abs": "abs",
    "minimum": "min",
    "maximum": "max",
    "floor": "np.floor",
    "sqrt": "np.sqrt",
    "**": "power",
}
_HELPERS = {
    *("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "sin_turns", "cos_turns"),
    *("tanh", "sigmoid", "log_sigmoid", "softplus", "apart"),
}


@dataclass(slots=True)
class Writer:
    """Prints expressions; `axes` has the loop variable of each extent."""

    io: str
    firsts: set[str]
    printed: dict[str, str]
    local: dict[str, str]
    """Values of this iteration: name -> local scalar."""
    indices: tuple[str, str] = ("r", "c")
    """The variables of the loops over elements: rows, columns."""
    axes: dict[str, str] = field(default_factory=dict)

    def name(self, ref: Ref) -> str:
        """How a name is printed."""
        return self.printed.get(ref.name, ref.name)

    def beside(self, ref: Ref, suffix: str) -> str:
        """A new name for a scalar that belongs to a value."""
        made = f"{self.name(ref)}_{suffix}"
        taken = self.printed.values()
        while made in taken:
            made += "_"
        return made

    def real(self, x: Expr, want: DType) -> Code:
        """The expression as an operand of something of another dtype."""
        if isinstance(x, Number):
            return number(x.value, want)
        code = self.code(x)
        if _RANK[want] >= _RANK["f32"] > _RANK[type_of(x).dtype]:
            return call(_CASTS[want], code)
        return code

    def code(self, x: Expr) -> Code:
        """One element of the expression."""
        match x:
            case Ref():
                return self._ref(x)
            case Number(value, dtype):
                return number(value, dtype)
            case tile.Full(value, of):
                return number(value, of.dtype)
            case Op(fn, args, _, dtype):
                return self._op(fn, args, dtype)
            case tile.Arange(extent):
                return atom(self.axes[extent])
            case tile.Cast(a, dtype):
                return call(_CASTS[dtype], self.code(a))
            case Load():
                return self.element(x)
        raise TypeError(f"no element of {type(x).__name__}")

    def _ref(self, ref: Ref) -> Code:
        name, shape = self.name(ref), ref.type.shape
        if ref.name in self.firsts and shape:
            return infix("+", atom(name), atom(self.axes[shape[0]]))
        if not shape:
            return atom(name)
        if ref.name in self.local:
            return atom(self.local[ref.name])
        return atom(self.place(ref))

    def place(self, ref: Ref) -> str:
        """The element of a buffer."""
        return f"{self.name(ref)}[{', '.join(self.axes[extent] for extent in ref.type.shape)}]"

    # -- functions

    def _op(self, fn: str, args: tuple[Expr, ...], dtype: DType) -> Code:
        if fn == "where":
            return call("where", self.code(args[0]), *(self.real(x, dtype) for x in args[1:]))
        if fn in ("and", "or"):
            a, b = (self.code(x) for x in args)
            return infix("&" if fn == "and" else "|", a, b)
        if fn == "not":
            return prefix("not", self.code(args[0]))
        if fn in _MIRRORED:
            dtype = _widest(args)
            if isinstance(args[0], Number):
                fn, args = _MIRRORED[fn], args[::-1]
        return self._function(fn, args, [self.real(x, dtype) for x in args], dtype)

    def _function(self, fn: str, args: tuple[Expr, ...], codes: list[Code], dtype: DType) -> Code:
        if fn in ("+", "-", "*", "/", "//", "%", "<<", ">>", *_MIRRORED):
            return infix(fn, *codes)
        one = number(1, dtype)
        match fn:
            case "neg":
                return prefix("-", codes[0])
            case "relu":
                return call("max", codes[0], number(0, dtype))
            case "rsqrt":
                return infix("/", one, call("np.sqrt", codes[0]))
            case "cdiv":
                return infix("//", infix("-", infix("+", *codes), atom("1")), codes[1])
            case "**" if isinstance(args[1], Number) and args[1].value == 2:
                return call("square", codes[0])
        if fn in _WORDS:
            return call(_WORDS[fn], *codes)
        if fn in _HELPERS and dtype != "f64":
            return call(fn, *codes)
        raise TypeError(f"no function {fn} of {dtype} on the CPU")

    # -- memory

    def element(self, load: Load) -> Code:
        """One element of a tensor, or the fill where it does not exist."""
        index = [self.code(part) for part in load.index]
        found = atom(f"{load.tensor.name}[{', '.join(str(part) for part in index)}]")
        if load.tensor.dtype == "io" and self.io != "f32":
            found = call(f"from_{self.io}", found)
        inside = self.inside(load.index, load.limits)
        if inside is None:
            return found
        dtype = load.tensor.dtype
        return ternary(inside, found, number(load.fill, dtype))

    def inside(self, index: tuple[Expr, ...], limits: tuple[Expr | None, ...]) -> Code | None:
        """The condition under which an index is within its limits; None where it always is."""
        made: Code | None = None
        for part, limit in zip(index, limits, strict=True):
            if limit is not None:
                one = infix("<", self.code(part), self.code(limit))
                made = one if made is None else infix("and", made, one)
        return made


def assignment(target: str, code: Code, depth: int, scalar: str = "") -> list[str]:
    """Print target = code; a long value of two operands is made in two steps, in a scalar."""
    name = scalar or target
    flat = f"{INDENT * depth}{target} = {code}"
    if len(flat) <= WIDTH or len(code.chain) != 2 or code.chain[1][0] not in "+-*/&|":
        return statement(f"{target} = ", code, depth)
    (_, first), (operator, second) = code.chain
    if re.search(rf"\b{name}\b", second.text):
        return statement(f"{target} = ", code, depth)
    lines = assignment(name, _bare(first), depth)
    lines += statement(f"{name} {operator}= ", _bare(second), depth)
    return lines if name == target else [*lines, f"{INDENT * depth}{target} = {name}"]


def _bare(code: Code) -> Code:
    """Code without the parentheses around it."""
    return code.items[0] if code.plain and str(code) == f"({code.items[0]})" else code


def number(value: int | float, dtype: DType) -> Code:
    """A literal of a dtype."""
    if dtype in ("i32", "i64"):
        return atom(literal(int(value)))
    if dtype == "bool":
        return atom(str(bool(value)))
    value = float(value)
    start = "" if dtype == "f64" else "f32"
    if start and value in _NAMED:
        return atom(_NAMED[value])
    if math.isnan(value):
        return atom("np.nan" if dtype == "f64" else "NAN")
    if math.isinf(value):
        word = atom("np.inf" if dtype == "f64" else "INF")
        return word if value > 0 else prefix("-", word)
    return call(start, atom(literal(value))) if start else atom(literal(value))


def _widest(args: tuple[Expr, ...]) -> DType:
    """The dtype in which operands are compared: literals follow."""
    firm = [type_of(x).dtype for x in args if not isinstance(x, Number)]
    dtypes = firm or [type_of(x).dtype for x in args]
    real = any(isinstance(x, Number) and isinstance(x.value, float) for x in args)
    widest = max(dtypes, key=lambda dtype: _RANK[dtype])
    return "f32" if real and _RANK[widest] < _RANK["f32"] else widest

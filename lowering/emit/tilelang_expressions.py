"""Elements of tiles as TileLang: a named extent is an index, arithmetic is done in f32."""

from collections.abc import Mapping

from gnomon.lowering import tile
from gnomon.lowering.emit import tilelang_helpers
from gnomon.lowering.emit.text import (
    ATOM,
    LEVELS,
    Code,
    atom,
    call,
    infix,
    literal,
    prefix,
)
from gnomon.lowering.tile import Expr, Number, Op, Ref, type_of

# tensors become arguments of a C function
_WORDS_OF_C = frozenset(("auto", "char", "const", "do", "double", "float", "int", "long", "short"))

DTYPES = {
    "io": "io",
    "f32": '"float32"',
    "f64": '"float64"',
    "i32": '"int32"',
    "i64": '"int64"',
    "bool": '"bool"',
}
_WHOLE = ("bool", "i32", "i64")
_CALLS = {
    "cdiv": "T.ceildiv",
    "cos": "T.cos",
    "exp": "T.exp",
    "exp2": "T.exp2",
    "log": "T.log",
    "log2": "T.log2",
    "maximum": "T.max",
    "minimum": "T.min",
    "rsqrt": "T.rsqrt",
    "sin": "T.sin",
    "sqrt": "T.sqrt",
    "where": "T.if_then_else",
}
_REAL = set(_CALLS) - {"cdiv", "maximum", "minimum", "where"} | tilelang_helpers.NAMES - {
    "magnitude"
}
_INFIX = ("+", "-", "*", "/", "<", "<=", ">", ">=", "==", "!=", "//", "%", "and", "or")


class Elements:
    """Prints one element of an expression; the caller has a loop variable for each extent."""

    def __init__(self, cells: set[str], variables: Mapping[str, str]) -> None:
        self.cells = cells
        self.variables = variables
        self.rings: Mapping[str, str] = {}
        """Names of buffers that the loop at hand has of its own."""
        self.helpers: set[str] = set()

    def code(self, expr: Expr) -> Code:
        """One element, of the dtype of the expression."""
        match expr:
            case Ref(name, type):
                if name in self.cells:
                    return atom(f"{name}[0]")
                place = ", ".join(self.variables[extent] for extent in type.shape)
                return atom(f"{self.name(expr)}[{place}]" if place else name)
            case Number(value, _):
                return number(value)
            case tile.Arange(extent):
                return atom(self.variables[extent])
            case tile.Full(value, _):
                return number(value)
            case Op():
                return self._op(expr)
            case tile.Load():
                return self.load(expr)
            case tile.Cast(x, dtype):
                return self.cast(x, dtype)
        raise TypeError(f"no element of {expr!r}")

    def name(self, ref: Ref) -> str:
        """The name of a buffer."""
        return self.rings.get(ref.name, ref.name)

    def cast(self, x: Expr, dtype: tile.DType) -> Code:
        """One element of another dtype."""
        if type_of(x).dtype == dtype:
            return self.code(x)
        return call("T.cast", self.code(x), atom(DTYPES[dtype]))

    # -- memory

    def place(self, tensor: tile.Tensor, index: tuple[Expr, ...]) -> Code:
        """An element of a tensor."""
        return atom(f"{argument(tensor)}[{', '.join(str(self.code(part)) for part in index)}]")

    def load(self, load: tile.Load) -> Code:
        """An element of a tensor, or the fill where it does not exist."""
        found = self.place(load.tensor, load.index)
        inside = self.inside(load.index, load.limits)
        if inside is None:
            return found
        fill = number(float(load.fill) if load.tensor.dtype not in _WHOLE else load.fill)
        if load.tensor.dtype in ("io", "f64"):
            fill = call("T.cast", fill, atom(DTYPES[load.tensor.dtype]))
        return call("T.if_then_else", inside, found, fill)

    def inside(self, index: tuple[Expr, ...], limits: tuple[Expr | None, ...]) -> Code | None:
        """Where an element exists; None: everywhere."""
        found: Code | None = None
        for part, limit in zip(index, limits, strict=True):
            if limit is not None:
                one = infix("<", self.code(part), self.code(limit))
                found = one if found is None else infix("and", found, one)
        return found

    # -- functions

    def _op(self, expr: Op) -> Code:
        fn, dtype = expr.fn, expr.dtype
        codes = [self._operand(arg, expr) for arg in expr.args]
        if fn in _INFIX:
            if fn == "//" and dtype not in _WHOLE:
                return call("T.floor", infix("/", *codes))
            return infix(fn, *codes)
        match fn:
            case "neg":
                return prefix("-", codes[0])
            case "apart":
                return infix("+", infix("-", *codes[:2]), codes[2])
            case "not":
                return call("T.Not", codes[0])
            case "floor":
                of = type_of(expr.args[0]).dtype
                return codes[0] if of in _WHOLE else call("T.floor", codes[0])
            case "relu":
                return call("T.max", codes[0], number(0 if dtype in _WHOLE else 0.0))
            case "**" if isinstance(expr.args[1], Number) and expr.args[1].value == 2:
                return self._function("square", codes[:1])
        return self._function({"**": "power", "abs": "magnitude"}.get(fn, fn), codes)

    def _function(self, fn: str, codes: list[Code]) -> Code:
        if fn in _CALLS:
            return call(_CALLS[fn], *codes)
        if fn not in tilelang_helpers.NAMES:
            raise TypeError(f"no function {fn} in TileLang")
        self.helpers.add(fn)
        return call(fn, *codes)

    def _operand(self, arg: Expr, expr: Op) -> Code:
        """An operand in the dtype in which the operation is done."""
        real = expr.dtype in ("f32", "f64")
        if isinstance(arg, Number):
            code = number(float(arg.value) if real else arg.value)
            # a function of numbers alone would be Python's
            return call("T.float32", code) if real and expr.fn in _REAL else code
        of = type_of(arg).dtype
        if of == "io" or (real and of in _WHOLE and of != "bool"):
            return self.cast(arg, "f32")
        return self.code(arg)


def argument(tensor: tile.Tensor) -> str:
    """The name of a tensor, which C must be able to read."""
    return f"{tensor.name}_" if tensor.name in _WORDS_OF_C else tensor.name


def number(value: float) -> Code:
    """A literal; infinities are those of fp32."""
    if value in (float("inf"), float("-inf")):
        infinity = call("T.infinity", atom('"float32"'))
        return infinity if value > 0 else prefix("-", infinity)
    return Code(literal(value), LEVELS["neg"] if value < 0 else ATOM)

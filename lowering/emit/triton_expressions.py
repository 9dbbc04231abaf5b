"""Tile expressions as Triton code: named extents become axes, arithmetic is done in f32."""

import math
from collections.abc import Mapping

from gnomon.lowering import tile
from gnomon.lowering.emit import text, triton_helpers
from gnomon.lowering.emit.text import Code, atom, call, infix, keyword, prefix, suffix
from gnomon.lowering.emit.triton_names import Names, index_shape, stride
from gnomon.lowering.emit.triton_words import CALLS, DTYPES, INFIX, NARROW, REAL, TURNED, WHOLE
from gnomon.lowering.tile import Expr, Number, Op, Ref, type_of


class Expressions:
    """Prints the expressions of one kernel, and keeps which strides and helpers they use."""

    def __init__(
        self,
        kernel: tile.Kernel,
        described: frozenset[str] = frozenset(),
        *,
        approximate: bool = False,
    ) -> None:
        self.approximate = approximate
        self.names = Names(kernel)
        self.lets: Mapping[str, Expr] = {}
        """What the names in scope stand for."""
        self.channels: dict[str, str] = {}
        """Names for the channels of padded widths, by extent."""
        self.padded = {extent for extent, _ in kernel.widths}
        self.helpers: set[str] = set()
        self.strides: set[str] = set()
        self.fuses = kernel.fuses
        tensors = [p for p in kernel.params if isinstance(p, tile.Tensor) and p.dtype == "io"]
        io = min((t.name for t in tensors), key=lambda name: name != "v", default="")
        self.io = f"{io}.dtype" if io in described else f"{io}.dtype.element_ty"

    def dtype(self, dtype: tile.DType) -> Code:
        """An element type; io is that of the call."""
        return atom(self.io if dtype == "io" else DTYPES[dtype])

    def code(self, expr: Expr) -> Code:
        """An expression as it stands, io tiles included."""
        match expr:
            case Ref(name, _) | tile.Relabel(Ref(name, _), _):
                return atom(name)
            case Number(value, _):
                return number(value)
            case tile.Arange(extent):
                return self._arange(extent)
            case tile.Full(value, type):
                return self._full(value, type)
            case Op():
                return self._op(expr)
            case tile.Load():
                return self._loaded(expr)
            case tile.Dot():
                return self.dot(expr)
            case tile.Reduce(fn, x, axis):
                place = type_of(x).shape.index(axis)
                return call(f"tl.{fn}", self.value(x), keyword("axis", atom(str(place))))
            case tile.Cast(x, dtype):
                return self.cast(x, dtype)
        raise TypeError(f"no Triton for {expr!r}")

    def value(self, expr: Expr) -> Code:
        """An expression for arithmetic: 16-bit tiles as f32."""
        return self.cast(expr, "f32") if type_of(expr).dtype in NARROW else self.code(expr)

    def cast(self, x: Expr, dtype: tile.DType) -> Code:
        """Another element type."""
        if isinstance(x, Number):
            return self._full(x.value, tile.Type(dtype))
        if type_of(x).dtype == dtype:
            return self.code(x)
        code, to = self.code(x), self.dtype(dtype)
        function = call("tl.cast", code, to)
        # a scalar may be a plain number of Python (a width, a loop index in the interpreter)
        return suffix(code, f".to({to})", function) if type_of(x).shape else function

    def align(self, code: Code, shape: tuple[str, ...], to: tuple[str, ...]) -> Code:
        """A tile of some named extents as one that broadcasts over more of them."""
        if not shape or shape == to:
            return code
        ordered = tuple(name for name in to if name in shape)
        if ordered != shape:
            code = call("tl.trans", code)
        if ordered == to:
            return code
        marks = [":" if name in shape else "None" for name in to]
        function = code
        for place, mark in enumerate(marks):
            if mark == "None":
                function = call("tl.expand_dims", function, atom(str(place)))
        return suffix(code, f"[{', '.join(marks)}]", function)

    def _arange(self, extent: str) -> Code:
        extent = tile.extent_of(extent)
        name = f"o_{extent.removeprefix('B').lower()}"
        if extent not in self.padded or name in self.names.taken:
            return call("tl.arange", atom("0"), atom(extent))
        self.channels[extent] = name
        return atom(name)

    def _full(self, value: float, type: tile.Type) -> Code:
        extents = atom(f"[{', '.join(map(tile.extent_of, type.shape))}]")
        if value == 0:
            return call("tl.zeros", extents, self.dtype(type.dtype))
        return call("tl.full", extents, number(value), self.dtype(type.dtype))

    # -- memory

    def address(
        self, tensor: tile.Tensor, index: tuple[Expr, ...]
    ) -> tuple[list[Code], list[Code]]:
        """Offsets that are 64-bit scalars, and those inside the tile."""
        base, offsets = [], []
        shape = index_shape(index)
        for axis, part in enumerate(index):
            scalar, inner = self.split(part)
            if scalar is not None:
                base.append(infix("*", self._wide(scalar), self.step(tensor, axis)))
            if inner is not None:
                code = self.code(inner)
                if not (self.extent(inner) or tensor.axes[axis].startswith("N_")):
                    code = suffix(code, ".to(tl.int64)", call("tl.cast", code, atom("tl.int64")))
                aligned = self.align(code, type_of(inner).shape, shape)
                offsets.append(infix("*", aligned, self.step(tensor, axis)))
        return base, offsets

    def step(self, tensor: tile.Tensor, axis: int) -> Code:
        """The stride of an axis, which becomes an argument."""
        name = stride(tensor, axis)
        self.strides.add(name)
        return atom(name)

    def split(self, part: Expr) -> tuple[Expr | None, Expr | None]:
        """An index as a scalar plus a tile, the tile an Arange where it can be."""
        if isinstance(part, Number) and part.value == 0:
            return None, None
        if not type_of(part).shape:
            return part, None
        if isinstance(part, Ref) and (known := self.lets.get(part.name)) is not None:
            scalar, inner = self.split(known)
            if not isinstance(inner, tile.Arange):
                return None, part
            return (None, part) if scalar is None else (scalar, inner)
        if isinstance(part, Op) and part.fn == "+":
            halves = [self.split(arg) for arg in part.args]
            tiles = [inner for _, inner in halves if inner is not None]
            if len(tiles) == 1 and self.extent(tiles[0]):
                scalars = [scalar for scalar, _ in halves if scalar is not None]
                if len(scalars) == 2:
                    return Op("+", tuple(scalars), (), "i32"), tiles[0]
                return (scalars[0] if scalars else None), tiles[0]
        return None, part

    def extent(self, inner: Expr | None) -> str | None:
        """The extent of 0, 1, ..., extent - 1 where that is what an index is."""
        known = self.lets.get(inner.name) if isinstance(inner, Ref) else inner
        return known.extent if isinstance(known, tile.Arange) else None

    def _wide(self, scalar: Expr) -> Code:
        if isinstance(scalar, Ref) and scalar.name in self.names.wide:
            return atom(scalar.name)
        return call("tl.cast", self.code(scalar), atom("tl.int64"))

    def mask(self, index: tuple[Expr, ...], limits: tuple[Expr | None, ...]) -> Code | None:
        """Where an element exists; None: everywhere."""
        shape = index_shape(index)
        found: Code | None = None
        for part, limit in zip(index, limits, strict=True):
            if limit is None:
                continue
            aligned = self.align(self.code(part), type_of(part).shape, shape)
            inside = infix("<", aligned, self.code(limit))
            found = inside if found is None else infix("&", found, inside)
        return found

    def _loaded(self, load: tile.Load) -> Code:
        match load:
            case tile.Load(tensor, (Op("+", (first, inside)),)) if tensor.axes == ("distance",):
                return self._toeplitz(tensor, first, type_of(inside).shape)
        base, offsets = self.address(load.tensor, load.index)
        return self.load(add([atom(load.tensor.name), *base, *offsets]), load)

    def _toeplitz(self, tensor: tile.Tensor, first: Expr, shape: tuple[str, ...]) -> Code:
        """The entries of a table at the distances of a tile's pairs."""
        self.helpers.add("toeplitz")
        place = infix("+", atom(tensor.name), self.code(first))
        sign = number(1 if shape[0] == "BM" else -1)
        return call("toeplitz", place, *map(atom, shape), sign)

    def load(self, pointer: Code, load: tile.Load) -> Code:
        """A load; what lies outside the limits reads as its fill."""
        mask = self.mask(load.index, load.limits)
        if mask is None:
            return call("tl.load", pointer)
        real = load.tensor.dtype not in WHOLE
        fill = number(float(load.fill) if real else load.fill)
        return call("tl.load", pointer, keyword("mask", mask), keyword("other", fill))

    # -- arithmetic

    def dot(self, product: tile.Dot, start: Code | None = None) -> Code:
        """A matrix product, added to `start`."""
        a, b = product.a, product.b
        left, right = type_of(a), type_of(b)
        (shared,) = set(left.shape) & set(right.shape)
        as_they_are = left.dtype == right.dtype and left.dtype in NARROW
        x, y = (self.code(x) if as_they_are else self.cast(x, "f32") for x in (a, b))
        if left.shape[1] != shared:
            x = call("tl.trans", x)
        if right.shape[0] != shared:
            y = call("tl.trans", y)
        args = (x, y) if start is None else (x, y, start)
        precision = atom(f'"{product.precision}"')
        return call("tl.dot", *args, keyword("input_precision", precision))

    def _op(self, expr: Op) -> Code:
        args = expr.args
        if (special := self._special(expr)) is not None:
            return special
        fn = self._approximated(expr.fn, expr)
        codes = [self._operand(arg, expr) for arg in args]
        if fn in TURNED and isinstance(args[0], Number):
            return infix(TURNED[fn], codes[1], codes[0])
        if fn in INFIX:
            return infix(INFIX[fn], *codes)
        if fn in ("//", "%"):
            return self._rounded_down(expr, codes)
        if fn == "neg":
            return prefix("-", codes[0])
        if fn == "not":
            return prefix("~", codes[0])
        if fn == "floor":
            return codes[0] if type_of(args[0]).dtype in WHOLE else call("tl.floor", codes[0])
        if fn == "relu":
            return call("tl.maximum", codes[0], number(0 if expr.dtype in WHOLE else 0.0))
        return self._function(fn, codes)

    def _special(self, expr: Op) -> Code | None:
        """What is more than a function of its operands' codes."""
        match expr.fn:
            case "+":
                return self._dot_added(expr) or self._fused(expr)
            case "**":
                return self._power(expr)
            case "cos_turns" | "sin_turns":
                fn = self._approximated(expr.fn, expr)
                return None if fn == expr.fn else self._turned(fn, expr)
        return None

    def _approximated(self, fn: str, expr: Op) -> str:
        """The function of the special-function unit, for values of pairs, where that is wanted."""
        fast = f"{fn}_approx"
        pairs = len(expr.shape) == 2
        return fast if self.approximate and pairs and fast in triton_helpers.NAMES else fn

    def _turned(self, fn: str, expr: Op) -> Code:
        """A cosine or sine of turns; a scalar factor of the angle takes 2 pi in, once a program."""
        (angle,) = expr.args
        match angle:
            case Op("*", (x, turns)) if not type_of(turns).shape:
                turn = infix("*", self.value(turns), number(2 * math.pi))
                return self._function(fn, [self._operand(x, expr), turn])
        return self._function(fn, [self._operand(angle, expr)])

    def _function(self, fn: str, codes: list[Code]) -> Code:
        if fn == "apart":
            return infix("+", infix("-", *codes[:2]), codes[2])
        if fn in CALLS:
            return call(CALLS[fn], *codes)
        self.helpers.add(fn)
        return call(fn, *codes)

    def _operand(self, arg: Expr, expr: Op) -> Code:
        if isinstance(arg, Number) and not (expr.fn in REAL and len(expr.args) == 1):
            real = expr.dtype in ("f32", "f64")
            return number(float(arg.value) if real else arg.value)
        of = type_of(arg)
        to_real = isinstance(arg, Number) or (expr.fn in REAL and of.dtype in WHOLE)
        code = self.cast(arg, "f32") if to_real else self.value(arg)
        return self.align(code, of.shape, expr.shape)

    def _dot_added(self, expr: Op) -> Code | None:
        """The sum of a product and a tile of its shape, as a product that starts at the tile."""
        x, y = expr.args
        if not isinstance(y, tile.Dot):
            x, y = y, x
        if not isinstance(y, tile.Dot) or type_of(x) != type_of(y):
            return None
        return self.dot(y, self.code(x))

    def _fused(self, expr: Op) -> Code | None:
        """A product and a sum rounded once, where the compiler is told not to do so by itself."""
        product, rest = expr.args
        if not (isinstance(product, Op) and product.fn == "*"):
            product, rest = rest, product
        pairs = len(expr.shape) == 2 and expr.dtype == "f32"
        if self.fuses or not (pairs and isinstance(product, Op) and product.fn == "*"):
            return None
        codes = [self._operand(arg, expr) for arg in (*product.args, rest)]
        return call("tl.fma", *codes)

    def _rounded_down(self, expr: Op, codes: list[Code]) -> Code:
        """Division and remainder of real numbers, or of integers of any sign."""
        if expr.dtype not in WHOLE:
            quotient = call("tl.floor", infix("/", *codes))
            return (
                quotient
                if expr.fn == "//"
                else infix("-", codes[0], infix("*", quotient, codes[1]))
            )
        if all(self._is_natural(arg) for arg in expr.args):
            return infix(expr.fn, *codes)
        return self._function("floor_div" if expr.fn == "//" else "floor_mod", codes)

    def _is_natural(self, expr: Expr) -> bool:
        """Whether an integer is known to be at least 0."""
        match expr:
            case Number(value, _):
                return value >= 0
            case Ref(name, _):
                known = self.lets.get(name)
                return name in self.names.natural or (known is not None and self._is_natural(known))
            case Op(fn, args, _, _):
                closed = fn in (
                    "+",
                    "*",
                    "//",
                    "%",
                    "<<",
                    ">>",
                    "cdiv",
                    "minimum",
                    "maximum",
                    "abs",
                )
                return closed and all(self._is_natural(arg) for arg in args)
        return isinstance(expr, tile.Arange)

    def _power(self, expr: Op) -> Code:
        base, exponent = expr.args
        x = self._operand(base, Op("power", expr.args, expr.shape, expr.dtype))
        if isinstance(base, Number) and base.value > 0:
            scaled = self._operand(exponent, Op("power", expr.args, expr.shape, expr.dtype))
            log = math.log2(base.value)
            return call("tl.exp2", scaled if log == 1 else infix("*", scaled, number(log)))
        if not isinstance(exponent, Number):
            a = self._operand(exponent, Op("power", expr.args, expr.shape, expr.dtype))
            return self._function("power", [x, a])
        if exponent.value == 2:
            return self._function("square", [x])
        if exponent.value == 0.5:
            return call("tl.sqrt", x)
        if exponent.value != int(exponent.value):
            logarithm = self._function(self._approximated("log2", expr), [x])
            return call("tl.exp2", infix("*", number(exponent.value), logarithm))
        return self._function("power", [x, self._full(exponent.value, tile.Type("f32"))])


def add(terms: list[Code]) -> Code:
    """The sum of the terms."""
    total = terms[0]
    for term in terms[1:]:
        total = infix("+", total, term)
    return total


def number(value: float) -> Code:
    """A literal; infinities are calls of float."""
    if isinstance(value, float) and not math.isfinite(value):
        return call("float", atom(f'"{value}"'))
    return Code(text.literal(value), text.LEVELS["neg"] if value < 0 else text.ATOM)

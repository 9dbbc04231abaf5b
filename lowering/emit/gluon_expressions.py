"""Tile expressions as Gluon: every tile is made in the layout in which it is wanted."""

from collections.abc import Mapping

from gnomon.lowering import tile
from gnomon.lowering.emit import triton_helpers
from gnomon.lowering.emit.gluon_layouts import Layouts, io_type
from gnomon.lowering.emit.text import Code, atom, call, infix, keyword, prefix, suffix
from gnomon.lowering.emit.triton_expressions import add, number
from gnomon.lowering.emit.triton_names import Names, index_shape, stride
from gnomon.lowering.passes.assign_buffers import Buffered, first_of
from gnomon.lowering.tile import Expr, Number, Op, Ref, type_of

DTYPES = {
    "f32": "gl.float32",
    "f64": "gl.float64",
    "i32": "gl.int32",
    "i64": "gl.int64",
    "bool": "gl.int1",
}
_WHOLE = ("bool", "i32", "i64")
_CALLS = {
    "abs": "gl.abs",
    "cdiv": "gl.cdiv",
    "cos": "gl.cos",
    "exp": "gl.exp",
    "exp2": "gl.exp2",
    "floor": "gl.floor",
    "log": "gl.log",
    "log2": "gl.log2",
    "maximum": "gl.maximum",
    "minimum": "gl.minimum",
    "rsqrt": "gl.rsqrt",
    "sin": "gl.sin",
    "sqrt": "gl.sqrt",
    "where": "gl.where",
}
_INFIX = {
    **{sign: sign for sign in ("+", "-", "*", "/", "<", "<=", ">", ">=", "==", "!=")},
    "and": "&",
    "or": "|",
}


class Expressions:
    """Prints the expressions of one kernel in given layouts; keeps what they use."""

    def __init__(self, buffered: Buffered) -> None:
        kernel = buffered.kernel
        self.buffers = buffered.buffers
        self.names = Names(kernel)
        self.io = io_type(kernel)
        stationary, moving = kernel.order
        self.layouts = Layouts((stationary, moving), self.io)
        self.helpers: set[str] = set()
        self.strides: set[str] = set()
        self.lets: Mapping[str, Expr] = {}

    # -- layouts

    def made(self, expr: Expr, shape: tuple[str, ...]) -> Code:
        """A value in the layout in which tiles of its shape are kept."""
        if len(shape) == 2:
            return self.code(expr, shape, self.layouts.mma(shape))
        if len(shape) == 1:
            matrix, _ = self.layouts.home(shape[0])
            return self.code(expr, self.layouts.score, matrix)
        return self.code(expr, (), "")

    def code(self, expr: Expr, frame: tuple[str, ...], matrix: str) -> Code:
        """A value in the layout `matrix`, whose axes are `frame`, or in a slice of it."""
        match expr:
            case Ref():
                return self._ref(expr, frame, matrix)
            case Number(value, _):
                return number(value)
            case tile.Arange(extent):
                return self.layouts.arange(extent, matrix, frame.index(extent))
            case tile.Full(value, type_) if not type_.shape:
                return number(value)
            case tile.Full(value, type_):
                extents = atom(f"[{', '.join(type_.shape)}]")
                layout = self._layout(type_.shape, frame, matrix)
                return call("gl.full", extents, number(value), self.dtype(type_.dtype), layout)
            case Op():
                return self._op(expr, frame, matrix)
            case tile.Load():
                return self.load(expr, frame, matrix)
            case tile.Cast(x, dtype):
                return self.cast(x, dtype, frame, matrix)
        raise TypeError(f"no Gluon for {expr!r}")

    def dtype(self, dtype: tile.DType) -> Code:
        """An element type; io is that of the call."""
        return atom(self.io if dtype == "io" else DTYPES[dtype])

    def cast(self, x: Expr, dtype: tile.DType, frame: tuple[str, ...], matrix: str) -> Code:
        """Another element type."""
        code = self.code(x, frame, matrix)
        if type_of(x).dtype == dtype:
            return code
        function = call("gl.cast", code, self.dtype(dtype))
        if not type_of(x).shape:
            return function
        return suffix(code, f".to({self.dtype(dtype)})", function)

    def _layout(self, shape: tuple[str, ...], frame: tuple[str, ...], matrix: str) -> Code:
        if len(shape) == 2:
            return atom(matrix)
        return self.layouts.slice(matrix, frame.index(shape[0]))

    def _ref(self, ref: Ref, frame: tuple[str, ...], matrix: str) -> Code:
        """A value, moved between threads where it is kept in another layout."""
        shape, code = ref.type.shape, atom(ref.name)
        if not shape:
            return code
        if self.buffers[ref.name][1] == "shared" and len(shape) == 2:
            return atom(f"{ref.name}.load({matrix})")
        if len(shape) == 2:
            kept, wanted = self.layouts.mma(shape), matrix
            assert shape == frame, f"{ref.name} is wanted turned"
            return code if kept == wanted else call("gl.convert_layout", code, atom(wanted))
        home, axis = self.layouts.home(shape[0])
        if (home, axis) == (matrix, frame.index(shape[0])):
            return code
        return call("gl.convert_layout", code, self._layout(shape, frame, matrix))

    def align(self, code: Code, shape: tuple[str, ...], to: tuple[str, ...]) -> Code:
        """A vector as a tile that broadcasts over a matrix."""
        if len(shape) != 1 or len(to) != 2:
            return code
        axis = to.index(shape[0])
        tail = "[:, None]" if axis == 0 else "[None, :]"
        return suffix(code, tail, call("gl.expand_dims", code, atom(str(1 - axis))))

    # -- memory

    def pointers(
        self, tensor: tile.Tensor, index: tuple[Expr, ...], frame: tuple[str, ...], matrix: str
    ) -> tuple[Code, list[Code]]:
        """The scalar part of a pointer, and the offsets inside the tile."""
        base, offsets = [atom(tensor.name)], []
        shape = index_shape(index)
        for axis, part in enumerate(index):
            first = first_of(part) if type_of(part).shape else part
            if first is None:
                inner = self.align(self.code(part, frame, matrix), type_of(part).shape, shape)
                offsets.append(infix("*", inner, self._step(tensor, axis)))
                continue
            if not (isinstance(first, Number) and first.value == 0):
                base.append(infix("*", self._wide(first), self._step(tensor, axis)))
            if type_of(part).shape:
                (extent,) = type_of(part).shape
                inner = self.layouts.arange(extent, matrix, frame.index(extent))
                inner = self.align(inner, (extent,), shape)
                offsets.append(infix("*", inner, self._step(tensor, axis)))
        return add(base), offsets

    def _step(self, tensor: tile.Tensor, axis: int) -> Code:
        name = stride(tensor, axis)
        self.strides.add(name)
        return atom(name)

    def _wide(self, scalar: Expr) -> Code:
        code = self.code(scalar, (), "")
        if isinstance(scalar, Ref) and scalar.name in self.names.wide:
            return code
        return call("gl.cast", code, atom("gl.int64"))

    def mask(
        self,
        index: tuple[Expr, ...],
        limits: tuple[Expr | None, ...],
        frame: tuple[str, ...],
        matrix: str,
    ) -> Code | None:
        """Where an element exists; None: everywhere."""
        shape, found = index_shape(index), None
        for part, limit in zip(index, limits, strict=True):
            if limit is None:
                continue
            inside = infix("<", self.code(part, frame, matrix), self.code(limit, (), ""))
            inside = self.align(inside, type_of(part).shape, shape)
            found = inside if found is None else infix("&", found, inside)
        return found

    def load(self, load: tile.Load, frame: tuple[str, ...], matrix: str) -> Code:
        """A load; what lies outside the limits reads as its fill."""
        base, offsets = self.pointers(load.tensor, load.index, frame, matrix)
        pointer = add([base, *offsets])
        mask = self.mask(load.index, load.limits, frame, matrix)
        if mask is None:
            return call("gl.load", pointer)
        fill = number(load.fill if load.tensor.dtype in _WHOLE else float(load.fill))
        return call("gl.load", pointer, keyword("mask", mask), keyword("other", fill))

    # -- arithmetic

    def _op(self, expr: Op, frame: tuple[str, ...], matrix: str) -> Code:
        fn = expr.fn
        codes = [self._operand(arg, expr, frame, matrix) for arg in expr.args]
        if fn in _INFIX:
            return infix(_INFIX[fn], *codes)
        match fn:
            case "//" | "%":
                if all(self._is_natural(arg) for arg in expr.args):
                    return infix(fn, *codes)
                return self._function("floor_div" if fn == "//" else "floor_mod", codes)
            case "neg":
                return prefix("-", codes[0])
            case "apart":
                return infix("+", infix("-", *codes[:2]), codes[2])
            case "not":
                return prefix("~", codes[0])
            case "relu":
                return call("gl.maximum", codes[0], number(0.0))
            case "**" if isinstance(expr.args[1], Number) and expr.args[1].value == 2:
                return self._function("square", codes[:1])
        return self._function("power" if fn == "**" else fn, codes)

    def _function(self, fn: str, codes: list[Code]) -> Code:
        if fn in _CALLS:
            return call(_CALLS[fn], *codes)
        if fn not in triton_helpers.NAMES:
            raise TypeError(f"no function {fn} in Gluon")
        self.helpers.add(fn)
        return call(fn, *codes)

    def _operand(self, arg: Expr, expr: Op, frame: tuple[str, ...], matrix: str) -> Code:
        real = expr.dtype in ("f32", "f64")
        if isinstance(arg, Number):
            return number(float(arg.value) if real else arg.value)
        of = type_of(arg)
        to_real = of.dtype == "io" or (real and of.dtype in ("i32", "i64"))
        code = self.cast(arg, "f32", frame, matrix) if to_real else self.code(arg, frame, matrix)
        return self.align(code, of.shape, expr.shape)

    def _is_natural(self, expr: Expr) -> bool:
        """Whether an integer is known to be at least 0."""
        match expr:
            case Number(value, _):
                return value >= 0
            case Ref(name, _):
                known = self.lets.get(name)
                return name in self.names.natural or (known is not None and self._is_natural(known))
            case Op("+" | "*" | "//" | "%" | "cdiv" | "minimum" | "maximum", args, _, _):
                return all(self._is_natural(arg) for arg in args)
        return isinstance(expr, tile.Arange)

"""What a call must look like: shapes and dtypes of q, k, v and the declared inputs.

Works on tuples and names, so that the oracle and every runtime check alike, before any launch.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from gnomon.dsl.errors import InputError
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    Apply,
    Builtin,
    Constant,
    Decay,
    Diagonal,
    Dot,
    Expr,
    Input,
    Node,
    Outer,
    PrefixSum,
    Rotation,
    Variant,
    Width,
    walk,
)

FLOATS = ("bfloat16", "float16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
WIDE = ("float32", "float64")
VALUE = Input("v", "column", "KVHead", (Width.of("d_v"),), "real")

Axes = tuple[str | Width, ...]


def check_call(
    variant: Variant,
    shapes: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, str] | None = None,
    *,
    packed: bool = False,
) -> dict[str, int]:
    """The sizes of a call: batch, time_q, time_k, Head, KVHead, d, d_v and every other width.

    `shapes` has q [batch, time_q, Head, d], k [batch, time_k, KVHead, d], v [batch, time_k,
    KVHead, d_v] and each declared input; `dtypes` their names as in "float32". InputError names
    the argument, what was expected and what came.
    """
    inputs = call_inputs(variant)
    _check_names(variant, inputs, shapes)
    sizes: dict[str, int] = {}
    for item in inputs:
        _fit(item, tuple(shapes[item.name]), sizes)
        if item.name == "k":
            _check_heads(sizes)
    _check_times(inputs, sizes, packed)
    _check_widths(variant, sizes)
    if dtypes is not None:
        _check_dtypes(variant, inputs, dtypes)
    return sizes


def call_inputs(variant: Variant) -> tuple[Input, ...]:
    """q, k, v and the declared inputs, in the order of the call."""
    named = {item.name: item for item in variant.inputs}
    rest = (item for item in variant.inputs if item.name not in ("q", "k"))
    return (named["q"], named["k"], VALUE, *rest)


def axes_of(item: Input) -> Axes:
    """The axes of the tensor: batch and time, heads, and what the annotation says."""
    time: dict[str, Axes] = {
        "constant": (),
        "row": ("batch", "time_q"),
        "column": ("batch", "time_k"),
        "token": ("batch", "time_k"),
    }
    heads: Axes = (item.heads,) if item.heads else ()
    return (*time[item.place], *heads, *item.axes)


def coordinates(variant: Variant) -> tuple[str | None, ...]:
    """The positions that a variant reads: None for the plain one, else names such as "y"."""
    found = {
        node.of: None
        for node in walk(variant)
        if isinstance(node, Builtin) and node.which == "position"
    }
    # a constant transport or decay is raised to the power of the distance
    plain = any(
        (isinstance(node, Decay) and kind(node.x).place == "constant")
        or (
            isinstance(node, Dot)
            and node.through is not None
            and kind(node.through).place == "constant"
        )
        for node in walk(variant)
    )
    if plain:
        found[None] = None
    return tuple(of for of in found if of is None or isinstance(of, str))


def needs_ordered_positions(variant: Variant) -> bool:
    """Whether the formula takes a real power, a root or a logarithm of a distance.

    Positions given by the user must then not decrease inside a sequence.
    """

    def looks_back(node: Node) -> bool:
        if not isinstance(node, Apply) or kind(node).place != "pair":
            return False
        if node.fn not in ("**", "log", "sqrt", "rsqrt"):
            return False
        power = node.args[1] if node.fn == "**" else None
        if isinstance(power, Constant) and isinstance(power.value, int):
            return False
        below = walk(node.args[0])
        return any(isinstance(n, Builtin) and n.which == "position" for n in below)

    return any(looks_back(node) for node in walk(variant))


def summed_inputs(variant: Variant) -> frozenset[str]:
    """The token inputs that are added up along the sequence or step a transport: kept in fp32.

    The vectors of an outer product may have 16 bits, where their length is in its scale too.
    """
    found: set[str] = set()

    def tokens(*roots: Expr) -> set[str]:
        read = (n for x in roots for n in walk(x))
        return {n.name for n in read if isinstance(n, Input) and n.place == "token"}

    for node in walk(variant):
        match node:
            case Decay() | PrefixSum():
                found |= tokens(node.x)
            case Diagonal():
                found |= tokens(node.log)
            case Outer():
                found |= tokens(node.scale) - tokens(node.w, node.u)
            case Dot(through=Expr() as through):
                for inner in walk(through):
                    if isinstance(inner, Rotation):
                        found |= tokens(inner.angle)
            case _:
                pass
    return frozenset(found)


def _check_names(
    variant: Variant, inputs: tuple[Input, ...], shapes: Mapping[str, Sequence[int]]
) -> None:
    wanted = [item.name for item in inputs]
    missing = [name for name in wanted if name not in shapes]
    extra = [name for name in shapes if name not in wanted]
    if missing or extra:
        raise InputError(
            ", ".join(missing or extra),
            f"the inputs {', '.join(wanted)} of {variant.name}",
            ", ".join(shapes) or "none",
        )


def _fit(item: Input, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Learn the sizes that this tensor fixes, and check those that are known."""
    axes = axes_of(item)
    right = len(axes) == len(shape) and all(
        _fit_axis(axis, size, sizes) for axis, size in zip(axes, shape, strict=True)
    )
    if not right:
        wanted = ", ".join(_axis_text(axis, sizes) for axis in axes)
        raise InputError(
            item.name, f"the shape [{wanted}]", f"{list(shape)}", _hint(item, shape, sizes)
        )


def _fit_axis(axis: str | Width, size: int, sizes: dict[str, int]) -> bool:
    width = axis if isinstance(axis, Width) else Width.of(axis)
    unknown = [(symbol, n) for symbol, n in width.parts if symbol not in sizes and symbol != "1"]
    if not unknown:
        return _known(width, sizes) == size
    (symbol, count), rest = unknown[0], size - _rest(width, sizes, unknown[0][0])
    learned = rest / count
    if len(unknown) > 1 or learned.denominator != 1 or learned < 0:
        return False
    sizes[symbol] = int(learned)
    return True


def _rest(width: Width, sizes: dict[str, int], without: str) -> Fraction:
    known = (n * sizes.get(s, 1) for s, n in width.parts if s != without)
    return sum(known, Fraction(0))


def _known(width: Width, sizes: dict[str, int]) -> Fraction:
    return _rest(width, sizes, "")


def _axis_text(axis: str | Width, sizes: dict[str, int]) -> str:
    width = axis if isinstance(axis, Width) else Width.of(axis)
    if str(width).isdigit():
        return str(width)
    known = all(symbol in sizes or symbol == "1" for symbol, _ in width.parts)
    return f"{axis} {_known(width, sizes)}" if known else f"{axis} (any)"


def _hint(item: Input, shape: tuple[int, ...], sizes: dict[str, int]) -> str:
    if item.place == "token" and len(shape) > 1 and shape[1] != sizes["time_k"]:
        return "a token input has one row for every key; the last time_q belong to the queries"
    return ""


def _check_heads(sizes: dict[str, int]) -> None:
    heads, groups = sizes["Head"], sizes["KVHead"]
    if groups < 1 or heads % groups:
        raise InputError("k", f"a number of heads that divides the {heads} of q", f"{groups}")


def _check_times(inputs: tuple[Input, ...], sizes: dict[str, int], packed: bool) -> None:
    if packed and sizes["batch"] != 1:
        raise InputError("q", "batch 1 with packed sequences", f"{sizes['batch']}")
    tokens = [item.name for item in inputs if item.place == "token"]
    if tokens and not packed and sizes["time_q"] > sizes["time_k"]:
        raise too_many_queries(tokens, sizes)


def too_many_queries(tokens: Sequence[str], sizes: Mapping[str, int]) -> InputError:
    """What a call with token inputs and more queries than keys reads."""
    return InputError(
        "q",
        f"at most time_k = {sizes['time_k']} queries beside {', '.join(tokens)}",
        f"{sizes['time_q']}",
        "a token input has one row for every key; the last time_q belong to the queries",
    )


def _check_widths(variant: Variant, sizes: dict[str, int]) -> None:
    """Every width inside the formula is a whole number of channels."""
    widths = [width for node in walk(variant.output) for width in _widths(node)]
    for width in dict.fromkeys(widths):
        unknown = [symbol for symbol, _ in width.parts if symbol not in sizes and symbol != "1"]
        if unknown:
            raise InputError(variant.name, f"an input that says how wide {unknown[0]} is", "none")
        if _known(width, sizes).denominator != 1:
            known = ", ".join(f"{symbol} = {sizes[symbol]}" for symbol, _ in width.parts)
            raise InputError("q", f"{width} to be a whole number of channels", known)


def _widths(node: Node) -> tuple[Width, ...]:
    if not isinstance(node, Expr):
        return ()
    of = (node.of,) if isinstance(node, Builtin) and isinstance(node.of, Width) else ()
    return (*kind(node).axes, *of)


def _check_dtypes(variant: Variant, inputs: tuple[Input, ...], dtypes: Mapping[str, str]) -> None:
    summed = summed_inputs(variant)
    for item in inputs:
        got = dtypes[item.name]
        wanted = INTEGERS if item.element == "int" else FLOATS
        if got not in wanted:
            raise InputError(item.name, f"one of {', '.join(wanted)}", got)
        if item.name in summed and got not in WIDE:
            raise InputError(
                item.name,
                "float32, because it is summed along the sequence",
                got,
                f"pass {item.name}.float()",
            )
    for name in ("k", "v"):
        if dtypes[name] != dtypes["q"]:
            raise InputError(name, f"the dtype of q, {dtypes['q']}", dtypes[name])

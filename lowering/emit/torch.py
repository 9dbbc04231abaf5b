"""Score IR without pairs -> torch code: the prologue and the epilogue of a generated module.

    values = Values(variant)
    values.value(expr)       a `Value`: text with its axes and dtype; shared parts get own lines
    values.lines             those lines, in order
    values.needs             names that the function around it defines: position, rows, head, d
    values.helpers           functions that the module must have: rotate_half, prefix_sum, ...

Numbers without a tensor stay Python numbers. Angles and sums along the sequence are float64,
everything else is float32; a value that is q or k, or slices and joins them, keeps its dtype.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    Apply,
    At,
    Builtin,
    Concat,
    Constant,
    Contract,
    Diagonal,
    Expr,
    Heads,
    Input,
    Lookup,
    Mask,
    MatrixExp,
    Outer,
    PrefixSum,
    Slice,
    Sum,
    Variant,
    Width,
    walk,
)
from gnomon.lowering.core import Output
from gnomon.lowering.emit import torch_library
from gnomon.lowering.emit import torch_maps as maps
from gnomon.lowering.emit import torch_pointwise as pointwise
from gnomon.lowering.emit.signature_text import Signature, symbol_name
from gnomon.lowering.emit.text import ATOM, Code, atom, call, grouped, infix, literal, statement
from gnomon.lowering.emit.torch_names import MODULE_NAMES, name_of
from gnomon.lowering.emit.torch_text import (
    PLACES,
    DType,
    Place,
    Value,
    method,
    subscript,
    width_text,
)

LIMIT = 76
"""A longer expression is taken apart into named ones."""

SHORT = 16
"""A shorter number is written where it is used."""


@dataclass(frozen=True, slots=True)
class Context:
    """How a value is wanted: in float64, read at the query, under which conditions it counts."""

    exact: bool = False
    at_row: bool = False
    guards: tuple[tuple[Value, bool], ...] = ()


@dataclass
class Values:
    """Prints values of one variant; each shared value once."""

    variant: Variant
    shared: Counter[object] = field(default_factory=Counter)
    """How often each value is used, from an earlier run; a first run counts."""
    depth: int = 1
    lines: list[str] = field(default_factory=list)
    needs: dict[str, None] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    rounded_once: Expr | None = None
    """A rotation that takes 16-bit channels and gives them, with fp32 in between."""
    taken: set[str] = field(default_factory=set)
    uses: Counter[object] = field(default_factory=Counter)
    memo: dict[object, Value] = field(default_factory=dict)
    traits: dict[Expr, tuple[bool, bool]] = field(default_factory=dict)
    context: Context = field(default_factory=Context)
    double: bool = False
    """Whether the leaves are float64 already and everything stays so."""

    def __post_init__(self) -> None:
        self.signature = Signature(self.variant)
        self.taken |= {"q", "k", "v", *self.signature.names, *MODULE_NAMES}
        self.taken |= torch_library.NAMES
        self.taken |= {symbol_name(symbol) for symbol in self.signature.symbols}

    # ---- values

    def value(self, node: Expr, **context: object) -> Value:
        """The value of a node; `context` changes how it is wanted."""
        outer = self.context
        self.context = replace(outer, **context)  # type: ignore[arg-type]
        try:
            return self._memoised(node)
        finally:
            self.context = outer

    def _memoised(self, node: Expr) -> Value:
        self.context = self.relevant(node)
        key = (node, self.context)
        self.uses[key] += 1
        if key not in self.memo:
            made = self._visit(node)
            if self.shared[key] > 1 and not isinstance(node, Input | Constant | Builtin):
                made = self.named(node, made)
            self.memo[key] = made
        return self.memo[key]

    def relevant(self, node: Expr) -> Context:
        """What of the context makes a difference to this node."""
        if node not in self.traits:
            below = list(walk(node))
            along = any(isinstance(n, Builtin) and n.which in ("position", "length") for n in below)
            singular = any(isinstance(n, Apply) and n.fn in pointwise.SINGULAR for n in below)
            self.traits[node] = along, singular
        along, singular = self.traits[node]
        guards = self.context.guards if singular else ()
        return replace(self.context, at_row=self.context.at_row and along, guards=guards)

    def named(self, node: Expr, value: Value) -> Value:
        """A value that is used again, under a name if that makes it shorter."""
        short = value.is_number and len(value.code.text) < SHORT
        return value if short or value.is_atomic else self.bind(self.name(node), value)

    def name(self, node: Expr) -> str:
        """A name for the value of a node in this context."""
        name = name_of(node)
        return f"{name}_q" if self.context.at_row and not name.endswith("_q") else name

    def free(self, name: str) -> str:
        """The name, or the next one that is not taken."""
        candidate, number = name, 2
        while candidate in self.taken:
            candidate, number = f"{name}_{number}", number + 1
        self.taken.add(candidate)
        return candidate

    def bind(self, name: str, value: Value) -> Value:
        """The value under a name of its own."""
        name = self.free(name)
        self.lines += statement(f"{name} = ", value.code, self.depth)
        return value.with_code(atom(name))

    def need(self, name: str) -> Code:
        """A name that the function around this code defines."""
        self.needs[name] = None
        return atom(name)

    def helper(self, name: str) -> str:
        """A function that the module defines."""
        self.helpers.add(name)
        return name

    def fit(
        self,
        nodes: Sequence[Expr],
        values: Iterable[Value],
        build: Callable[[list[Value]], Code],
        chained: int = 0,
    ) -> Code:
        """The code built of values; where it grows too long its longest part gets a name.

        A sum (of the level `chained`) of three terms goes on growing, by a line a term.
        """
        parts = list(values)
        code = build(parts)
        while len(code.text) > LIMIT:
            lengths = [len(x.code.text) * (not _goes_on(x.code, chained)) for x in parts]
            longest = lengths.index(max(lengths))
            enough = LIMIT if 0 in lengths else LIMIT // 3
            if lengths[longest] < enough or parts[longest].is_atomic:
                break
            parts[longest] = self.bind(self.name(nodes[longest]), parts[longest])
            code = build(parts)
        return code

    def _visit(self, node: Expr) -> Value:
        match node:
            case Input():
                return self.input(node)
            case Constant(number):
                sign = number < 0
                code = Code(literal(number), 12) if sign else atom(literal(number))
                return Value(code, "int" if isinstance(number, int) else "float")
            case Builtin():
                return self.builtin(node)
            case Apply(fn="transpose"):
                (x,) = node.args
                inner = self.value(x)
                return inner.with_code(atom(f"{grouped(inner.code, ATOM)}.mT"))
            case Apply():
                return pointwise.applied(self, node)
            case At(x, place):
                return self.at_row(x) if place == "row" else self.value(x)
            case PrefixSum():
                return self.prefix_sum(node)
            case Output(k):
                return Value(atom(self.output_name(k)), "io", "row", "Head", 1, batched=True)
        return self._map(node)

    def _map(self, node: Expr) -> Value:
        match node:
            case Slice():
                return maps.cut(self, node)
            case Concat():
                return maps.joined(self, node)
            case Sum(x):
                return maps.channel_sum(self, x)
            case Contract():
                return maps.product(self, node)
            case Lookup():
                return maps.entry(self, node)
            case Diagonal() | Outer() | MatrixExp():
                return maps.matrix(self, node)
        raise UnsupportedError(
            f"{self.variant.name}: {type(node).__name__} has no value of one token",
            "it stands in the formula of the pair only",
            where=node.where,
            stage="print_torch",
        )

    # ---- leaves

    def input(self, node: Input) -> Value:
        """A tensor of the call."""
        place = PLACES[node.place]
        code = atom(node.name)
        if place != "constant" and node.heads is None:
            code = subscript(code, ":, :, None")
        dtype: DType = "i64" if node.element == "int" else "io"
        value = Value(code, dtype, place, node.heads, len(node.axes), place != "constant")
        return self.doubled(value)

    def doubled(self, value: Value) -> Value:
        """A leaf as float64 where it is wanted exactly."""
        if self.double:
            return replace(value, dtype="f64")
        if self.context.exact:
            return value.with_code(method(value.code, "double"), "f64")
        return value

    def builtin(self, node: Builtin) -> Value:
        """What the call knows."""
        match node.which, node.of:
            case "position", of:
                name = "position" if of is None else f"position_{of}"
                return self.along_time(name)
            case "length", _:
                return self.along_time("length")
            case "head", _:
                return self.doubled(Value(self.need("head"), "i64", heads="Head"))
            case "head_count", _:
                return Value(self.need("H"), "int")
            case "dim", Width() as width:
                return Value(self.width(width), "int")
            case "channel" | "plane", Width():
                size = self.width(kind(node).axes[0])
                count = self.bind(node.which, Value(self.arange(size), "i64", axes=1))
                return replace(count, dtype="f64") if self.wants_double else count
            case "visible_count", Mask() as mask:
                return maps.visible_count(self, mask)
        raise TypeError(f"no builtin {node.which!r}")

    @property
    def wants_double(self) -> bool:
        """Whether numbers are float64 here."""
        return self.double or self.context.exact

    def arange(self, size: Code) -> Code:
        """0, 1, ..., size - 1 on the device of q."""
        options = [Code("dtype=torch.float64")] if self.wants_double else []
        return call("torch.arange", size, *options, Code("device=q.device"))

    def along_time(self, name: str) -> Value:
        """A value that every token has, given or not: its position, the length of its sequence."""
        place: Place = "row" if self.context.at_row else "token"
        code = self.need(f"{name}_q" if place == "row" else name)
        return self.doubled(Value(code, "i64", place, batched=name not in ("position", "length")))

    def output_name(self, k: int) -> str:
        """The result of attention k."""
        return "o" if k == 0 and not self.has_several_outputs else f"o_{k + 1}"

    has_several_outputs: bool = False

    def width(self, width: Width) -> Code:
        """A width as a number of the call."""
        return width_text(width, lambda symbol: self.need(symbol_name(symbol)).text)

    # ---- reading along the sequence

    def at_row(self, x: Expr) -> Value:
        """A token value read at the query: the last time_q tokens of its sequence."""
        reads_tokens = any(
            isinstance(n, PrefixSum) or (isinstance(n, Input) and n.place in ("token", "column"))
            for n in walk(x)
        )
        if not reads_tokens:
            # positions of queries need no token, and there may be more queries than keys
            return self.value(x, at_row=True)
        return self.read_rows(self.value(x))

    def read_rows(self, value: Value) -> Value:
        """The rows of the queries."""
        if value.place != "token":
            return value
        rows, shared = self.need("rows"), ":, :, None]"
        text = value.code.text
        if text.endswith(shared):  # one index, not two
            code = atom(f"{text.removesuffix(shared)}:, {rows}, None]")
        else:
            code = subscript(value.code, f":, {rows}")
        return replace(value, code=code, place="row")

    def prefix_sum(self, node: PrefixSum) -> Value:
        """The running sum, restarted in each sequence, in float64."""
        x = self.value(node.x, exact=True, guards=())
        code = call(self.helper("prefix_sum"), x.code, self.need("starts"))
        if not node.inclusive:
            code = infix("-", code, x.code)
        return self.rounded(x.with_code(code, "f64"))

    def rounded(self, value: Value) -> Value:
        """A float64 value as float32, unless it is wanted exactly."""
        if self.wants_double or value.dtype != "f64":
            return value
        return value.with_code(method(value.code, "float"), "f32")

    def guard(self, value: Value, fn: str) -> Value:
        """A value that is harmless wherever it is not chosen."""
        return pointwise.guarded(self, value, fn)

    def widened(self, value: Value) -> Value:
        """A caller's tensor in float32 before any arithmetic."""
        if value.dtype != "io":
            return value
        return value.with_code(method(value.code, "float"), "f32")

    # ---- joining

    def level(self, values: Sequence[Value]) -> list[Value]:
        """Values of one head axis and one place."""
        heads = finest(value.heads for value in values)
        values = [self.repeated(value) if heads == "Head" else value for value in values]
        if any(value.place == "row" for value in values):
            values = [self.read_rows(value) for value in values]
        return list(values)

    def repeated(self, value: Value) -> Value:
        """A value per key head, for each query head."""
        if value.heads != "KVHead":
            return value
        if len(value.code.text) > LIMIT // 2:
            value = self.bind("per_kv_head", value)
        axis = atom(str(-1 - value.axes))
        return replace(
            value, code=method(value.code, "repeat_interleave", self.need("G"), axis), heads="Head"
        )

    def like(self, values: Sequence[Value], code: Code, dtype: DType) -> Value:
        """The value of a pointwise function of levelled values."""
        places: list[Place] = [v.place for v in values if v.place != "constant"]
        return Value(
            code,
            dtype,
            places[0] if places else "constant",
            finest(value.heads for value in values),
            max(value.axes for value in values),
            any(value.batched for value in values),
        )


def finest(heads: Iterable[Heads]) -> Heads:
    """Shared < KVHead < Head."""
    found = set(heads)
    return "Head" if "Head" in found else "KVHead" if "KVHead" in found else None


def _goes_on(code: Code, chained: int) -> bool:
    return code.level == chained and len(code.chain) > 2

"""Torch code for what acts on the channels of a token, for tables, and for counting keys.

x @ rotation(a)         rotate_half(x, a) or rotate_pairs(x, a)
x @ m                   einsum over one axis of x and the rows of m
x @ blocks              each block acts on its own channels
lookup(table, n)        table[head, n], or take_along_dim where each token has a table of its own
visible_count(mask)     interval arithmetic, O(time): min of the ends less max of the starts
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    Apply,
    Concat,
    Constant,
    Contract,
    Diagonal,
    Expr,
    Heads,
    Lookup,
    Mask,
    MatrixExp,
    Outer,
    Rotation,
    Slice,
)
from gnomon.lowering.emit.text import ATOM, Code, atom, call, grouped, infix, prefix
from gnomon.lowering.emit.torch_names import name_of
from gnomon.lowering.emit.torch_text import DType, Value, lifted, method, span, subscript

if TYPE_CHECKING:
    from gnomon.lowering.emit.torch import Values


def cut(values: "Values", node: Slice) -> Value:
    """Channels [start, stop)."""
    x = values.value(node.x)
    start = str(values.width(node.start)) if node.start.parts else ""
    stop = "" if node.stop == kind(node.x).axes[-1] else str(values.width(node.stop))
    return x.with_code(subscript(x.code, f"..., {span(start, stop)}"))


def joined(values: "Values", node: Concat) -> Value:
    """Channels one after another."""
    parts = [values.value(part) for part in node.parts]
    if any(part.dtype != parts[0].dtype for part in parts):
        parts = [values.widened(part) for part in parts]
    parts = values.level(parts)
    alike = all(
        (part.place, part.heads, part.batched) == (parts[0].place, parts[0].heads, parts[0].batched)
        for part in parts
    )

    def build(pieces: list[Value]) -> Code:
        codes = [piece.code for piece in pieces]
        if not alike:
            return call(values.helper("concat"), *codes)
        inner = ", ".join(map(str, codes))
        return call("torch.cat", Code(f"({inner})", items=tuple(codes)), atom("-1"))

    return values.like(parts, values.fit(node.parts, parts, build), parts[0].dtype)


def channel_sum(values: "Values", x: Expr) -> Value:
    """The sum over the channels."""
    inner = values.widened(values.value(x))
    return replace(inner, code=method(inner.code, "sum", atom("-1")), axes=0)


def product(values: "Values", node: Contract) -> Value:
    """The vector x times the matrix m, or two matrices."""
    match node.m:
        case Rotation(angle, layout):
            return _rotated(values, node, angle, layout)
        case Diagonal(log) if kind(log).axes:
            return values.value(Apply("*", (node.x, Apply("exp", (log,)))))
        case Apply("transpose", (m,)):
            return _einsum(values, node, m, "ji")
    if len(kind(node.m).axes) == 3:
        return _blocks(values, node)
    return _einsum(values, node, node.m, "ij")


def _rotated(values: "Values", node: Contract, angle: Expr, layout: str) -> Value:
    x = values.value(node.x)
    x = x if node is values.rounded_once else values.widened(x)
    turn = values.value(angle, exact=True)
    x, turn = values.level([x, turn])
    name = values.helper(f"rotate_{layout}")
    code = values.fit((node.x, angle), (x, turn), lambda p: call(name, p[0].code, p[1].code))
    return values.like([x, turn], code, x.dtype)


def _blocks(values: "Values", node: Contract) -> Value:
    x, m = values.level([values.widened(values.value(y)) for y in (node.x, node.m)])
    name = values.helper("times_blocks")
    code = values.fit((node.x, node.m), (x, m), lambda p: call(name, p[0].code, p[1].code))
    return replace(values.like([x, m], code, x.dtype), axes=x.axes)


def _einsum(values: "Values", node: Contract, matrix: Expr, letters: str) -> Value:
    x, m = values.level([values.widened(values.value(y)) for y in (node.x, matrix)])
    rows = "i" if x.axes == 1 else "ki"
    result = replace(values.like([x, m], x.code, x.dtype), axes=x.axes)
    left, right, out = _lead(x) + rows, _lead(m) + letters, _lead(result) + rows[:-1] + "j"
    equation = atom(f'"{left},{right}->{out}"')

    def build(parts: list[Value]) -> Code:
        if right in ("ij", "ji"):
            tail = ".mT" if right == "ji" else ""
            return infix("@", parts[0].code, Code(f"{grouped(parts[1].code, ATOM)}{tail}"))
        return call("torch.einsum", equation, parts[0].code, parts[1].code)

    return result.with_code(values.fit((node.x, matrix), (x, m), build))


def _lead(value: Value) -> str:
    """The letters of the axes before the channels."""
    time = {"constant": "", "row": "bt", "token": "bt", "pair": "bij"}[value.place]
    return time + ("h" if value.place != "constant" or value.heads is not None else "")


def matrix(values: "Values", node: Expr) -> Value:
    """A matrix, written out."""
    match node:
        case Diagonal(log, width):
            scale = values.widened(values.value(log))
            if kind(log).axes:
                inside = scale.code if scale.is_number else method(scale.code, "exp")
                return replace(scale, code=call("torch.diag_embed", inside), axes=2)
            if not isinstance(log, Constant) or log.value:
                break_ = "a scalar on the diagonal"
                raise _unsupported(values, node, break_)
            dtype: DType = "f64" if values.wants_double else "f32"
            options = [Code("dtype=torch.float64")] if values.wants_double else []
            size = values.width(width)
            return Value(call("torch.eye", size, *options, Code("device=q.device")), dtype, axes=2)
        case Outer(w, u, scale_node):
            w_value, u_value = (values.widened(values.value(x)) for x in (w, u))
            parts = values.level([values.widened(values.value(scale_node)), w_value, u_value])
            column, row = (
                subscript(parts[1].code, "..., :, None"),
                subscript(parts[2].code, "..., None, :"),
            )
            code = infix("*", column, row)
            if not (isinstance(scale_node, Constant) and scale_node.value == 1):
                code = infix("*", infix("*", lifted(parts[0], 2), column), row)
            return replace(values.like(parts, code, parts[1].dtype), axes=2)
        case MatrixExp(x):
            inner = values.value(x, exact=True)
            if not inner.is_atomic:
                inner = values.bind("generator", inner)
            # torch's exponential cannot read all strides
            packed = method(inner.code, "contiguous")
            turn = inner.with_code(call("torch.linalg.matrix_exp", packed), "f64")
            return values.bind(values.name(node), values.rounded(turn))
    raise _unsupported(values, node, "this matrix")


def _unsupported(values: "Values", node: Expr, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{values.variant.name}: {what} has no torch code",
        "the oracle gnomon.dsl.reference evaluates it",
        where=node.where,
        stage="print_torch",
    )


# ---- tables


def entry(values: "Values", node: Lookup) -> Value:
    """Entry `index` of a table."""
    table = values.value(node.table)
    if not table.is_atomic:
        table = values.bind("table", table)
    index = [values.value(part, guards=()) for part in node.index]
    heads = values.level([replace(table, axes=0), *(replace(part, axes=0) for part in index)])
    if table.heads == "KVHead" and heads[0].heads == "Head":
        table = values.repeated(table)
    rest = table.axes - len(index)
    name = f"{name_of(node.table)}_index"
    indices = [clamped(values, part, table, axis, name) for axis, part in enumerate(index)]
    result = replace(values.like([table, *index], table.code, table.dtype), axes=rest)
    if table.place != "constant":
        return result.with_code(_own_table(values, node, table, index, indices))
    if all(part.is_number or (part.place == "constant" and part.heads is None) for part in index):
        return result.with_code(
            subscript(table.code, ", ".join(["...", *map(str, indices), *[":"] * rest]))
        )
    names = [str(whole_head(values, table.heads))] if table.heads else []
    return result.with_code(subscript(table.code, ", ".join([*names, *map(str, indices)])))


def clamped(values: "Values", index: Value, table: Value, axis: int, name: str) -> Code:
    """An index inside the table, as an integer."""
    size = Code(f"{grouped(table.code, ATOM)}.shape[{axis - table.axes}] - 1", 10)
    if index.is_number:
        return call("min", index.code, size)
    if not index.is_atomic:
        index = values.bind("index", index)
    code = method(method(index.code, "long"), "clamp", atom("0"), size)
    return values.bind(name, Value(code, "i64")).code


def whole_head(values: "Values", heads: Heads = "Head") -> Code:
    """0, 1, ... on the head axis, as integers."""
    return values.need("each_head" if heads == "Head" else "each_kv_head")


def _own_table(
    values: "Values", node: Lookup, table: Value, index: Sequence[Value], clamped: Sequence[Code]
) -> Code:
    """A table of each token: one axis of entries."""
    if len(index) != 1 or table.axes != 1:
        raise _unsupported(values, node, "a table of matrices per token")
    if index[0].is_number:
        return subscript(table.code, f"..., {clamped[0]}")
    chosen = call(
        "torch.take_along_dim",
        table.code,
        lifted(replace(index[0], code=clamped[0]), 1),
        atom("-1"),
    )
    return subscript(chosen, "..., 0")


# ---- counting visible keys


def visible_count(values: "Values", mask: Mask) -> Value:
    """How many keys each query sees: a sum over conjunctions, each one an interval of keys.

    At least 1: a row without keys gives 0 whatever it counts, and its logarithm must be finite.
    """
    total: Code | None = None
    for sign, rules in _conjunctions(mask):
        count = _count(values, rules)
        total = count if total is None else infix(sign, total, count)
    assert total is not None
    seen = method(total, "clamp", atom("min=1"))
    return values.doubled(Value(seen, "i64", "row"))


def _conjunctions(mask: Mask) -> list[tuple[str, tuple[Mask, ...]]]:
    """|A or B| = |A| + |B| - |A and B|, until only conjunctions are left."""
    if mask.rule == "or":
        a, b = (_conjunctions(cast(Mask, x)) for x in mask.operands)
        return a + b + _both(a, b, negative=True)
    if mask.rule == "and":
        a, b = (_conjunctions(cast(Mask, x)) for x in mask.operands)
        return _both(a, b, negative=False)
    return [("+", (mask,))]


def _both(
    a: list[tuple[str, tuple[Mask, ...]]], b: list[tuple[str, tuple[Mask, ...]]], *, negative: bool
) -> list[tuple[str, tuple[Mask, ...]]]:
    made = []
    for sign_a, rules_a in a:
        for sign_b, rules_b in b:
            minus = (sign_a == "-") ^ (sign_b == "-") ^ negative
            made.append(("-" if minus else "+", tuple(dict.fromkeys((*rules_a, *rules_b)))))
    return made


def _count(values: "Values", rules: Sequence[Mask]) -> Code:
    """The keys of one interval: from the largest start to the smallest end."""
    starts: list[Code] = []
    ends: list[Code] = [values.need("length_q")]
    ids: Expr | None = None
    index = values.need("index_q")
    for rule in rules:
        match rule.rule, rule.operands:
            case "causal", operands:
                strict = bool(operands and operands[0])
                ends.append(index if strict else infix("+", index, atom("1")))
            case "window", (int() as size, *_):
                starts.append(infix("-", index, atom(str(size - 1))))
                ends.append(infix("+", index, atom(str(size))))
            case "first_keys", (int() as count, *_):
                ends.append(atom(str(count)))
            case "everything" | "negligible", _:
                pass
            case "same_document", (Expr() as documents, *_):
                ids = documents
            case _:
                raise _unsupported(values, rules_node(rule), f"counting the keys of {rule.rule}")
    low, high = _largest(starts), _smallest(ends)
    if ids is not None:
        return _count_documents(values, ids, low, high)
    width = high if low is None else infix("-", high, low)
    return method(width, "clamp", Code("min=0"))


def rules_node(mask: Mask) -> Expr:
    """A value at the place of a mask, for an error's line."""
    return Constant(0, where=mask.where)


def _largest(starts: Sequence[Code]) -> Code | None:
    """The largest start, at least 0."""
    if not starts:
        return None
    low = starts[0]
    for other in starts[1:]:
        low = call("torch.maximum", low, other)
    return method(low, "clamp", Code("min=0"))


def _smallest(ends: Sequence[Code]) -> Code:
    high = ends[0]
    for other in ends[1:]:
        if str(other).isdigit():
            high = method(high, "clamp", Code(f"max={other}"))
        else:
            high = call("torch.minimum", high, other)
    return high


def _count_documents(values: "Values", ids: Expr, low: Code | None, high: Code) -> Code:
    column, row = values.value(ids), values.at_row(ids)
    if column.heads is not None or column.axes:
        raise _unsupported(values, ids, "counting the keys of documents that differ by head")
    name = values.helper("count_documents")
    start = low if low is not None else atom("0")
    return call(name, row.code, column.code, values.need("origin_q"), start, high)


__all__ = ["channel_sum", "cut", "entry", "joined", "matrix", "prefix", "product", "visible_count"]

"""The text of every stage: programs in normal form and tile programs, stable."""

from gnomon.dsl.nodes import (
    Apply,
    Constant,
    Expr,
    Lookup,
    Mask,
    Node,
    Sum,
    Variant,
)
from gnomon.dsl.show import text as variant_text
from gnomon.lowering import tile
from gnomon.lowering.core import (
    Anchored,
    Attention,
    Given,
    Index,
    Output,
    PairDot,
    Program,
    Read,
)
from gnomon.lowering.tile import Kernel, Stmt

_INFIX = frozenset(
    ("+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "and", "or")
)
_SIDE = {"row": "i", "column": "j"}


def stage_text(left: Variant | Program | tuple[Kernel, ...]) -> str:
    """What a pass left: a variant, a program, or kernels."""
    if isinstance(left, Variant):
        return variant_text(left)
    if isinstance(left, Program):
        return program_text(left)
    return "\n\n".join(kernel_text(kernel) for kernel in left)


# ---- programs


def program_text(program: Program) -> str:
    """A program: each attention's streams, formulas and mask, then the output."""
    lines = [f"program {program.variant.name}"]
    for attention in program.attentions:
        lines += ["", *_attention(attention)]
    lines += ["", f"output  {formula_text(program.epilogue)}"]
    return "\n".join(lines)


def _attention(attention: Attention) -> list[str]:
    lines = [f"attention {attention.name}: {attention.normaliser}"]
    for stream in attention.streams:
        heads = {"Head": "head", "KVHead": "kv_head", None: "shared"}[stream.heads]
        axes = "".join(f", {axis}" for axis in stream.axes)
        flag = "" if stream.differentiable else ", no gradient"
        kind = f"{stream.role}, {stream.dtype}, {heads}{axes}{flag}"
        lines.append(f"  {stream.place:<8} {stream.name:<16} {kind}")
    parts = {
        "exponent": attention.exponent,
        "weight": attention.weight,
        "denominator": attention.denominator,
        "row term": attention.row_term,
    }
    for name, formula in parts.items():
        if formula is not None:
            lines.append(f"  {name:<12} {formula_text(formula)}")
    if attention.sink is not None:
        lines.append(f"  {'sink':<12} {attention.sink.name}")
    lines.append(f"  {'mask':<12} {mask_text(attention.mask)}")
    return lines


def formula_text(x: Node) -> str:
    """A pair formula on one line."""
    match x:
        case Lookup(Read(stream), index):
            inner = ", ".join(formula_text(part) for part in index)
            return f"{stream.name}[{inner}]"
        case Sum(inner):
            return f"sum_n({formula_text(inner)})"
        case Apply(fn, (a, b)) if fn in _INFIX:
            return f"({formula_text(a)} {fn} {formula_text(b)})"
        case Apply("neg", (a,)):
            return f"-{formula_text(a)}"
        case Apply(fn, args):
            return f"{fn}({', '.join(formula_text(arg) for arg in args)})"
    return _leaf_text(x)


def _leaf_text(x: Node) -> str:
    match x:
        case Constant(value):
            return str(value)
        case PairDot(row, column):
            return f"{row.name}_i . {column.name}_j"
        case Read(stream) | Anchored(stream, _):
            side = _SIDE.get(stream.place)
            return f"{stream.name}[{side}]" if side else stream.name
        case Index(place):
            return _SIDE[place]
        case Given(name, _):
            return name
        case Output(k):
            return f"o_{k + 1}"
    parts = ", ".join(formula_text(child) for child in x.children())
    return f"{type(x).__name__}({parts})"


def mask_text(mask: Mask) -> str:
    """A mask on one line."""
    if mask.rule in ("and", "or"):
        sign = {"and": " & ", "or": " | "}[mask.rule]
        return (
            "("
            + sign.join(mask_text(part) for part in mask.operands if isinstance(part, Mask))
            + ")"
        )
    inner = ", ".join(formula_text(x) if isinstance(x, Expr) else str(x) for x in mask.operands)
    return f"{mask.rule}({inner})"


# ---- tile programs


def kernel_text(kernel: Kernel) -> str:
    """A tile program: parameters, grid, statements with their types."""
    lines = [f"kernel {kernel.name}: {kernel.doc}"]
    for param in kernel.params:
        match param:
            case tile.Tensor(name, axes, dtype, mode, _):
                lines.append(f"  {mode:<6} {name}: {dtype} [{', '.join(axes)}]")
            case tile.Scalar(name, dtype, _):
                lines.append(f"  scalar {name}: {dtype}")
            case tile.Tunable(name, _):
                lines.append(f"  tune   {name}")
    grid = ", ".join(f"{name} < {expr_text(extent)}" for name, extent in kernel.grid)
    return "\n".join([*lines, f"  grid   {grid}", "", *_body(kernel.body, 1)])


def _body(body: tuple[Stmt, ...], depth: int) -> list[str]:
    lines: list[str] = []
    for stmt in body:
        if isinstance(stmt, tile.Blank):
            lines.append("")
            continue
        lines.append("    " * (depth - 1) + _stmt(stmt))
        if isinstance(stmt, tile.For):
            lines += _body(stmt.body, depth + 1)
    return lines


def _stmt(stmt: Stmt) -> str:
    match stmt:
        case tile.Let(ref, value, _):
            shape = f" [{', '.join(ref.type.shape)}]" if ref.type.shape else ""
            return f"{ref.name}: {ref.type.dtype}{shape} = {expr_text(value)}"
        case tile.Set(ref, value):
            return f"{ref.name} <- {expr_text(value)}"
        case tile.For(index, start, stop, step, _, _):
            return (
                f"for {index.name} in {expr_text(start)} .. {expr_text(stop)} by {expr_text(step)}:"
            )
        case tile.Store(tensor, index, value, limits):
            return f"store {tensor.name}{_at(index, limits)} = {expr_text(value)}"
        case tile.Scatter(tensor, index, entry, value, limits):
            return f"add to {tensor.name}{_at((*index, entry), limits)}: {expr_text(value)}"
        case tile.ExitIf(condition):
            return f"exit if {expr_text(condition)}"
        case tile.Remark(text):
            return f"# {text}"
    raise TypeError(f"no text for {type(stmt).__name__}")


def _at(index: tuple[tile.Expr, ...], limits: tuple[tile.Expr | None, ...]) -> str:
    parts = []
    for place, limit in zip(index, limits, strict=True):
        bound = "" if limit is None else f" < {expr_text(limit)}"
        parts.append(f"{expr_text(place)}{bound}")
    return f"[{', '.join(parts)}]"


def expr_text(expr: tile.Expr) -> str:
    """A tile expression on one line."""
    match expr:
        case tile.Ref(name, _):
            return name
        case tile.Number(value, _):
            return str(value)
        case tile.Op():
            return _op_text(expr)
        case tile.Arange(extent):
            return f"0..{extent}"
        case tile.Full(value, of):
            return f"full({value}, [{', '.join(of.shape)}])"
        case tile.Load(tensor, index, limits, fill):
            other = f" else {fill}" if any(x is not None for x in limits) else ""
            return f"{tensor.name}{_at(index, limits)}{other}"
        case tile.Dot(a, b):
            return f"{expr_text(a)} @ {expr_text(b)}"
        case tile.Reduce(fn, x, axis):
            return f"{fn}_{axis}({expr_text(x)})"
        case tile.Cast(x, dtype):
            return f"{dtype}({expr_text(x)})"
    raise TypeError(f"no text for {type(expr).__name__}")


def _operand_text(expr: tile.Expr) -> str:
    """The text of an operand: what has a fill value stands in brackets, so that its end shows."""
    filled = isinstance(expr, tile.Load) and any(x is not None for x in expr.limits)
    return f"({expr_text(expr)})" if filled else expr_text(expr)


def _op_text(op: tile.Op) -> str:
    args = [_operand_text(arg) for arg in op.args]
    if op.fn == "neg":
        return f"-{args[0]}"
    if op.fn in _INFIX and len(args) == 2:
        return f"({args[0]} {op.fn} {args[1]})"
    return f"{op.fn}({', '.join(args)})"

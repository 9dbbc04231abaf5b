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
    TransportDot,
)
from gnomon.lowering.emit.text import ATOM, LEVELS, Code, atom, call, infix, prefix
from gnomon.lowering.tile import Kernel, Stmt

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
    return str(_formula(x))


def _formula(x: Node) -> Code:
    match x:
        case Lookup(Read(stream), index):
            return atom(f"{stream.name}[{', '.join(formula_text(part) for part in index)}]")
        case Sum(inner):
            return call("sum_n", _formula(inner))
        case Apply(fn, args):
            return _applied(fn, [_formula(arg) for arg in args])
        case PairDot(row, column):
            return Code(f"{row.name}_i . {column.name}_j", LEVELS["*"])
        case TransportDot(row, column, _):
            return Code(f"{row.name}_i . {column.name}_j", LEVELS["*"])
        case Read(stream) | Anchored(stream, _):
            side = _SIDE.get(stream.place)
            return atom(f"{stream.name}[{side}]" if side else stream.name)
    return _leaf(x)


def _leaf(x: Node) -> Code:
    match x:
        case Constant(value):
            return Code(str(value), ATOM if value >= 0 else LEVELS["neg"])
        case Index(place):
            return atom(_SIDE[place])
        case Given(name, _):
            return atom(name)
        case Output(k):
            return atom(f"o_{k + 1}")
    return call(type(x).__name__, *(_formula(child) for child in x.children()))


def _applied(fn: str, args: list[Code]) -> Code:
    if fn in ("neg", "not"):
        return prefix("-" if fn == "neg" else fn, args[0])
    return infix(fn, *args) if fn in LEVELS and len(args) == 2 else call(fn, *args)


def mask_text(mask: Mask) -> str:
    """A mask on one line."""
    return str(_mask(mask))


def _mask(mask: Mask) -> Code:
    match mask:
        case Mask("and" | "or" as rule, (Mask() as a, Mask() as b)):
            return infix("&" if rule == "and" else "|", _mask(a), _mask(b))
        case Mask("causal", (strict,)):
            return atom("causal(strict)" if strict else "causal()")
    inner = (_formula(x) if isinstance(x, Expr) else atom(str(x)) for x in mask.operands)
    return call(mask.rule, *inner)


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
    return str(_expr(expr))


def _expr(expr: tile.Expr) -> Code:
    match expr:
        case tile.Op(fn, args, _, _):
            return _applied(fn, [_expr(arg) for arg in args])
        case tile.Load(tensor, index, limits, fill):
            read = f"{tensor.name}{_at(index, limits)}"
            if all(limit is None for limit in limits):
                return atom(read)
            return Code(f"{read} else {fill}", LEVELS["if"])
        case tile.Dot(a, b, _):
            return infix("@", _expr(a), _expr(b))
        case tile.Relabel(x, shape):
            return call("relabel", atom(x.name), atom(f"[{', '.join(shape)}]"))
        case tile.Reduce(fn, x, axis):
            return call(f"{fn}_{axis}", _expr(x))
        case tile.Cast(x, dtype):
            return call(dtype, _expr(x))
    return _made_of_nothing(expr)


def _made_of_nothing(expr: tile.Expr) -> Code:
    match expr:
        case tile.Ref(name, _):
            return atom(name)
        case tile.Number(value, _):
            return Code(str(value), ATOM if value >= 0 else LEVELS["neg"])
        case tile.Arange(extent):
            return Code(f"0..{extent}", LEVELS["<"])
        case tile.Full(value, of):
            return atom(f"full({value}, [{', '.join(of.shape)}])")
    raise TypeError(f"no text for {type(expr).__name__}")

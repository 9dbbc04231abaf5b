"""What a formula leaves to its words, said in full: end points, scale, masks, normalisers."""

from collections.abc import Iterator

from gnomon.dsl.algebra import Algebra, Factors, is_host
from gnomon.dsl.forms import form
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    ATTENTIONS,
    Apply,
    Builtin,
    Constant,
    Decay,
    Diagonal,
    Dot,
    Expr,
    Input,
    Mask,
    PrefixSum,
    Ratio,
    ScoreScan,
    Softmax,
    StickBreaking,
    Variant,
    WeightedSum,
    walk,
)
from gnomon.dsl.outline import Outline
from gnomon.dsl.spell import Speller


def remarks(outline: Outline) -> list[tuple[str, str]]:
    """(name, remark) for each line of an outline that needs one, in the order of the lines."""
    speller = Speller(outline.names)
    scales = _scales(outline.variant)
    found: list[tuple[str, str]] = []
    for line in outline.lines:
        node = line.node
        said = list(_said(node, speller))
        if node in scales:
            scale = scales[node]
            said.append(
                "scaled by nothing" if scale is None else f"scaled by {_name(scale, speller)}"
            )
        found += [(line.name, text) for text in said]
    return found + list(_positions(outline.variant))


def _name(x: Expr, speller: Speller) -> str:
    return speller.names.get(x) or speller.line(x)


def _said(node: Expr, speller: Speller) -> Iterator[str]:
    match node:
        case Dot():
            yield from _dot(node, speller)
        case Decay(x) if kind(x).place == "constant":
            yield f"{_name(x, speller)} * distance(), the sum of as many steps"
        case Decay(x):
            steps = f"sum of {_name(x, speller)}[s] over s in (j, i]"
            yield f"{steps}: the own step of the query in, of the key out"
        case ScoreScan(_, inclusive):
            start = "[j" if inclusive else "(j"
            yield f"sum over visible keys l in {start}, last visible key of i]"
        case PrefixSum(x, inclusive):
            end = "t]" if inclusive else "t)"
            yield f"sum of {_name(x, speller)}[s] over s in [0, {end}, from 0 in each sequence"
        case Softmax(_, sink, mask):
            below = "sum e^s" if sink is None else f"(e^{_name(sink, speller)} + sum e^s)"
            yield f"e^s / {below} over the visible keys: {mask_text(mask, speller)}"
        case WeightedSum(_, mask):
            yield f"sum of weight[j] * v[j] over the visible keys: {mask_text(mask, speller)}"
        case Ratio(_, _, mask, least):
            yield (
                f"sum of n[j] * v[j] / max(|sum of d[l]|, {least}) over the visible keys: "
                f"{mask_text(mask, speller)}"
            )
        case StickBreaking(_, mask, order):
            nearer = "between j and i" if order == "right_to_left" else "nearer to i than j"
            yield (
                f"sigmoid(s[j]) * product of 1 - sigmoid(s[l]) over visible l {nearer}: "
                f"{mask_text(mask, speller)}"
            )


def _dot(node: Dot, speller: Speller) -> Iterator[str]:
    through, heads = node.through, kind(node.b).heads
    if through is not None:
        step, shape = _name(through, speller), form(through)
        constant = kind(through).place == "constant"
        product = f"{step} ** distance()" if constant else f"{step}[i] @ ... @ {step}[j + 1]"
        yield f"through {product}: s in (j, i], the query's own step first; {shape}"
        if any(isinstance(n, Diagonal) and not _is_zero(n.log) for n in walk(through)):
            yield "contracting if log <= 0"
        heads = "Head" if "Head" in (heads, kind(through).heads) else heads
    if heads == "Head":
        yield "keys expanded to query heads"


def _is_zero(x: Expr) -> bool:
    return isinstance(x, Constant) and x.value == 0


def mask_text(mask: Mask, speller: Speller, outer: Mask | None = None) -> str:
    """Which pairs the mask shows, as a condition on i and j."""

    def value(n: int) -> str:
        x = mask.operands[n]
        return _name(x, speller) if isinstance(x, Expr) else str(x)

    match mask.rule:
        case "and" | "or":
            parts = [mask_text(m, speller, mask) for m in mask.operands if isinstance(m, Mask)]
            joined = f" {mask.rule} ".join(parts)
            return joined if outer is None or outer.rule == mask.rule else f"({joined})"
        case "causal":
            return "j < i" if mask.operands[0] else "j <= i"
        case "window":
            return f"|i - j| < {value(0)}"
        case "first_keys":
            return f"j < {value(0)}"
        case "same_document":
            return f"{value(0)}[i] == {value(0)}[j]"
        case "selected_blocks":
            return f"j // {value(1)} in {value(0)}[i]"
        case "negligible":
            return f"not where {value(0)} keeps a tile below e^{value(1)} of a row"
    return "all pairs"


def _positions(variant: Variant) -> Iterator[tuple[str, str]]:
    names = {n.of for n in walk(variant.output) if isinstance(n, Builtin) and n.which == "position"}
    if names - {None}:
        keys = ", ".join(sorted(str(n) for n in names if n is not None))
        yield "position", f"given by the call for {keys}; masks count in memory order"
    elif names:
        yield "position", "0, 1, 2, ... in each sequence unless given; masks count in memory order"


def _scales(variant: Variant) -> dict[Expr, Expr | None]:
    """What shapes and numbers multiply each dot by, before anything else happens to it."""
    algebra = Algebra(variant.inputs, looks_back=False)
    found: dict[Expr, Expr | None] = {}

    def visit(x: Expr, scale: Factors) -> None:
        if isinstance(x, Dot):
            plain = scale.plain and scale.divisor == 1 and not scale
            found.setdefault(x, None if plain else algebra.multiplied(scale))
        elif isinstance(x, Apply) and x.fn in ("*", "/"):
            factors = algebra.factors(x)
            host = factors.split(is_host)
            inner = Factors(
                scale.number * factors.number,
                scale.divisor * factors.divisor,
                [*scale.over, *host.over],
                [*scale.under, *host.under],
            )
            for part in (*factors.over, *factors.under):
                if not is_host(part):
                    visit(part, inner)
        else:
            linear = isinstance(x, Apply) and x.fn in ("+", "-", "neg")
            for child in x.children():
                if isinstance(child, Expr):
                    visit(child, scale if linear else Factors())

    for node in walk(variant.output):
        if isinstance(node, ATTENTIONS):
            visit(node, Factors())
    return found


def held(item: Input, summed: frozenset[str]) -> tuple[str, str]:
    """(what the tensor is held in, what the call may give), by the policy of the language."""
    if item.element == "int":
        return "int32", "int32 or int64"
    if item.name in summed:
        return "fp32", f"fp32, because it is summed: {item.name}.float()"
    if item.place == "constant":
        return "fp32", "any float; the gradient has its dtype"
    if item.axes:
        return "as given", "q, k, v alike" if item.name in "qkv" else "bf16, fp16, fp32"
    return "fp32", "any float"

"""A variant as stable text, LaTeX and graph, and the digest of its canonical form."""

import hashlib
import textwrap
from collections.abc import Iterable

from gnomon.dsl.canonical import canonical
from gnomon.dsl.graph import svg
from gnomon.dsl.kinds import Kind, spell
from gnomon.dsl.latex import latex
from gnomon.dsl.nodes import Builtin, Node, Variant, walk
from gnomon.dsl.order import own_label
from gnomon.dsl.outline import Outline, outline
from gnomon.dsl.remarks import held, remarks
from gnomon.dsl.signature import axes_of, call_inputs, summed_inputs
from gnomon.dsl.spell import Speller

__all__ = ["digest", "graph_lines", "latex", "svg", "text"]

DIGITS, WRAP = 12, 84
PLACES = {"constant": "parameter"}
SHAPES = ("scalar", "vector", "matrix", "block matrix")


def text(variant: Variant) -> str:
    """The variant for a reader: formula, inputs, one line for each named value, conventions.

    Stable: it depends on the variant alone, so it serves dumps and golden files.
    """
    found = outline(variant)
    numbers = "".join(f", {name}={value!r}" for name, value in variant.hyperparameters)
    names = ", ".join(x.name for x in call_inputs(variant))
    values = list(_formula(found))
    sections = [
        [f"{variant.name}({names}{numbers})"],
        [f"    {line}".rstrip() for line in variant.formula.splitlines()],
        ["inputs", *_columns(_inputs(variant))],
        ["formula    x[i] is x at the query, x[j] at the key", *_columns(values)],
        ["conventions", *_columns((name, text) for name, text in remarks(found))],
        ["held in", *_columns(_policy(variant))],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def digest(variant: Variant) -> str:
    """12 hexadecimal digits that two spellings of one variant share.

    Over the inputs and the canonical graph; the names of the variant, of its hyperparameters and
    of the user's variables do not enter, nor does the formula in words.
    """
    lines = "\n".join(graph_lines(canonical(variant)))
    return hashlib.sha256(lines.encode()).hexdigest()[:DIGITS]


def graph_lines(variant: Variant) -> list[str]:
    """The inputs and the nodes of a graph, one a line, children before parents, by number."""
    lines = [own_label(item) for item in variant.inputs]
    numbers: dict[Node, int] = {}
    for node in walk(variant.output):
        if node not in numbers:
            children = " ".join(f"%{numbers[child]}" for child in node.children())
            numbers[node] = len(numbers)
            lines.append(f"%{numbers[node]} = {own_label(node)} {children}".rstrip())
    return lines


def _formula(found: Outline) -> Iterable[tuple[str, str]]:
    """The lines of the formula, long ones in several rows, each with the kind of its value."""
    speller = Speller(found.names)
    width = max(len(line.name) for line in found.lines)
    for line in found.lines:
        rows = textwrap.wrap(speller.line(line.node), WRAP, break_long_words=False)
        for n, row in enumerate(rows):
            left = f"{line.name:{width}} =" if n == 0 else " " * (width + 2)
            yield f"{left} {row}", f"# {_kind(line.kind)}" if n == 0 else ""


def _kind(k: Kind) -> str:
    """What kind of value a line is: pair, Head; token matrix, KVHead, d x d."""
    if k.is_output:
        return "output, Head, d_v"
    shape = SHAPES[len(k.axes)]
    words = f"{k.place} {shape}" if k.axes else k.place
    element = "" if k.element == "real" else f", {k.element}"
    axes = f", {' x '.join(map(spell, k.axes))}" if k.axes else ""
    return f"{words}{f', {k.heads}' if k.heads else ''}{axes}{element}"


def _inputs(variant: Variant) -> Iterable[tuple[str, ...]]:
    summed = summed_inputs(variant)
    for item in call_inputs(variant):
        axes = ", ".join(str(a) if isinstance(a, str) else spell(a) for a in axes_of(item))
        inside, given = held(item, summed)
        yield item.name, f"[{axes}]", PLACES.get(item.place, item.place), inside, given


def _policy(variant: Variant) -> Iterable[tuple[str, str]]:
    yield "dots", "products of vectors as given, accumulated in fp32"
    if summed_inputs(variant):
        yield "sums along the sequence", "fp32, compensated or relative to the tile"
    if any(isinstance(n, Builtin) and n.which == "position" for n in walk(variant.output)):
        yield "positions, angles", "int32 or fp32; angles reduced in turns before rounding"
    yield "pair formula, row statistics", "fp32"
    yield "weights before they meet v", "the dtype of v"


def _columns(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Rows as aligned columns."""
    table = [list(row) for row in rows]
    if not table:
        return []
    widths = [max(len(row[n]) for row in table) for n in range(len(table[0]))]
    return [
        "    " + "  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]

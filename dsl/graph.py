"""A variant as a drawing: boxes for inputs and named values, coloured by place, left to right.

SVG text, laid out here: the same variant gives the same bytes (no dates, no ids, no fonts inside).
"""

import textwrap
from dataclasses import dataclass
from html import escape

import networkx as nx

from gnomon.dsl.kinds import Kind, kind, spell
from gnomon.dsl.layout import Size, place
from gnomon.dsl.nodes import ATTENTIONS, Builtin, Expr, Input, Node, Variant, walk
from gnomon.dsl.outline import Outline, outline
from gnomon.dsl.signature import VALUE
from gnomon.dsl.spell import Speller

SANS = "font-family=\"'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif\""
MONO = "font-family=\"'DejaVu Sans Mono', Menlo, Consolas, monospace\""
NAME, FORMULA, KIND, HEADING = 13, 11, 10, 18  # font sizes
MARGIN, PAD, LINE = 24, 11, 15
WRAP = 34  # characters of a formula in one line of a box
MONO_WIDTH, SANS_WIDTH, BOLD_WIDTH = 0.603, 0.58, 0.69  # of the font size, for one character
# place: (fill, line, what the legend says)
COLOURS = {
    "constant": ("#eef0f2", "#7b8794", "constant: no token"),
    "token": ("#fff3d1", "#c28a0e", "token: not yet read"),
    "row": ("#dfecfd", "#3b78c9", "row: the query i"),
    "column": ("#dcf3e1", "#3a9459", "column: the key j"),
    "pair": ("#ece3fb", "#7a55c7", "pair: i and j"),
    "output": ("#fde0e1", "#cf4a55", "output"),
}
INK, GREY = "#1d2733", "#5b6773"


@dataclass(frozen=True, slots=True)
class Box:
    """What is written in one box."""

    name: str
    formula: tuple[str, ...]
    below: str
    place: str

    @property
    def size(self) -> Size:
        """Width and height, from the number of characters."""
        widths = [
            len(self.name) * NAME * BOLD_WIDTH,
            len(self.below) * KIND * SANS_WIDTH,
            *(len(line) * FORMULA * MONO_WIDTH for line in self.formula),
        ]
        height = 2 * PAD + NAME + LINE * (len(self.formula) + 1)
        return round(max(widths) + 2 * PAD, 1), float(height)


def svg(variant: Variant) -> str:
    """The graph of a variant as SVG text; boxes are the lines of its text form."""
    found = outline(variant)
    graph, boxes = _graph(found)
    placed = place(graph, {name: box.size for name, box in boxes.items()})
    caption = textwrap.wrap(" ".join(variant.formula.split("\n\n")[0].split()), 110)
    top = MARGIN + HEADING + LINE * len(caption) + 22
    legend = sum(_legend_width(text) for _, _, text in COLOURS.values())
    heading = max((len(line) for line in caption), default=0) * FORMULA * MONO_WIDTH
    width = round(max(placed.size[0], legend, heading) + 2 * MARGIN)
    height = round(top + placed.size[1] + 62)
    drawn = [
        *_heading(variant, caption),
        f'<g transform="translate({_n((width - placed.size[0]) / 2)} {top})">',
        *(_edge(points, boxes[start].place) for (start, _), points in placed.edges.items()),
        *(line for name in boxes for line in _box(boxes[name], placed.corners[name])),
        "</g>",
        *_legend(height - 26),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">'
    )
    title = f"<title>{escape(variant.name)}</title>"
    page = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, title, page, *drawn, "</svg>"]) + "\n"


def _graph(found: Outline) -> "tuple[nx.DiGraph[str], dict[str, Box]]":
    """Sources and lines; an edge from each to those whose formula names it."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    speller, boxes = Speller(found.names), {}
    for source in _sources(found):
        box = _source_box(source)
        boxes[box.name] = box
        graph.add_node(box.name)
    for line in found.lines:
        words = tuple(textwrap.wrap(speller.line(line.node), WRAP, break_long_words=False))
        where = "output" if line.kind.is_output else line.kind.place
        boxes[line.name] = Box(line.name, words, _below(line.kind), where)
        graph.add_node(line.name)
        graph.add_edges_from((part, line.name) for part in _parts(line.node, found.names))
    return graph, boxes


def _parts(node: Expr, names: dict[Expr, str]) -> list[str]:
    """The names of what a formula is made of, from left to right."""
    parts: dict[str, None] = {}
    seen: set[Node] = set()

    def visit(x: Node) -> None:
        if x in seen:
            return
        seen.add(x)
        if isinstance(x, Expr) and x in names and x is not node:
            parts[names[x]] = None
        elif isinstance(x, Input):
            parts[x.name] = None
        elif isinstance(x, Builtin) and x.which == "position":
            parts[_position(x)] = None
        else:
            for child in x.children():
                visit(child)
            if isinstance(x, ATTENTIONS):
                parts[VALUE.name] = None

    visit(node)
    return list(parts)


def _position(x: Builtin) -> str:
    return "position()" if x.of is None else f"position({x.of})"


def _sources(found: Outline) -> list[Input | Builtin]:
    """The inputs in the order of the call, v and the positions last."""
    positions: dict[Builtin, None] = {}
    for node in walk(found.variant.output):
        if isinstance(node, Builtin) and node.which == "position":
            positions[node] = None
    return [*found.variant.inputs, VALUE, *positions]


def _source_box(source: Input | Builtin) -> Box:
    name = source.name if isinstance(source, Input) else _position(source)
    return Box(name, (), _below(kind(source)), kind(source).place)


def _below(k: Kind) -> str:
    """The kind, in short: pair, Head; token, KVHead, 1/2 d; row, int."""
    words: list[str] = ["output" if k.is_output else k.place]
    words += [k.heads] if k.heads else []
    words += [" x ".join(map(spell, k.axes))] if k.axes else []
    words += [k.element] if k.element != "real" else []
    return ", ".join(words)


# ---- drawing


def _n(value: float) -> str:
    """A coordinate with at most one digit behind the point."""
    return f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, words: str, size: int, font: str, fill: str = INK) -> str:
    return (
        f'<text x="{_n(x)}" y="{_n(y)}" {font} font-size="{size}" fill="{fill}" '
        f'xml:space="preserve">{escape(words, quote=False)}</text>'
    )


def _heading(variant: Variant, caption: list[str]) -> list[str]:
    bold = f'{SANS} font-weight="bold"'
    lines = [_text(MARGIN, MARGIN + HEADING - 4, variant.name, HEADING, bold)]
    for n, words in enumerate(caption):
        y = MARGIN + HEADING + 4 + LINE * (n + 1)
        lines.append(_text(MARGIN, y, words, FORMULA, MONO, GREY))
    return lines


def _box(box: Box, corner: tuple[float, float]) -> list[str]:
    (x, y), (width, height) = corner, box.size
    fill, line, _ = COLOURS[box.place]
    lines = [
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="7" '
        f'fill="{fill}" stroke="{line}" stroke-width="1.3"/>'
    ]
    y += PAD + NAME - 2
    lines.append(_text(x + PAD, y, box.name, NAME, f'{SANS} font-weight="bold"'))
    for words in box.formula:
        y += LINE
        lines.append(_text(x + PAD, y, words, FORMULA, MONO))
    lines.append(_text(x + PAD, y + LINE, box.below, KIND, SANS, GREY))
    return lines


def _edge(points: list[tuple[float, float]], source: str) -> str:
    """A smooth line through its points that ends in an arrowhead."""
    line = COLOURS[source][1]
    (x, y), *rest = points
    path = f"M{_n(x)} {_n(y)}"
    for to_x, to_y in rest:
        if to_y == y:
            path += f" L{_n(to_x)} {_n(to_y)}" if to_x != x else ""
            x = to_x
            continue
        bend = (x + to_x) / 2
        path += f" C{_n(bend)} {_n(y)} {_n(bend)} {_n(to_y)} {_n(to_x)} {_n(to_y)}"
        x, y = to_x, to_y
    head = f"M{_n(x - 8)} {_n(y - 4)} L{_n(x)} {_n(y)} L{_n(x - 8)} {_n(y + 4)}"
    return (
        f'<path d="{path} {head}" fill="none" stroke="{line}" stroke-width="1.4" '
        f'stroke-linejoin="round" stroke-opacity="0.75"/>'
    )


def _legend_width(words: str) -> float:
    return 34 + len(words) * KIND * SANS_WIDTH


def _legend(y: float) -> list[str]:
    lines, x = [], float(MARGIN)
    for fill, line, words in COLOURS.values():
        lines.append(
            f'<rect x="{_n(x)}" y="{_n(y - 9)}" width="12" height="12" rx="3" fill="{fill}" '
            f'stroke="{line}" stroke-width="1.3"/>'
        )
        lines.append(_text(x + 18, y + 1, words, KIND, SANS, GREY))
        x += _legend_width(words)
    return lines

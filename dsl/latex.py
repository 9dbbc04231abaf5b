r"""A variant as one LaTeX display: the output, then what the named values in it are.

    o_i = \sum_j softmax_j(l_{ij}) v_j,   where   l_{ij} = \frac{q_i^\top k_j}{\sqrt{d}} + ...

i is the query, j the key, t any token, s and l what a sum or product runs over.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gnomon.dsl.algebra import is_distance
from gnomon.dsl.kinds import kind
from gnomon.dsl.latex_symbols import escaped, factors, is_inverse_root, number, symbol, width
from gnomon.dsl.nodes import (
    Apply,
    At,
    Builtin,
    Concat,
    Constant,
    Contract,
    Decay,
    Diagonal,
    Dot,
    Expr,
    Input,
    Lookup,
    Mask,
    MatrixExp,
    Outer,
    Place,
    PrefixSum,
    Ratio,
    Rotation,
    ScoreScan,
    Slice,
    Softmax,
    StickBreaking,
    Sum,
    Variant,
    WeightedSum,
    Width,
    walk,
)
from gnomon.dsl.outline import Line, Outline, outline

SUM, BIG, PRODUCT, POWER, ATOM = 2, 3, 4, 5, 9  # BIG: a sum over an index
WORDS = {
    "exp": r"\exp", "log": r"\log", "sin": r"\sin", "cos": r"\cos", "tanh": r"\tanh",
    "minimum": r"\min", "maximum": r"\max", "sigmoid": r"\sigma", "log_sigmoid": r"\log \sigma",
}  # fmt: skip
RELATIONS = {"<": "<", "<=": r"\leq", ">": ">", ">=": r"\geq"}
EXTENTS = {"length": "N", "head": "h", "head_count": "H", "channel": "c", "plane": "c"}
Formula = tuple[str, int]


def latex(variant: Variant) -> str:
    """The formula as an aligned display, without the dollars; shared values follow it."""
    first, *rest = latex_lines(variant)
    lines = [first, *(f"\\text{{where}}\\quad {x}" if n == 0 else x for n, x in enumerate(rest))]
    body = " \\\\\n".join(f"  {line.replace(' = ', ' &= ', 1)}" for line in lines)
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"


def latex_lines(variant: Variant) -> list[str]:
    """The output first, then each named value after those that use it: name = formula."""
    writer = Writer(outline(variant, shared_only=True))
    return [writer.line(line) for line in reversed(writer.outline.lines)]


class Writer:
    """Writes the lines of one outline."""

    def __init__(self, found: Outline) -> None:
        self.outline = found
        self.names: Mapping[Expr, str] = found.names
        self.key = "j"  # the index of the key; l inside a sum over keys

    @contextmanager
    def _at_key(self, key: str) -> Iterator[None]:
        before, self.key = self.key, key
        yield
        self.key = before

    def line(self, line: Line) -> str:
        """Name = formula."""
        index = "t" if line.kind.place == "token" else ""
        left = "o_i" if line.name == "output" else self._named(line.node, "")
        return f"{left} = {self._formula(line.node, index)[0]}"

    def _index(self, place: Place, index: str) -> str:
        """The index of a place; `index` is where tokens, and the keys among them, are read."""
        at = {"token": index or "t", "row": "i", "column": index or self.key, "constant": ""}
        return at.get(place, f"i{self.key}")

    def _named(self, x: Expr, index: str) -> str:
        """A value by its name, with the index at which it is read."""
        return symbol(self.names[x], self._index(kind(x).place, index))

    def _text(self, x: Expr, index: str, least: int = 0) -> str:
        if x in self.names:
            return self._named(x, index)
        text, level = self._formula(x, index)
        return f"\\left({text}\\right)" if level < least else text

    def _formula(self, x: Expr, index: str) -> Formula:
        """The value itself; `index` is where its tokens are read, "" for t."""
        for write in (self._leaf, self._map, self._matrix, self._pair):
            found = write(x, index)
            if found is not None:
                return found
        return self._attention(x)

    # ---- values

    def _leaf(self, x: Expr, index: str) -> Formula | None:
        match x:
            case Input(name, place):
                return symbol(name, self._index(place, index)), ATOM
            case Constant(value):
                return number(value), ATOM if value >= 0 else SUM
            case Builtin("position", of):
                where = index or "t"
                return where if of is None else rf"\mathrm{{{of}}}_{{{where}}}", ATOM
            case Builtin("dim", Width() as of):
                return width(of), ATOM if len(of.parts) == 1 else SUM
            case Builtin("visible_count"):
                return "n_i", ATOM
            case Builtin(which):
                return EXTENTS[which], ATOM
            case At(inner, place):
                return self._at(inner, "i" if place == "row" else self.key)
        return None

    def _at(self, inner: Expr, index: str) -> Formula:
        return (
            (self._named(inner, index), ATOM)
            if inner in self.names
            else self._formula(inner, index)
        )

    def _map(self, x: Expr, index: str) -> Formula | None:
        match x:
            case Apply():
                return self._apply(x, index)
            case Slice(inner, start, stop):
                cut = f"{width(start)}:{width(stop)}"
                leaf = inner.x if isinstance(inner, At) else inner
                if isinstance(leaf, Input):
                    read = self._index(kind(inner).place, index)
                    return symbol(leaf.name, rf"{read},\, {cut}" if read else cut), ATOM
                return f"{{{self._text(inner, index, ATOM)}}}_{{{cut}}}", ATOM
            case Concat(parts):
                return f"\\left[{'; '.join(self._text(p, index) for p in parts)}\\right]", ATOM
            case Sum(inner):
                return f"\\sum_c {self._text(inner, index, PRODUCT)}", BIG
            case Lookup(table, at):
                spelled = ", ".join(self._text(n, index) for n in at)
                return f"{self._text(table, index, ATOM)}\\left[{spelled}\\right]", ATOM
            case PrefixSum(inner, inclusive):
                until = rf"\leq {index or 't'}" if inclusive else f"< {index or 't'}"
                return rf"\sum_{{s {until}}} {self._text(inner, 's', PRODUCT)}", BIG
        return None

    def _apply(self, x: Apply, index: str) -> Formula:
        def arg(n: int, least: int = 0) -> str:
            return self._text(x.args[n], index, least)

        if is_distance(x):
            return self._distance(x), SUM
        match x.fn:
            case "+" | "-":
                return f"{arg(0, SUM)} {x.fn} {arg(1, SUM if x.fn == '+' else BIG)}", SUM
            case "neg":
                return f"-{arg(0, PRODUCT)}", SUM
            case "*":
                return self._product(x, index), PRODUCT
            case "/":
                return f"\\frac{{{arg(0)}}}{{{arg(1)}}}", PRODUCT
            case "//":
                return f"\\left\\lfloor \\frac{{{arg(0)}}}{{{arg(1)}}} \\right\\rfloor", ATOM
            case "**":
                return self._power(x, index)
            case fn if fn in RELATIONS:
                return f"{arg(0)} {RELATIONS[fn]} {arg(1)}", 1
        return self._word(x, arg, index)

    def _distance(self, x: Apply) -> str:
        (of,) = {n.of for n in walk(x) if isinstance(n, Builtin)}
        if of is None:
            return f"i - {self.key}"
        return rf"\mathrm{{{of}}}_i - \mathrm{{{of}}}_{self.key}"

    def _product(self, x: Apply, index: str) -> str:
        """Factors side by side; c ** -0.5 goes below a fraction line."""
        parts = factors(x, self.names)
        roots = [f for f in parts if is_inverse_root(f)]
        over = [f for f in parts if not is_inverse_root(f)]
        least = PRODUCT if len(over) > 1 or not roots else 0
        written = [
            self._text(f, index, least if n else self._first(f, least)) for n, f in enumerate(over)
        ]
        text = written[0] if written else ""
        for right in written[1:]:
            text += rf" \cdot {right}" if right[:1].isdigit() else rf"\, {right}"
        if not roots or not over:
            return "".join(self._formula(f, index)[0] for f in roots) if not over else text
        below = r"\, ".join(self._root(f, index) for f in roots)
        return f"\\frac{{{text}}}{{{below}}}"

    @staticmethod
    def _first(x: Expr, least: int) -> int:
        """A negative number needs no parentheses where a product begins with it."""
        return 0 if isinstance(x, Constant) else least

    def _root(self, x: Expr, index: str) -> str:
        assert isinstance(x, Apply)
        return f"\\sqrt{{{self._text(x.args[0], index)}}}"

    def _power(self, x: Apply, index: str) -> Formula:
        if x not in self.names and is_inverse_root(x):
            return f"\\frac{{1}}{{{self._root(x, index)}}}", PRODUCT
        base, exponent = x.args
        return f"{self._text(base, index, ATOM)}^{{{self._text(exponent, index)}}}", POWER

    def _word(self, x: Apply, arg: Callable[[int], str], index: str) -> Formula:
        match x.fn:
            case "abs":
                return f"\\left|{arg(0)}\\right|", ATOM
            case "floor":
                return f"\\left\\lfloor {arg(0)} \\right\\rfloor", ATOM
            case "sqrt":
                return f"\\sqrt{{{arg(0)}}}", ATOM
            case "rsqrt":
                return f"\\frac{{1}}{{\\sqrt{{{arg(0)}}}}}", PRODUCT
            case "transpose":
                return f"{arg(0)}^\\top", POWER
            case "cos_turns":
                return f"\\cos\\left(2\\pi\\, {self._text(x.args[0], index, PRODUCT)}\\right)", ATOM
            case "where":
                if x.args[1:] == (Constant(1), Constant(0)):
                    return rf"\left[{arg(0)}\right]", ATOM
                rows = rf"{arg(1)} & \text{{if }} {arg(0)} \\ {arg(2)} & \text{{otherwise}}"
                return rf"\begin{{cases}} {rows} \end{{cases}}", SUM
        word = WORDS.get(x.fn, rf"\mathrm{{{escaped(x.fn)}}}")
        return f"{word}\\left({', '.join(arg(n) for n in range(len(x.args)))}\\right)", ATOM

    # ---- matrices and pairs

    def _matrix(self, x: Expr, index: str) -> Formula | None:
        match x:
            case Contract(inner, Rotation(angle)):
                return rf"{self._turn(angle, index)}\, {self._text(inner, index, ATOM)}", PRODUCT
            case Contract(inner, m) if len(kind(inner).axes) == 1:
                return f"{self._transposed(m, index)}\\, {self._text(inner, index, ATOM)}", PRODUCT
            case Contract(a, b):
                return (
                    rf"{self._text(a, index, PRODUCT)}\, {self._text(b, index, PRODUCT)}",
                    PRODUCT,
                )
            case Rotation(angle):
                return self._turn(angle, index), ATOM
            case Diagonal(Constant(0.0), _):
                return "I", ATOM
            case Diagonal(log, _):
                return rf"\mathrm{{Diag}}\left(e^{{{self._text(log, index)}}}\right)", ATOM
            case Outer(w, u, scale):
                both = rf"{self._text(w, index, ATOM)} {self._text(u, index, ATOM)}^\top"
                one = isinstance(scale, Constant) and scale.value == 1
                return both if one else rf"{self._text(scale, index, PRODUCT)}\, {both}", PRODUCT
            case MatrixExp(inner):
                return rf"\exp\left({self._text(inner, index)}\right)", ATOM
        return None

    def _turn(self, angle: Expr, index: str) -> str:
        """R(a), the matrix that turns a column vector by the angle a."""
        return rf"R\left({self._text(angle, index)}\right)"

    def _transposed(self, m: Expr, index: str) -> str:
        if isinstance(m, Apply) and m.fn == "transpose" and m not in self.names:
            return self._text(m.args[0], index, ATOM)
        return rf"{self._text(m, index, ATOM)}^\top"

    def _pair(self, x: Expr, index: str) -> Formula | None:
        match x:
            case Dot(a, b, None):
                return rf"{self._left(a)} {self._text(b, self.key, PRODUCT)}", PRODUCT
            case Dot(a, b, Expr() as through):
                step = self._step(through)
                return rf"{self._left(a)} {step} {self._text(b, self.key, PRODUCT)}", PRODUCT
            case Decay(inner):
                return rf"\sum_{{s={self.key}+1}}^{{i}} {self._text(inner, 's', PRODUCT)}", BIG
            case ScoreScan(inner, inclusive):
                until = r"\geq" if inclusive else ">"
                with self._at_key("l"):
                    scanned = self._text(inner, "", PRODUCT)
                return rf"\sum_{{l {until} j}} {scanned}", BIG
        return None

    def _left(self, a: Expr) -> str:
        """The vector at the query, transposed."""
        return rf"{self._text(a, 'i', ATOM)}^\top"

    def _step(self, through: Expr) -> str:
        """T_i ... T_{j+1} acts on the row vector of the query from the right, i first."""
        if kind(through).place == "constant":
            return rf"{self._text(through, '', ATOM)}^{{i - {self.key}}}"
        return rf"\prod_{{s=i}}^{{{self.key}+1}} {self._text(through, 's', PRODUCT)}\;"

    # ---- outputs

    def _attention(self, x: Expr) -> Formula:
        match x:
            case Softmax(logit, Expr() as sink, mask):
                over = rf"e^{{{self._text(logit, '')}}}"
                weight = (
                    rf"\frac{{{over}}}{{e^{{{self._text(sink, '')}}} + {self._total(logit, mask)}}}"
                )
                return rf"\sum_{{{self.mask(mask)}}} {weight}\, v_j", BIG
            case Softmax(logit, None, mask):
                inner = rf"\left({self._text(logit, '')}\right)"
                return rf"\sum_j \mathrm{{softmax}}_{{{self.mask(mask)}}}{inner}\, v_j", BIG
            case WeightedSum(weight, mask):
                return rf"\sum_{{{self.mask(mask)}}} {self._text(weight, '', PRODUCT)}\, v_j", BIG
            case Ratio(above, below, mask, least):
                with self._at_key("l"):
                    total = rf"\sum_l {self._text(below, '', PRODUCT)}"
                bound = rf"\max\left(\left|{total}\right|, {number(least)}\right)"
                over = rf"\sum_{{{self.mask(mask)}}} {self._text(above, '', PRODUCT)}\, v_j"
                return rf"\frac{{{over}}}{{{bound}}}", PRODUCT
            case StickBreaking(logit, mask, order):
                between = "j < l < i" if order == "right_to_left" else r"|i - l| < |i - j|"
                weight = rf"\sigma\left({self._text(logit, '')}\right)"
                with self._at_key("l"):
                    rest = rf"\left(1 - \sigma\left({self._text(logit, '')}\right)\right)"
                kept = rf"\prod_{{{between}}} {rest}"
                return rf"\sum_{{{self.mask(mask)}}} {weight} {kept}\, v_j", BIG
        raise TypeError(f"no LaTeX for {type(x).__name__}")

    def _total(self, logit: Expr, mask: Mask) -> str:
        """The sum of e^logit over the keys that are seen."""
        with self._at_key("l"):
            return rf"\sum_{{{self.mask(mask)}}} e^{{{self._text(logit, '')}}}"

    def mask(self, mask: Mask, outer: str = "") -> str:
        """The condition that j is seen by i."""
        j = self.key
        value = [self._text(x, "i") if isinstance(x, Expr) else str(x) for x in mask.operands]
        match mask.rule:
            case "and" | "or":
                parts = [self.mask(m, mask.rule) for m in mask.operands if isinstance(m, Mask)]
                joined = (r"\, \wedge\, " if mask.rule == "and" else r"\, \vee\, ").join(parts)
                return f"({joined})" if outer and outer != mask.rule else joined
            case "causal":
                return f"{j} < i" if mask.operands[0] else rf"{j} \leq i"
            case "window":
                return f"|i - {j}| < {value[0]}"
            case "first_keys":
                return f"{j} < {value[0]}"
            case "same_document":
                (ids,) = (x for x in mask.operands if isinstance(x, Expr))
                return f"{value[0]} = {self._text(ids, j)}"
            case "selected_blocks":
                return rf"\lfloor {j} / {value[1]} \rfloor \in {value[0]}"
            case "negligible":
                return rf"{value[0]} \gtrsim {value[1]}"
        return j

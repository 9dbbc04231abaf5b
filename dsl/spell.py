"""Values as one line of text, in the words of the language.

x[i] is a token value read at the query, x[j] at the key; a value with a name is its name.
"""

from collections.abc import Mapping

from gnomon.dsl.algebra import is_distance
from gnomon.dsl.kinds import kind
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
    Node,
    Outer,
    PrefixSum,
    Ratio,
    Rotation,
    ScoreScan,
    Slice,
    Softmax,
    StickBreaking,
    Sum,
    WeightedSum,
    walk,
)

INDEX = {"row": "i", "column": "j"}
BINARY = {
    "<": 1, "<=": 1, ">": 1, ">=": 1, "+": 2, "-": 2, "*": 3, "/": 3, "//": 3, "@": 3, "**": 5,
}  # fmt: skip
NEGATIVE, ATOM = 4, 9


class Speller:
    """Spells the values of one variant; `names` are those that have a line of their own."""

    def __init__(self, names: Mapping[Expr, str]) -> None:
        self.names = names

    def line(self, node: Expr) -> str:
        """The value itself, its parts by their names."""
        return self._formula(node)[0]

    def mask(self, mask: Mask, inner: bool = False) -> str:
        """The mask in the words that make it."""
        match mask.rule:
            case "and" | "or":
                text = f" {'&' if mask.rule == 'and' else '|'} ".join(
                    self._operand(x, inner=True) for x in mask.operands
                )
                return f"({text})" if inner else text
            case "causal":
                return "causal(strict=True)" if mask.operands[0] else "causal()"
        return f"{mask.rule}({', '.join(self._operand(x) for x in mask.operands)})"

    def _operand(self, x: object, inner: bool = False) -> str:
        if isinstance(x, Mask):
            return self.mask(x, inner)
        return self._text(x) if isinstance(x, Expr) else str(x)

    def _text(self, x: Expr, least: int = 0) -> str:
        """The name or the formula of x, in parentheses where it binds less than `least`."""
        if x in self.names:
            return self.names[x]
        text, level = self._formula(x)
        return f"({text})" if level < least else text

    def _call(self, word: str, *args: Node | None, **options: object) -> tuple[str, int]:
        spelled = [self._operand(x) for x in args if x is not None]
        spelled += [f"{name}={value}" for name, value in options.items() if value is not None]
        return f"{word}({', '.join(spelled)})", ATOM

    def _formula(self, x: Expr) -> tuple[str, int]:
        """The text of a value and how tightly it binds."""
        match x:
            case Input():
                return x.name, ATOM
            case Constant(value):
                return repr(value), ATOM if value >= 0 else NEGATIVE
            case Builtin(which, of):
                inner = self.mask(of) if isinstance(of, Mask) else "" if of is None else str(of)
                return f"{which}({inner})", ATOM
            case Apply():
                return self._apply(x)
            case At(inner, place):
                return f"{self._text(inner, ATOM)}[{INDEX[place]}]", ATOM
            case Slice(inner, start, stop):
                first = start if start.parts else ""
                last = "" if kind(inner).axes == (stop,) else stop
                return f"{self._text(inner, ATOM)}[{first}:{last}]", ATOM
            case Contract(inner, Rotation(angle, layout)):
                option = None if layout == "half" else repr(layout)
                return self._call("rotate", inner, angle, layout=option)
            case Contract(inner, m):
                return f"{self._text(inner, 3)} @ {self._text(m, 4)}", 3
        return self._matrix(x) or self._score(x)

    def _apply(self, x: Apply) -> tuple[str, int]:
        if is_distance(x):
            (of,) = {n.of for n in walk(x) if isinstance(n, Builtin)}
            return f"distance({of or ''})", ATOM
        match x.fn, x.args:
            case "neg", (a,):
                return f"-{self._text(a, NEGATIVE)}", NEGATIVE
            case "transpose", (a,):
                return f"{self._text(a, ATOM)}.T", ATOM
            case fn, (a, b) if fn in BINARY:
                level = BINARY[fn]
                left, right = (level + 1, NEGATIVE) if fn == "**" else (level, level + 1)
                return f"{self._text(a, left)} {fn} {self._text(b, right)}", level
        return self._call(x.fn, *x.args)

    def _matrix(self, x: Expr) -> tuple[str, int] | None:
        match x:
            case Diagonal(Constant(0.0), width):
                return f"identity({width})", ATOM
            case Diagonal(log, _):
                return f"diagonal(log={self._text(log)})", ATOM
            case Outer(w, u, Constant(1.0)):
                return self._call("outer", w, u)
            case Outer(w, u, scale):
                return f"{self._text(scale, 3)} * {self._call('outer', w, u)[0]}", 3
            case MatrixExp(inner):
                return self._call("expm", inner)
            case Rotation(angle, layout):
                return self._call("rotation", angle, layout=repr(layout))
        return None

    def _score(self, x: Expr) -> tuple[str, int]:
        match x:
            case Concat(parts):
                return self._call("concat", *parts)
            case Sum(inner):
                return self._call("channel_sum", inner)
            case Lookup(table, index):
                return self._call("lookup", table, *index)
            case PrefixSum(inner, inclusive):
                return self._call("prefix_sum", inner, inclusive=None if inclusive else False)
            case Dot(a, b, through):
                step = None if through is None else self._text(through)
                return self._call("dot", a, b, through=step)
            case Decay(inner):
                return self._call("decay", inner)
            case ScoreScan(inner, inclusive):
                return self._call("score_scan", inner, inclusive=inclusive)
        return self._attention(x)

    def _attention(self, x: Expr) -> tuple[str, int]:
        match x:
            case Softmax(logit, sink, mask):
                amount = None if sink is None else self._text(sink)
                return self._call("softmax", logit, mask=self.mask(mask), sink=amount)
            case WeightedSum(weight, mask):
                return self._call("weighted_sum", weight, mask=self.mask(mask))
            case Ratio(above, below, mask, least):
                return self._call("ratio", above, below, mask=self.mask(mask), at_least=least)
            case StickBreaking(logit, mask, order):
                return self._call("stick_breaking", logit, mask=self.mask(mask), order=repr(order))
        raise TypeError(f"no text for {type(x).__name__}")

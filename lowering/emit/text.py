"""What the printers share: how tightly code binds, where a long line breaks, how a remark is set.

A printer turns an expression into `Code` by `atom`, `prefix`, `infix`, `call`, `suffix`, `keyword`
and `ternary`, which put parentheses only where Python needs them; `statement` sets it on as many
lines as it takes, in the way that `ruff format` would.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

WIDTH = 100
INDENT = "    "

LEVELS = {
    "if": 1,
    "or": 2,
    "and": 3,
    "not": 4,
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 5),
    "|": 6,
    "^": 7,
    "&": 8,
    **dict.fromkeys(("<<", ">>"), 9),
    **dict.fromkeys(("+", "-"), 10),
    **dict.fromkeys(("*", "/", "//", "%", "@"), 11),
    "neg": 12,
    "~": 12,
    "**": 13,
}
"""How tightly an operator binds (The Python Language Reference, 6.17)."""

ATOM = 20


@dataclass(frozen=True, slots=True)
class Code:
    """An expression in Python: its text, how tightly it binds, and where it may break."""

    text: str
    level: int = ATOM
    chain: tuple[tuple[str, "Code"], ...] = ()
    """Operands of one level, each with the operator before it ("" for the first)."""
    head: str = ""
    """Of a call, what stands before the bracket."""
    items: tuple["Code", ...] = ()
    """What stands in the brackets of a call, or the one thing in plain parentheses."""
    plain: bool = False
    """Whether the brackets are parentheses around one thing, where a comma would make a tuple."""
    instead: "Code | None" = None
    """The same value written in another way, where this one would have to break."""
    key: str = ""
    """Of a keyword argument, its name and the equals sign."""

    def __str__(self) -> str:
        return self.text


def atom(text: str) -> Code:
    """A name, a literal, or anything else that binds most tightly."""
    return Code(text)


def grouped(code: Code, level: int) -> Code:
    """The code, in parentheses where it binds less tightly than `level`."""
    if code.level >= level:
        return code
    return Code(f"({code})", items=(code,), plain=True)


def prefix(operator: str, x: Code) -> Code:
    """-x, ~x or not x."""
    level = LEVELS["neg" if operator == "-" else operator]
    start = f"{operator} " if operator == "not" else operator
    inner = grouped(x, level)
    instead = prefix(operator, inner.instead) if inner.instead else None
    text, head = f"{start}{inner}", f"{start}{inner.head}"
    return replace(inner, text=text, level=level, chain=(), head=head, instead=instead)


def suffix(x: Code, tail: str, instead: Code) -> Code:
    """X, and directly after it an attribute, a subscript or a method; a call where that is long."""
    return Code(f"{grouped(x, ATOM)}{tail}", instead=instead)


def keyword(name: str, x: Code) -> Code:
    """An argument given by its name."""
    instead = keyword(name, x.instead) if x.instead else None
    return replace(x, text=f"{name}={x}", key=f"{name}=", instead=instead)


def infix(operator: str, a: Code, b: Code) -> Code:
    """A op b; comparisons are never chained, and ** binds to the right."""
    level = LEVELS[operator]
    if level == LEVELS["<"]:
        a, b = grouped(a, level + 1), grouped(b, level + 1)
    elif operator == "**":
        a, b = grouped(a, level + 1), grouped(b, level)
    else:
        a, b = grouped(a, level), grouped(b, level + 1)
    left = a.chain if a.level == level and a.chain else (("", a),)
    return Code(f"{a} {operator} {b}", level, chain=(*left, (operator, b)))


def call(function: str, *args: Code) -> Code:
    """function(*args)."""
    inner = ", ".join(str(arg) for arg in args)
    return Code(f"{function}({inner})", head=function, items=args)


def ternary(condition: Code, a: Code, b: Code) -> Code:
    """A if condition else b."""
    level = LEVELS["if"]
    a, condition = grouped(a, level + 1), grouped(condition, level + 1)
    b = grouped(b, level)
    return Code(f"{a} if {condition} else {b}", level, (("", a), ("if", condition), ("else", b)))


def statement(start: str, code: Code, depth: int, end: str = "") -> list[str]:
    """The lines of `start` + code + `end`, broken where they would pass the width."""
    indent = INDENT * depth
    if len(line := f"{indent}{start}{code}{end}") <= WIDTH:
        return [line]
    if code.instead:
        return statement(start, code.instead, depth, end)
    if code.chain:
        return [f"{indent}{start}(", *_inside("", code, depth + 1), f"{indent}){end}"]
    return _inside(start, code, depth, end)


def _inside(start: str, code: Code, depth: int, end: str = "") -> list[str]:
    """The lines of code that stands in brackets already: its operands need none of their own."""
    indent = INDENT * depth
    if len(line := f"{indent}{start}{code}{end}") <= WIDTH:
        return [line]
    if code.instead:
        return _inside(start, code.instead, depth, end)
    if code.items:
        return _bracket(f"{start}{code.key}{code.head}(", code, depth, f"){end}")
    if not code.chain:
        return [line]
    lines = []
    for place, (operator, part) in enumerate(code.chain):
        begin = f"{operator} " if operator else f"{start}{code.key}"
        close = end if place == len(code.chain) - 1 else ""
        lines += _inside(begin, part, depth, close)
    return lines


def _bracket(begin: str, code: Code, depth: int, close: str) -> list[str]:
    """What stands in brackets, on one line of its own or one line for each item."""
    indent, inner = INDENT * depth, INDENT * (depth + 1)
    together = inner + ", ".join(str(item) for item in code.items)
    if len(together) <= WIDTH:
        return [f"{indent}{begin}", together, f"{indent}{close}"]
    end = "" if code.plain else ","
    lines = [line for item in code.items for line in _inside("", item, depth + 1, end)]
    return [f"{indent}{begin}", *lines, f"{indent}{close}"]


def remark(text: str, depth: int) -> list[str]:
    """A comment, wrapped."""
    width = WIDTH - len(INDENT) * depth - 2
    return [f"{INDENT * depth}# {line}" for line in textwrap.wrap(text, width)]


def docstring(text: str, depth: int) -> list[str]:
    """A docstring: its first line on the line of the quotes."""
    indent = INDENT * depth
    lines = text.strip().splitlines()
    if len(lines) == 1:
        return [f'{indent}"""{lines[0]}"""']
    rest = [f"{indent}{line}".rstrip() for line in lines[1:]]
    return [f'{indent}"""{lines[0]}', *rest, f'{indent}"""']


def literal(value: int | float) -> str:
    """A finite number as Python writes it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} has no literal")
    return repr(value)


def body(lines: Iterable[str] | Sequence[str]) -> str:
    """Lines as the text of a file."""
    return "\n".join(lines) + "\n"

"""What the printers share: how tightly code binds, where a long line breaks, how a remark is set.

A printer turns an expression into `Code` by `atom`, `prefix`, `infix`, `call` and `ternary`, which
put parentheses only where Python needs them; `statement` sets it on as many lines as it takes, in
the way that `ruff format` would.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    """What stands in the brackets of a call."""

    def __str__(self) -> str:
        return self.text


def atom(text: str) -> Code:
    """A name, a literal, or anything else that binds most tightly."""
    return Code(text)


def grouped(code: Code, level: int) -> Code:
    """The code, in parentheses where it binds less tightly than `level`."""
    if code.level >= level:
        return code
    return Code(f"({code})", items=(code,))


def prefix(operator: str, x: Code) -> Code:
    """-x or not x."""
    level = LEVELS["neg" if operator == "-" else operator]
    space = "" if operator == "-" else " "
    return Code(f"{operator}{space}{grouped(x, level)}", level)


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
    return Code(f"{a} if {condition} else {grouped(b, level)}", level)


def statement(start: str, code: Code, depth: int, end: str = "") -> list[str]:
    """The lines of `start` + code + `end`, broken where they would pass the width."""
    indent = INDENT * depth
    if len(line := f"{indent}{start}{code}{end}") <= WIDTH:
        return [line]
    if code.chain:
        return [f"{indent}{start}(", *_operands(code, depth + 1), f"{indent}){end}"]
    if code.items:
        return _bracket(start, code, depth, end)
    return [line]


def _operands(code: Code, depth: int) -> list[str]:
    """One operand a line, each with the operator before it."""
    lines = []
    for operator, part in code.chain:
        lines += statement(f"{operator} " if operator else "", part, depth)
    return lines


def _bracket(start: str, code: Code, depth: int, end: str) -> list[str]:
    indent, inner = INDENT * depth, INDENT * (depth + 1)
    if not code.head:
        content = code.items[0]
        lines = _operands(content, depth + 1) if content.chain else [f"{inner}{content}"]
        return [f"{indent}{start}(", *lines, f"{indent}){end}"]
    together = inner + ", ".join(str(item) for item in code.items)
    if len(together) <= WIDTH:
        return [f"{indent}{start}{code.head}(", together, f"{indent}){end}"]
    lines = [line for item in code.items for line in statement("", item, depth + 1, ",")]
    return [f"{indent}{start}{code.head}(", *lines, f"{indent}){end}"]


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

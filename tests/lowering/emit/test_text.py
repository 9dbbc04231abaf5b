"""Printed code lies as `ruff format` lays it, with the parentheses that Python needs."""

import ast
import random
import subprocess
import sys
from pathlib import Path

import pytest

from gnomon.lowering.emit.text import Code, atom, call, infix, keyword, prefix, statement, suffix

ROOT = Path(__file__).parents[3]
NAMES = ["b_s", "o_m[:, None]", "s_q_b", "i_b", "0.5", "b_accumulated_over_keys"]
OPERATORS = ["+", "-", "*", "/", "+", "*", "<", "&", "|", "==", "//", "%"]
FLOAT, COLUMN = atom("tl.float32"), atom("1")


def expression(r: random.Random, depth: int) -> Code:
    """A random expression."""
    if depth == 0 or r.random() < 0.1:
        return atom(r.choice(NAMES))
    kind = r.random()
    if kind < 0.45:
        return infix(r.choice(OPERATORS), expression(r, depth - 1), expression(r, depth - 1))
    if kind < 0.55:
        return prefix(r.choice("-~"), expression(r, depth - 1))
    if kind < 0.65:
        x = infix("+", expression(r, depth - 1), atom("b_s"))
        if r.random() < 0.5:
            return suffix(x, ".to(tl.float32)", call("tl.cast", x, FLOAT))
        return suffix(x, "[:, None]", call("tl.expand_dims", x, COLUMN))
    args = [expression(r, depth - 1) for _ in range(r.randint(1, 3))]
    if r.random() < 0.5:
        args[-1] = keyword(r.choice(["mask", "other"]), args[-1])
    return call(r.choice(["tl.where", "tl.load", "tl.dot"]), *args)


def expressions(seed: int, count: int) -> list[Code]:
    """Random expressions; a printer makes long ones of two operands in two steps."""
    r = random.Random(seed)
    found: list[Code] = []
    while len(found) < count:
        code = expression(r, r.randint(2, 6))
        if len(code.text) < 500 and len(code.chain) != 2:
            found.append(code)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_lines_break_where_ruff_format_breaks_them(seed: int) -> None:
    lines = ["def f():"]
    for code in expressions(seed, 200):
        lines += statement("b_x = ", code, 1)
    source = "\n".join(lines) + "\n"
    command = [sys.executable, "-m", "ruff", "format", "--diff", "--stdin-filename", "x.py", "-"]
    ruff = subprocess.run(command, input=source, capture_output=True, text=True, cwd=ROOT)
    assert ruff.stdout == ""
    assert ruff.returncode == 0, ruff.stderr


def test_breaking_a_line_changes_no_value() -> None:
    for code in expressions(9, 100):
        broken = "\n".join(statement("b_x = ", code, 0))
        flat = code
        if any(part in broken for part in ("tl.cast", "tl.expand_dims")):
            continue
        assert ast.dump(ast.parse(broken)) == ast.dump(ast.parse(f"b_x = {flat}"))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (infix("-", atom("a"), infix("-", atom("b"), atom("c"))), "a - (b - c)"),
        (infix("-", infix("-", atom("a"), atom("b")), atom("c")), "a - b - c"),
        (infix("*", infix("+", atom("a"), atom("b")), atom("c")), "(a + b) * c"),
        (infix("&", infix("<", atom("a"), atom("b")), atom("c")), "(a < b) & c"),
        (infix("<", infix("<", atom("a"), atom("b")), atom("c")), "(a < b) < c"),
        (prefix("-", infix("*", atom("a"), atom("b"))), "-(a * b)"),
        (prefix("~", infix("<", atom("a"), atom("b"))), "~(a < b)"),
        (infix("*", prefix("-", atom("a")), atom("b")), "-a * b"),
        (suffix(prefix("-", atom("a")), "[:, None]", atom("x")), "(-a)[:, None]"),
        (infix("/", atom("a"), infix("*", atom("b"), atom("c"))), "a / (b * c)"),
    ],
)
def test_parentheses_stand_where_python_needs_them(code: Code, expected: str) -> None:
    assert str(code) == expected

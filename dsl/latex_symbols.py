"""Names, numbers and widths in LaTeX."""

import re
from collections.abc import Mapping
from fractions import Fraction

from gnomon.dsl.nodes import Apply, Constant, Expr, Width

GREEK = re.compile(
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi"
    "|omega"
)


def factors(x: Expr, names: Mapping[Expr, str], top: bool = True) -> list[Expr]:
    """The factors of a product, up to those that have a name."""
    if isinstance(x, Apply) and x.fn == "*" and (top or x not in names):
        return [f for part in x.args for f in factors(part, names, top=False)]
    return [x]


def is_inverse_root(x: Expr) -> bool:
    """Whether x is one over a square root: c ** -0.5."""
    return isinstance(x, Apply) and x.fn == "**" and x.args[1] == Constant(-0.5)


def number(value: float) -> str:
    """1e-06 as 10^{-6}, 6.28... as it is."""
    text = f"{value:.6g}"
    if "e" not in text:
        return text
    digits, exponent = text.split("e")
    return f"10^{{{int(exponent)}}}" if digits == "1" else rf"{digits} \cdot 10^{{{int(exponent)}}}"


def width(width: Width) -> str:
    """1/4 d as d/4, d_v as it is, the width of the axis Rope as d_Rope."""

    def part(symbol: str, count: Fraction) -> str:
        base = symbol if symbol in ("d", "d_v") else rf"d_{{\mathrm{{{escaped(symbol)}}}}}"
        if symbol == "1":
            return str(count)
        over = "" if count.numerator == 1 else f"{count.numerator}"
        return f"{over}{base}" + ("" if count.denominator == 1 else f"/{count.denominator}")

    return " + ".join(part(s, c) for s, c in width.parts) or "0"


def symbol(name: str, index: str = "") -> str:
    r"""log_f at t as \log f_t, w_q as w_{q}, score_first at ij as \mathrm{score}_{first, ij}."""
    if name.startswith("log_"):
        return rf"\log {symbol(name.removeprefix('log_'), index)}"
    base, *parts = re.findall(r"[A-Za-z]+|\d+", name)
    if len(base) > 1:
        base = f"\\{base}" if GREEK.fullmatch(base) else rf"\mathrm{{{base}}}"
    marks = [p if len(p) == 1 else rf"\mathrm{{{p}}}" for p in parts]
    below = ", ".join([*marks, *([index] if index else [])])
    return f"{base}_{{{below}}}" if below else base


def escaped(word: str) -> str:
    r"""A word for \mathrm: its underscores escaped."""
    return word.replace("_", r"\_").replace(".", " ")

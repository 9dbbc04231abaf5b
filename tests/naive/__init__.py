"""The papers' formulas for one head of one sequence, in numpy loops, without the language.

Every function takes q [time, d], k [time, d], v [time, d_v] and the inputs of that head by name,
`h` and `H` (which query head of how many), and gives the output [time, d_v].
"""

from collections.abc import Callable
from typing import Any

from naive import bias, normalisers, products, rotary


def formula(name: str) -> Callable[..., Any]:
    """The formula of a variant of the catalogue; KeyError where there is none."""
    for part in (bias, normalisers, products, rotary):
        if hasattr(part, name):
            found: Callable[..., Any] = getattr(part, name)
            return found
    raise KeyError(name)

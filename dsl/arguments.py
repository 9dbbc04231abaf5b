"""Checks of what is no value: counts, options and names that are fixed at compile time."""

import numbers
from collections.abc import Sequence

from gnomon.dsl.errors import VariantError
from gnomon.dsl.kinds import describe
from gnomon.dsl.nodes import Expr

_STRUCTURE = "it decides the structure of the kernel: pass a Python value, not an input of the call"


def _refusal(word: str, name: str, wanted: str, got: object, hint: str) -> VariantError:
    fix = _STRUCTURE if isinstance(got, Expr) else hint
    return VariantError(f"gn.{word} wants {name}= as {wanted}; got {describe(got)}", fix)


def whole(word: str, name: str, value: object, least: int, hint: str) -> int:
    """A whole number, at least `least`."""
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or int(value) < least:  # type: ignore[call-overload]
        raise _refusal(word, name, f"a whole number >= {least}", value, hint)
    return int(value)  # type: ignore[call-overload, no-any-return]


def real(word: str, name: str, value: object, hint: str, *, positive: bool = False) -> float:
    """A finite Python number, not negative where `positive`."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise _refusal(word, name, "a Python number", value, hint)
    number = float(value)
    if number != number or abs(number) == float("inf") or (positive and number < 0):
        raise _refusal(word, name, "a finite number" + " >= 0" * positive, value, hint)
    return number


def flag(word: str, name: str, value: object, hint: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise _refusal(word, name, "True or False", value, hint)
    return value


def one_of(word: str, name: str, value: object, known: Sequence[str], hint: str) -> str:
    """One of the known names."""
    if not isinstance(value, str) or value not in known:
        wanted = " or ".join(map(repr, known))
        raise _refusal(word, name, wanted, value, hint)
    return value


def coordinate_name(word: str, value: object) -> str | None:
    """The name of a coordinate, or None for the position in the sequence."""
    if value is None or (isinstance(value, str) and value.isidentifier()):
        return value
    raise _refusal(word, "coordinate", "a name such as 'y'", value, "gn.position('y')")

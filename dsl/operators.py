"""Python's operators on values and masks; what they mean is in `gnomon.dsl.build`."""

from typing import TYPE_CHECKING, ClassVar, NoReturn, Union

if TYPE_CHECKING:
    from gnomon.dsl.nodes import Expr, Mask

Operand = Union["Expr", int, float]


def _apply(fn: str, *operands: object) -> "Expr":
    from gnomon.dsl.build import pointwise  # build makes nodes, and nodes inherit from this file

    return pointwise(fn, *operands)


def _refuse(what: str, fix: str) -> NoReturn:
    from gnomon.dsl.errors import VariantError

    raise VariantError(what, fix)


def refuse_equality() -> NoReturn:
    """What `x == 0` says; between two values == asks whether the formulas are the same."""
    _refuse(
        "== compares formulas, not values",
        "whole numbers: gn.where(abs(x - n) < 1, a, b); masks: gn.same_document(ids), ...",
    )


class Arithmetic:
    """What Python's arithmetic, comparisons, `@`, `.T` and `abs` make of a value."""

    __slots__ = ()
    __array_ufunc__: ClassVar[None] = None  # a numpy number on the left gives way

    def __add__(self, other: Operand) -> "Expr":
        return _apply("+", self, other)

    def __radd__(self, other: Operand) -> "Expr":
        return _apply("+", other, self)

    def __sub__(self, other: Operand) -> "Expr":
        return _apply("-", self, other)

    def __rsub__(self, other: Operand) -> "Expr":
        return _apply("-", other, self)

    def __mul__(self, other: Operand) -> "Expr":
        return _apply("*", self, other)

    def __rmul__(self, other: Operand) -> "Expr":
        return _apply("*", other, self)

    def __truediv__(self, other: Operand) -> "Expr":
        return _apply("/", self, other)

    def __rtruediv__(self, other: Operand) -> "Expr":
        return _apply("/", other, self)

    def __floordiv__(self, other: Operand) -> "Expr":
        return _apply("//", self, other)

    def __rfloordiv__(self, other: Operand) -> "Expr":
        return _apply("//", other, self)

    def __pow__(self, other: Operand) -> "Expr":
        return _apply("**", self, other)

    def __rpow__(self, other: Operand) -> "Expr":
        return _apply("**", other, self)

    def __neg__(self) -> "Expr":
        return _apply("neg", self)

    def __abs__(self) -> "Expr":
        return _apply("abs", self)

    def __lt__(self, other: Operand) -> "Expr":
        return _apply("<", self, other)

    def __le__(self, other: Operand) -> "Expr":
        return _apply("<=", self, other)

    def __gt__(self, other: Operand) -> "Expr":
        return _apply(">", self, other)

    def __ge__(self, other: Operand) -> "Expr":
        return _apply(">=", self, other)

    def __matmul__(self, other: "Expr") -> "Expr":
        from gnomon.dsl.build import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: object) -> "Expr":
        from gnomon.dsl.build import matmul

        return matmul(other, self)

    @property
    def T(self) -> "Expr":  # noqa: N802  as in numpy and torch
        """The transposed matrix; blocks are transposed one by one."""
        from gnomon.dsl.build import transposed

        return transposed(self)

    def __mod__(self, other: object) -> NoReturn:
        _refuse("the language has no %", "write x - n * (x // n)")

    __rmod__ = __mod__

    def __and__(self, other: object) -> NoReturn:
        from gnomon.dsl.kinds import describe

        _refuse(
            f"& and | combine masks; got {describe(self)}",
            "give the condition to gn.where, or build the mask from gn.causal(), gn.window(n), ...",
        )

    __or__ = __rand__ = __ror__ = __and__

    def __bool__(self) -> NoReturn:
        _refuse(
            "a formula is written once for all pairs, so Python's if, and, or, min, max "
            "cannot look at a value",
            "choose per pair with gn.where(condition, a, b), gn.minimum, gn.maximum; "
            "combine masks with & and |",
        )

    def __float__(self) -> NoReturn:
        _refuse(
            "a formula is written once for all pairs, so Python's numbers, math and range "
            "cannot look at a value",
            "use the words: gn.exp, gn.log, gn.cos, gn.floor, ...",
        )

    __int__ = __index__ = __float__

    def __getitem__(self, index: object) -> NoReturn:
        from gnomon.dsl.build import refuse_index

        refuse_index(self)


class MaskAlgebra:
    """Masks are combined with `&` and `|`."""

    __slots__ = ()

    def __and__(self, other: "Mask") -> "Mask":
        from gnomon.dsl.build import combined

        return combined("and", self, other)

    def __or__(self, other: "Mask") -> "Mask":
        from gnomon.dsl.build import combined

        return combined("or", self, other)

    def __bool__(self) -> NoReturn:
        _refuse("a mask has no truth value", "combine masks with & and |")

    def _is_no_number(self, other: object) -> NoReturn:
        _refuse(
            "a mask is not a number and cannot enter the formula",
            "hide pairs with mask=, e.g. gn.softmax(logit, mask=gn.causal())",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _is_no_number
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _is_no_number

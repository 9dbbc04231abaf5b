"""How values meet: numbers become nodes, tokens are read where they are used, kinds are joined.

The words a user writes are in the files `words_*.py`; all of them make nodes through this file.
"""

import math
import numbers
from collections.abc import Sequence
from types import FunctionType
from typing import NoReturn

from gnomon.dsl.errors import LawError, VariantError
from gnomon.dsl.forms import form
from gnomon.dsl.kinds import describe, kind, spell_axes
from gnomon.dsl.nodes import (
    Apply,
    At,
    Constant,
    Contract,
    Diagonal,
    Expr,
    Mask,
    Outer,
    Place,
    Rotation,
)

ONE = 1.0


def as_expr(x: object, word: str = "", name: str = "") -> Expr:
    """A value of the language, or a Python number as a constant; `word` and `name` say of what."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, Mask):
        raise VariantError(
            "a mask is not a number and cannot enter the formula",
            "hide pairs with mask=, e.g. gn.softmax(logit, mask=gn.causal())",
        )
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        who = (f"gn.{word}" if word.isidentifier() else f"'{word}'") if word else "a formula"
        what = f"a number or a value of the language{f' as {name}' if name else ''}"
        raise VariantError(
            f"{who} wants {what}; got {describe(x)}",
            _call_it(x) or "tensors enter as annotated arguments, e.g. slope: gn.Param[gn.Head]",
        )
    if isinstance(x, numbers.Integral):
        return Constant(int(x))
    if not math.isfinite(x):
        raise LawError(
            "hide pairs with the mask",
            f"{x} in a formula leaves no rows to skip and NaN in empty ones",
            "put the condition into mask=, e.g. gn.causal() & gn.window(n)",
        )
    return Constant(float(x))


def _call_it(x: object) -> str:
    return f"call it: gn.{x.__name__}()" if isinstance(x, FunctionType) else ""


def at(x: Expr, place: Place) -> Expr:
    """A token value read at the query or at the key; anything else as it is."""
    if kind(x).place != "token":
        return x
    if isinstance(x, Rotation):
        return Rotation(at(x.angle, place), x.layout)
    return At(x, place)


def settle(values: Sequence[Expr]) -> list[Expr]:
    """Token values beside a row (column) value are read at the query (key)."""
    places = {kind(x).place for x in values} - {"constant"}
    if "token" not in places or places == {"token"}:
        return list(values)
    if "pair" in places or {"row", "column"} <= places:
        token = next(x for x in values if kind(x).place == "token")
        raise LawError(
            "say where",
            "a token value beside a pair value could be read at the query or at the key; "
            f"got {describe(token)}",
            "write gn.at_query(x) or gn.at_key(x); a sum over the tokens between them is "
            "gn.decay(x)",
        )
    return [at(x, "row" if "row" in places else "column") for x in values]


def pointwise(fn: str, *operands: object) -> Expr:
    """`fn` applied to values of one place: places and heads join, scalars broadcast."""
    values = [as_expr(x, fn) for x in operands]
    kinds = [kind(x) for x in values]
    _refuse_conditions(fn, values)
    if any(k.is_output for k in kinds):
        refuse_pair_terms(fn, values)
    if any(len(k.axes) >= 2 for k in kinds):
        return _matrix(fn, values)
    values = settle(values)
    join_widths(fn, values)
    refuse_pair_vectors(values)
    return Apply(fn, tuple(values))


def _refuse_conditions(fn: str, values: Sequence[Expr]) -> None:
    numbers_only = values[1:] if fn == "where" else values
    if any(kind(x).element == "bool" for x in numbers_only):
        raise VariantError(
            f"'{fn}' wants numbers; got a condition",
            "gn.where(condition, a, b) turns a condition into numbers",
        )


def refuse_pair_terms(fn: str, values: Sequence[Expr]) -> None:
    """An output meets outputs, row values, tokens (read at the query) and constants."""
    for x in values:
        if kind(x).place in ("pair", "column"):
            raise LawError(
                "values are weighted, not modulated",
                "a term of the pair (i, j) cannot act after the weights have met the values; "
                f"got an attention output {fn} {describe(x)}",
                "value-side terms (Shaw's value term, Parallax) need a second accumulator; "
                "the formula of the pair belongs before gn.softmax",
            )


def join_widths(what: str, values: Sequence[Expr]) -> None:
    """Scalars broadcast; vectors must have equal widths."""
    shapes = list(dict.fromkeys(kind(x).axes for x in values if kind(x).axes))
    if len(shapes) > 1:
        a, b = shapes[:2]
        raise VariantError(
            f"'{what}' wants equal widths; got {spell_axes(a)} and {spell_axes(b)}",
            "cut with gn.split or join with gn.concat",
        )


def refuse_pair_vectors(values: Sequence[Expr]) -> None:
    """Row channels never meet a column or a pair outside a dot."""
    places = {kind(x).place for x in values}
    vectors = [x for x in values if kind(x).axes and kind(x).place in ("row", "column")]
    if vectors and ("pair" in places or {"row", "column"} <= places):
        raise LawError(
            "no pair vectors",
            "a row vector and a column vector meet only in a dot; "
            f"got {' and '.join(describe(x) for x in values)}",
            "write gn.dot(q, k); a factor of the pair multiplies the dot, not its vectors",
        )


# the forms that + and - make; all other sums of matrices are refused
_SUMS = {("diagonal", "outer"), ("outer", "outer"), ("dense", "dense")}


def _matrix(fn: str, values: list[Expr]) -> Expr:
    """Sums of matrices, a scalar times a matrix, the negative of a matrix."""
    matrices = [x for x in values if len(kind(x).axes) >= 2]
    if fn == "*" and len(values) == 2 and len(matrices) == 1:
        return _scaled(next(x for x in values if x is not matrices[0]), matrices[0])
    if any(len(kind(x).axes) == 1 for x in values):
        raise VariantError(f"'{fn}' cannot mix a vector and a matrix", "apply a matrix with x @ M")
    if fn == "*":
        raise VariantError("matrices are multiplied with @", "write A @ B")
    if fn == "neg":
        return _negative(matrices[0])
    if fn in ("+", "-") and len(matrices) == 2:
        return _matrix_sum(fn, matrices)
    if fn == "detach":
        return Apply(fn, tuple(values))
    raise VariantError(
        f"'{fn}' has no meaning for matrices",
        "matrices know +, -, scalar *, @, .T and gn.expm",
    )


def _matrix_sum(fn: str, matrices: list[Expr]) -> Expr:
    first, second = (form(m) for m in matrices)
    if not is_identity(matrices[0]):
        for m in matrices:
            refuse_repeats(m)
    if (first, second) not in _SUMS:
        raise VariantError(
            f"cannot {'add' if fn == '+' else 'subtract'} matrices of the forms "
            f"{first} and {second}",
            "a transport is gn.identity() or gn.diagonal(log=g), minus beta * gn.outer(w, u); "
            "several per token multiply with @",
        )
    join_widths(fn, matrices)
    return Apply(fn, tuple(_settle_matrices(matrices)))


def _settle_matrices(values: list[Expr]) -> list[Expr]:
    """Beside a matrix of the sequence a key's value stays one value for every token."""
    places = {kind(x).place for x in values}
    return values if places <= {"token", "column", "constant"} else settle(values)


def _scaled(factor: Expr, matrix: Expr) -> Expr:
    """One scalar on an outer product becomes its scale; generators take any scalar."""
    shape = form(matrix)
    if isinstance(matrix, Outer):
        lead = kind(matrix.w).axes[:-1]
        if kind(factor).axes in ((), lead):
            along("outer", factor)
            known = matrix.scale
            is_one = isinstance(known, Constant) and known.value == ONE
            scale = factor if is_one else pointwise("*", factor, known)
            return Outer(matrix.w, matrix.u, scale)
    if kind(factor).axes:
        raise VariantError("'*' cannot mix a vector and a matrix", "apply a matrix with x @ M")
    if shape not in ("outer", "dense"):
        raise LawError(
            "decay stands outside",
            f"a scalar times a {shape} transport",
            "a scalar decay of the score is written * gn.exp(gn.decay(log_a))",
        )
    return Apply("*", tuple(_settle_matrices([factor, matrix])))


def _negative(matrix: Expr) -> Expr:
    if isinstance(matrix, Outer):
        return _scaled(Constant(-ONE), matrix)
    if form(matrix) != "dense":
        raise VariantError(
            f"a {form(matrix)} transport has no negative here",
            "matrices know +, -, scalar *, @, .T and gn.expm",
        )
    return Apply("neg", (matrix,))


def transposed(x: object) -> Expr:
    """M.T; blocks are transposed one by one."""
    x = as_expr(x)
    refuse_repeats(x)
    if len(kind(x).axes) < 2:
        raise VariantError(
            f".T wants a matrix; got {describe(x)}", "a vector has no transpose here"
        )
    return Apply("transpose", (x,))


def matmul(x: object, m: object) -> Expr:
    """A row vector times a matrix, or a matrix times a matrix."""
    x, m = as_expr(x, "@"), as_expr(m, "@")
    kx, km = kind(x), kind(m)
    if "pair" in (kx.place, km.place):
        if kx.place == "pair" and kx.axes:
            raise LawError(
                "no pair vectors",
                "channels of a pair meet only in gn.channel_sum; "
                f"got {describe(x)} @ {describe(m)}",
                "map the channels before they meet the pair, or end with gn.channel_sum(x)",
            )
        raise LawError(
            "heads do not meet",
            "a score is a number of one pair in one head; @ would mix heads or pairs",
            "talking heads and DAPE need all heads of a tile at once; they are not in the grammar",
        )
    if kx.is_output or km.is_output:
        raise VariantError(
            "an attention output is projected outside the kernel; got an output beside @",
            "apply the output projection in torch, after the call",
        )
    if len(kx.axes) >= 2 and len(km.axes) >= 2:
        _need_inner(x, m)
        return Contract(*_settle_matrices([x, m]))
    if len(kx.axes) != 1 or len(km.axes) < 2:
        raise VariantError(
            f"x @ M wants a vector and a matrix; got {describe(x)} and {describe(m)}",
            "declare M as gn.Param[gn.Dim, gn.Dim]",
        )
    _need_inner(x, m)
    values = settle([x, m])
    refuse_pair_vectors(values)
    return Contract(*values)


def _need_inner(x: Expr, m: Expr) -> None:
    """The channels of x are the rows of m; blocks act on their own channels."""
    left, right = kind(x).axes, kind(m).axes
    refuse_repeats(x)
    refuse_repeats(m)
    if len(right) == 3 or len(left) == 3:
        if len(right) == 3:
            need_square("@", m)
        if len(left) > 1 and left != right:
            raise VariantError(
                f"blocks are multiplied with equal blocks; got {spell_axes(left)} and "
                f"{spell_axes(right)}",
                "declare both with the same Block and Sub axes",
            )
        return
    if left[-1] != right[0]:
        raise VariantError(
            "x @ M wants as many rows in M as x has channels; got "
            f"{spell_axes(left[-1:])} and {spell_axes(right[:1])}",
            "write M.T, or cut x with gn.split",
        )


def along(word: str, x: object, name: str = "") -> Expr:
    """What runs along the key sequence: token, column and constant values."""
    x = as_expr(x, word, name)
    k = kind(x)
    if k.place == "pair":
        raise LawError(
            "no sum over queries",
            f"gn.{word} of a pair value would run down a column of the score matrix",
            "selective attention needs every earlier query's scores first; sums towards the "
            "query are gn.score_scan(x, inclusive=...)",
        )
    if k.place == "row":
        raise VariantError(
            f"gn.{word} runs along the key sequence; got {describe(x)}, which exists at queries "
            "only (they may be fewer than the keys)",
            "declare the input as gn.Token[...], one value for every token",
        )
    if k.element == "bool":
        raise VariantError(
            f"gn.{word} wants numbers; got a condition",
            "gn.where(condition, a, b) turns a condition into numbers",
        )
    return x


def need_vector(word: str, x: object, name: str = "") -> Expr:
    """A vector that is no attention output."""
    x = as_expr(x, word, name)
    if kind(x).is_output:
        raise VariantError(
            f"gn.{word} of an attention output", "outputs may be scaled, gated, normed and added"
        )
    if len(kind(x).axes) != 1:
        raise VariantError(
            f"gn.{word} wants a vector; got {describe(x)}",
            "scalars need no such word; a matrix is applied with x @ M",
        )
    return x


def is_identity(m: Expr) -> bool:
    """Whether m is gn.identity()."""
    return isinstance(m, Diagonal) and m.log == Constant(0.0)


def refuse_repeats(m: Expr) -> None:
    """Outer products with a Repeat axis are factors I - w u^T of one product, nothing else."""
    if isinstance(m, Outer) and len(kind(m.w).axes) == 2:
        raise VariantError(
            "an outer product for each repeat is a factor of a product, not one matrix",
            "write gn.identity() - beta * gn.outer(w, u), or gn.householder(w, beta); "
            "a decay multiplies it: ... @ gn.diagonal(log=g)",
        )


def need_square(word: str, m: Expr) -> None:
    """A matrix, or blocks, with as many rows as columns."""
    axes = kind(m).axes
    if axes[-1] != axes[-2]:
        raise VariantError(
            f"gn.{word} wants a square matrix; got {describe(m)}".replace("gn.@", "@ with blocks"),
            "declare it as gn.Param[gn.Dim, gn.Dim], blocks as gn.Param[Block, Sub, Sub]",
        )


def refuse_index(x: object) -> NoReturn:
    """What x[...] and unpacking say."""
    if isinstance(x, Expr) and kind(x).place == "pair":
        raise LawError(
            "one pair at a time",
            "the score of a pair cannot look at its neighbours' scores",
            "a convolution over the score map (DAPE-V2, MTA) needs halos of other tiles; "
            "it is not in the grammar",
        )
    raise VariantError(
        "a value is not indexed with [ ]",
        "channels: gn.split(x, share); tables: gn.lookup(table, index)",
    )


def as_mask(x: object) -> Mask:
    """A mask, never a condition or a tensor."""
    if not isinstance(x, Mask):
        raise VariantError(
            f"a mask was expected; got {describe(x)}",
            _call_it(x)
            or "masks: gn.causal(), gn.window(n), gn.same_document(ids), gn.first_keys(n), "
            "gn.everything(); combine with & and |",
        )
    return x


def combined(rule: str, a: object, b: object) -> Mask:
    """Both, or either, of two masks."""
    return Mask(rule, (as_mask(a), as_mask(b)))

"""Words for indices, extents and maps of one token."""

from fractions import Fraction

from gnomon.dsl.arguments import coordinate_name, flag, one_of, real
from gnomon.dsl.axes import Axis, Entry, Head, KVHead, width_of_axis
from gnomon.dsl.build import (
    along,
    as_expr,
    as_mask,
    at,
    need_vector,
    pointwise,
    refuse_pair_vectors,
    settle,
)
from gnomon.dsl.errors import LawError, VariantError
from gnomon.dsl.kinds import describe, kind, spell
from gnomon.dsl.nodes import (
    Builtin,
    Concat,
    Contract,
    Expr,
    Lookup,
    Mask,
    Place,
    PrefixSum,
    Rotation,
    Slice,
    Sum,
    Width,
)
from gnomon.dsl.operators import Operand

TINY = 1e-30  # keeps 1 / |w|^2 finite at w = 0, far below any real square


def position(coordinate: str | None = None) -> Expr:
    """The position of a token (0, 1, ... in each sequence by default), or one coordinate of it."""
    return Builtin("position", coordinate_name("position", coordinate))


def distance(coordinate: str | None = None) -> Expr:
    """The position at i minus the position at j, signed; under gn.causal() it is >= 0."""
    p = Builtin("position", coordinate_name("distance", coordinate))
    return pointwise("-", at(p, "row"), at(p, "column"))


def length() -> Expr:
    """The number of keys of this sequence at run time."""
    return Builtin("length")


def head() -> Expr:
    """The number h = 0 ... H - 1 of the query head."""
    return Builtin("head")


def head_count() -> Expr:
    """The number H of query heads."""
    return Builtin("head_count")


def _width_of(word: str, x: object) -> Width:
    if isinstance(x, type) and issubclass(x, Axis):
        if x in (Entry, Head, KVHead):
            raise VariantError(
                f"gn.{word} wants the width of channels; gn.{x.__name__} counts none",
                "pass the vector itself; the number of heads is gn.head_count()",
            )
        return width_of_axis(x)
    if not isinstance(x, Expr) or len(kind(x).axes) != 1:
        raise VariantError(
            f"gn.{word} wants a vector or an axis; got {describe(x)}",
            "pass q, k or another vector, or an axis class such as gn.Dim",
        )
    return kind(x).axes[0]


def dim(x: Expr | type[Axis]) -> Expr:
    """The width of a vector or an axis."""
    return Builtin("dim", _width_of("dim", x))


def rsqrt_dim(x: Expr | type[Axis]) -> Expr:
    """dim(x)^(-1/2)."""
    return pointwise("**", Builtin("dim", _width_of("rsqrt_dim", x)), -0.5)


def channel(x: Expr | type[Axis]) -> Expr:
    """The vector 0, 1, ..., width - 1."""
    return Builtin("channel", _width_of("channel", x))


def plane(x: Expr | type[Axis]) -> Expr:
    """The vector 0, 1, ..., width / 2 - 1."""
    return Builtin("plane", _width_of("plane", x))


def frequencies(x: Expr | type[Axis], base: Operand = 10000.0) -> Expr:
    """base^(-2 plane(x) / dim(x)), one for each plane of x."""
    width = _width_of("frequencies", x)
    exponent = pointwise("/", pointwise("*", -2, Builtin("plane", width)), Builtin("dim", width))
    return pointwise("**", base, exponent)


def visible_count(mask: Mask) -> Expr:
    """How many keys the mask shows to row i."""
    return Builtin("visible_count", as_mask(mask))


def split(x: Expr, share: float | Fraction = 0.5) -> tuple[Expr, Expr]:
    """The first share of the channels, and the rest."""
    x = need_vector("split", x)
    hint = "0.5 halves the channels"
    exact = share if isinstance(share, Fraction) else Fraction(real("split", "share", share, hint))
    exact = exact.limit_denominator(4096)
    if not 0 < exact < 1:
        raise VariantError(
            f"gn.split wants the share of the first part, between 0 and 1; got {share}", hint
        )
    width = kind(x).axes[0]
    cut = width.scaled(exact)
    return Slice(x, Width(), cut), Slice(x, cut, width)


def concat(*parts: Expr) -> Expr:
    """Channels one after another."""
    if not parts:
        raise VariantError("gn.concat wants at least one vector", "gn.concat(a, b)")
    values = settle([need_vector("concat", p) for p in parts])
    refuse_pair_vectors(values)
    return Concat(tuple(values))


def rotation(angle: Expr, layout: str = "half") -> Expr:
    """The matrix that turns each plane by its angle; as a transport, step s turns at token s.

    x @ rotation(angle) is rotate(x, angle).
    """
    angle = need_vector("rotation", angle)
    if kind(angle).place == "pair":
        raise VariantError(
            "an angle of the pair cannot rotate a vector of one token",
            "use gn.cos_turns(...) on the score (TAPA)",
        )
    hint = "'half' turns (c, c + d/2), 'pairs' turns (2c, 2c + 1); checkpoints fix the layout"
    return Rotation(angle, one_of("rotation", "layout", layout, ("half", "pairs"), hint))


def rotate(x: Expr, angle: Expr, layout: str = "half") -> Expr:
    """X @ rotation(angle): each plane of x turned by its angle."""
    x, turn = need_vector("rotate", x, "x"), rotation(angle, layout)
    if kind(turn).axes[0] != kind(x).axes[0]:
        raise VariantError(
            "gn.rotate wants one angle for two channels; got "
            f"{spell(kind(angle).axes[0])} angles for {spell(kind(x).axes[0])} channels",
            "rotate a part: a, b = gn.split(q, share); gn.concat(gn.rotate(a, angle), b)",
        )
    values = settle([x, turn])
    refuse_pair_vectors(values)
    return Contract(*values)


def channel_sum(x: Expr) -> Expr:
    """The sum over the channels of a vector."""
    return Sum(need_vector("channel_sum", x))


def rms_norm(x: Expr, weight: Operand = 1.0, eps: float = 1e-6) -> Expr:
    """X / sqrt(mean(x^2) + eps) * weight; also of an attention output."""
    eps = real("rms_norm", "eps", eps, "1e-6", positive=True)
    x = x if isinstance(x, Expr) and kind(x).is_output else need_vector("rms_norm", x)
    mean = pointwise("/", Sum(pointwise("*", x, x)), Builtin("dim", kind(x).axes[0]))
    return pointwise("*", pointwise("*", x, pointwise("rsqrt", mean + eps)), weight)


def l2_norm(x: Expr) -> Expr:
    """X / |x|; the zero vector stays 0."""
    x = need_vector("l2_norm", x)
    square = Sum(pointwise("*", x, x))
    return pointwise("*", x, pointwise("rsqrt", pointwise("maximum", square, TINY)))


def lookup(table: Expr, *index: Operand) -> Expr:
    """Entry `index` of the first axes of a table; indices are clamped to the table."""
    table = as_expr(table, "lookup", "table")
    k = kind(table)
    if k.is_output:
        raise VariantError(
            "gn.lookup of an attention output", "outputs may be scaled, gated, normed and added"
        )
    if not index or len(k.axes) < len(index):
        wanted = f"{len(index)} axes" if len(index) > 1 else "an axis"
        raise VariantError(
            f"gn.lookup wants a table with {wanted} to choose from; got {describe(table)}",
            "declare it as gn.Param[gn.Head, gn.Entry], and give one index an axis",
        )
    if k.place == "pair":
        raise LawError(
            "no pair vectors",
            f"gn.lookup cannot index into {describe(table)}",
            "tables belong to a head, a row or a column",
        )
    values = settle([table, *(_index(i) for i in index)])
    if len(k.axes) > len(index):
        refuse_pair_vectors(values)
    return Lookup(values[0], tuple(values[1:]))


def _index(x: object) -> Expr:
    i = as_expr(x, "lookup", "index")
    if kind(i).element != "int" or kind(i).axes:
        reals = " of reals" if kind(i).element == "real" else ""
        raise VariantError(
            f"gn.lookup wants an integer index; got {describe(i)}{reals}",
            "round with gn.floor(x), or read between entries with gn.interpolate(table, x)",
        )
    return i


def interpolate(table: Expr, x: Operand) -> Expr:
    """Between the entries floor(x) and floor(x) + 1; differentiable in x."""
    low = pointwise("floor", x)
    weight = pointwise("-", x, low)
    below = pointwise("*", lookup(table, low), pointwise("-", 1, weight))
    return pointwise("+", below, pointwise("*", lookup(table, pointwise("+", low, 1)), weight))


def at_query(x: Operand) -> Expr:
    """A token value read at the query i."""
    return _read("at_query", "row", x)


def at_key(x: Operand) -> Expr:
    """A token value read at the key j."""
    return _read("at_key", "column", x)


def _read(word: str, place: Place, x: object) -> Expr:
    x = as_expr(x, word)
    if kind(x).place not in ("token", "constant"):
        raise VariantError(
            f"gn.{word} reads a token value at one place; got {describe(x)}, "
            "which already has its place",
            f"drop gn.{word}",
        )
    return at(x, place)


def prefix_sum(x: Operand, inclusive: bool = True) -> Expr:
    """The sum over s <= t, or over s < t, in fp32 or better."""
    x = along("prefix_sum", x)
    hint = "inclusive=False leaves the token's own value out"
    inclusive = flag("prefix_sum", "inclusive", inclusive, hint)
    if kind(x).place == "constant":
        raise VariantError("gn.prefix_sum of a constant", "write gn.position() * x")
    if len(kind(x).axes) > 1:
        raise VariantError(
            f"gn.prefix_sum wants scalars or vectors; got {describe(x)}",
            "products of matrices along the sequence are gn.dot(q, k, through=M)",
        )
    return PrefixSum(x, inclusive)

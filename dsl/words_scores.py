"""Words for matrices, transports, scores, masks and normalisers."""

from gnomon.dsl.arguments import flag, one_of, real, whole
from gnomon.dsl.build import (
    along,
    as_expr,
    as_mask,
    at,
    need_square,
    need_vector,
    pointwise,
    refuse_repeats,
)
from gnomon.dsl.errors import LawError, VariantError
from gnomon.dsl.forms import form
from gnomon.dsl.kinds import describe, kind, spell
from gnomon.dsl.nodes import (
    Apply,
    Constant,
    Decay,
    Diagonal,
    Dot,
    Expr,
    Mask,
    MatrixExp,
    Outer,
    Ratio,
    ScoreScan,
    Softmax,
    StickBreaking,
    Sum,
    WeightedSum,
    Width,
)
from gnomon.dsl.operators import Operand
from gnomon.dsl.words_maps import TINY

# ---- along the sequence, matrices


def decay(x: Operand) -> Expr:
    """The sum of x_s over s in (j, i]: the query's own step counts, the key's does not."""
    x = along("decay", x)
    if kind(x).axes:
        raise VariantError(
            f"gn.decay wants one number a token; got {describe(x)}",
            "a decay per channel acts on the channels: gn.dot(q, k, through=gn.diagonal(log=g))",
        )
    return Decay(x)


def identity(x: Expr | None = None) -> Expr:
    """I, of the width of x (of q and k where x is not given)."""
    width = Width.of("d") if x is None else kind(need_vector("identity", x)).axes[0]
    return Diagonal(Constant(0.0), width)


def diagonal(*, log: Expr) -> Expr:
    """Diag(exp(log)), from the logarithms of the factors of the channels."""
    log = along("diagonal", log, "log")
    if len(kind(log).axes) != 1:
        raise VariantError(
            f"gn.diagonal wants one number a channel; got {describe(log)}",
            "a scalar decay of the score is written * gn.exp(gn.decay(log_a))",
        )
    return Diagonal(log, kind(log).axes[0])


def outer(w: Expr, u: Expr) -> Expr:
    """W u^T; with a Repeat axis one for each repeat, index 0 acts first."""
    w, u = along("outer", w, "w"), along("outer", u, "u")
    a, b = kind(w).axes, kind(u).axes
    if not (1 <= len(a) == len(b) <= 2 and a[:-1] == b[:-1]):
        raise VariantError(
            f"gn.outer wants two vectors; got {describe(w)} and {describe(u)}",
            "declare them as gn.Token[gn.KVHead, gn.Dim]",
        )
    return Outer(w, u, Constant(1.0))


def householder(w: Expr, beta: Operand, normalize: bool = False) -> Expr:
    """I - beta w w^T, w as given; `normalize` divides by |w|^2. A Repeat axis: their product."""
    w, beta = along("householder", w, "w"), along("householder", beta, "beta")
    axes = kind(w).axes
    if not 1 <= len(axes) <= 2:
        raise VariantError(
            f"gn.householder wants a vector w; got {describe(w)}",
            "declare w: gn.Token[gn.KVHead, gn.Dim]",
        )
    if kind(beta).axes and kind(beta).axes != axes[:-1]:
        raise VariantError(
            f"gn.householder wants one beta for each w; got beta as {describe(beta)} "
            f"and w as {describe(w)}",
            "declare beta: gn.Token[gn.KVHead]",
        )
    if flag("householder", "normalize", normalize, "True gives exact reflections at beta = 2"):
        square = Sum(Apply("*", (w, w)))  # made as a node: the words multiply no lists of vectors
        beta = pointwise("/", beta, pointwise("maximum", square, TINY))
    return Apply("-", (Diagonal(Constant(0.0), axes[-1]), Outer(w, w, beta)))


def expm(generator: Expr) -> Expr:
    """The matrix exponential, of one matrix or of each block."""
    generator = as_expr(generator, "expm", "generator")
    refuse_repeats(generator)
    if len(kind(generator).axes) < 2:
        raise VariantError(
            f"gn.expm wants a matrix; got {describe(generator)}",
            "a skew generator: A - A.T, or gn.outer(a, b) - gn.outer(b, a)",
        )
    need_square("expm", generator)
    return MatrixExp(generator)


# ---- scores


def dot(a: Expr, b: Expr, through: Expr | None = None) -> Expr:
    """a_i . b_j; through=T: a_i T_i T_{i-1} ... T_{j+1} . b_j.

    Raises:
        VariantError: the first vector is not read at the query, the second not at the key.
        LawError: what stands in through= is no transport, or an output enters a score.
    """
    for x in (a, b):
        if isinstance(x, Expr) and kind(x).is_output:
            raise LawError(
                "one attention at a time",
                "an attention output cannot enter another score",
                "compute it first and pass it as an input; a triangular solve through softmax "
                "(DeltaFormer) is not in the grammar",
            )
    a, b = need_vector("dot", a, "a"), need_vector("dot", b, "b")
    ka, kb = kind(a), kind(b)
    if ka.place in ("column", "pair") or kb.place in ("row", "pair"):
        raise VariantError(
            "gn.dot reads its first vector at the query and its second at the key; "
            f"got {describe(a)} and {describe(b)}",
            "write gn.dot(q, k); within one token write gn.channel_sum(x * y)",
        )
    if ka.axes != kb.axes:
        raise VariantError(
            f"gn.dot wants equal widths; got {spell(ka.axes[0])} and {spell(kb.axes[0])}",
            "cut with gn.split or join with gn.concat",
        )
    if through is not None:
        _check_transport(through, a)
    return Dot(at(a, "row"), at(b, "column"), through)


def _check_transport(through: object, a: Expr) -> None:
    if isinstance(through, (tuple, list)):
        raise LawError(
            "one transport a dot",
            "through= takes one transport",
            "A @ B multiplies them token by token into one; two ordered products of their own "
            "cannot both stand between q and k",
        )
    if not isinstance(through, Expr) or len(kind(through).axes) < 2:
        raise VariantError(
            f"through= wants a transport; got {describe(through)}",
            "gn.householder(w, beta), gn.diagonal(log=g), gn.rotation(step), "
            "gn.identity() - beta * gn.outer(w, u)",
        )
    k = kind(through)
    if k.place not in ("token", "constant", "column"):
        raise LawError(
            "transports run along the sequence",
            f"through= wants a matrix for every token; got {describe(through)}",
            "build it from gn.Token inputs, from k or from constants, not from q",
        )
    _check_form(through)
    need_square("dot", through)
    if len(k.axes) == 2 and k.axes[0] != kind(a).axes[0]:
        raise VariantError(
            f"the transport acts on {spell(k.axes[0])} channels, the dot has "
            f"{spell(kind(a).axes[0])}",
            "give both the same channels (gn.split)",
        )


def _check_form(through: Expr) -> None:
    if form(through) == "outer":
        raise LawError(
            "transports are near the identity",
            "an outer product alone forgets everything but one direction",
            "write gn.identity() - beta * gn.outer(w, u)",
        )
    if (
        form(through) == "dense"
        and kind(through).place != "constant"
        and len(kind(through).axes) == 2
    ):
        raise LawError(
            "transports are thin",
            "a full d x d matrix for each token would cost O(T d^2) memory",
            "use diagonal minus outer products, or small blocks with gn.expm on "
            "gn.Token[gn.KVHead, Block, Sub, Sub]",
        )


def score_scan(x: Expr, *, inclusive: bool) -> Expr:
    """The sum of x_il over visible keys l > j (inclusive: l >= j), up to the last visible key."""
    x = as_expr(x, "score_scan", "x")
    if kind(x).place != "pair" or kind(x).axes or kind(x).element == "bool":
        raise VariantError(
            f"gn.score_scan sums a pair value over the keys between j and i; got {describe(x)}",
            "sums of token values are gn.decay(x) or gn.prefix_sum(x)",
        )
    hint = "inclusive=False leaves the key's own value out"
    return ScoreScan(x, flag("score_scan", "inclusive", inclusive, hint))


# ---- normalisers


def _score(word: str, x: object) -> Expr:
    x = as_expr(x, word)
    k = kind(x)
    if k.is_output:
        raise LawError(
            "one attention at a time",
            "an attention output cannot be weighted again",
            "combine outputs with + - * and gn.rms_norm",
        )
    if k.axes:
        raise LawError(
            "a score is a number",
            f"gn.{word} wants a pair scalar; got {describe(x)}",
            "reduce the vector with gn.channel_sum(x)",
        )
    if k.place != "pair" or k.element == "bool":
        raise VariantError(
            f"gn.{word} wants a pair scalar; got {describe(x)}",
            "a score needs q and k: gn.dot(q, k)",
        )
    return x


def softmax(logit: Expr, *, mask: Mask, sink: Operand | None = None, values: object = None) -> Expr:
    """o_i = sum_j e^(s_ij) v_j / (e^sink + sum_j e^(s_ij)); sink=None has no such term."""
    if values is not None:
        raise LawError(
            "values come from outside",
            "a variant says how v is weighted, not what v is",
            "DeltaFormer's values solve a triangular system through the softmax; "
            "it is not in the grammar",
        )
    logit, mask = _score("softmax", logit), as_mask(mask)
    if sink is None:
        return Softmax(logit, None, mask)
    sink = as_expr(sink, "softmax", "sink")
    k = kind(sink)
    if k.axes or k.place not in ("constant", "row") or k.is_output or k.element == "bool":
        raise VariantError(
            "sink= is a logit of the row: a number, gn.Param[gn.Head] or a row scalar; "
            f"got {describe(sink)}",
            "read a token value with gn.at_query(x); a visible token is kept by gn.first_keys(n)",
        )
    return Softmax(logit, sink, mask)


def weighted_sum(weight: Expr, *, mask: Mask) -> Expr:
    """o_i = sum_j weight_ij v_j: linear and sigmoid attention."""
    return WeightedSum(_score("weighted_sum", weight), as_mask(mask))


def ratio(numerator: Expr, denominator: Expr, *, mask: Mask, at_least: float = 0.0) -> Expr:
    """o_i = sum_j n_ij v_j / max(abs(sum_l d_il), at_least)."""
    hint = "the least size of the denominator, e.g. 1.0"
    least = real("ratio", "at_least", at_least, hint, positive=True)
    return Ratio(_score("ratio", numerator), _score("ratio", denominator), as_mask(mask), least)


def stick_breaking(logit: Expr, *, mask: Mask, order: str = "right_to_left") -> Expr:
    """sigmoid(s_ij) times the product of (1 - sigmoid(s_il)) over visible l nearer than j."""
    known = ("right_to_left", "nearest_first")
    one_of("stick_breaking", "order", order, known, "the two agree under a causal mask")
    return StickBreaking(_score("stick_breaking", logit), as_mask(mask), order)


# ---- masks


def causal(*, strict: bool = False) -> Mask:
    """J <= i, or j < i."""
    return Mask("causal", (flag("causal", "strict", strict, "strict=True hides j = i too"),))


def window(size: int) -> Mask:
    """abs(i - j) < size, counted in memory order."""
    return Mask("window", (whole("window", "size", size, 1, "window(1) shows j = i alone"),))


def everything() -> Mask:
    """All pairs (encoders)."""
    return Mask("everything")


def first_keys(count: int) -> Mask:
    """J < count of the sequence: sink tokens, a prefix."""
    return Mask("first_keys", (whole("first_keys", "count", count, 0, "first_keys(4)"),))


def same_document(ids: Expr) -> Mask:
    """ids_i = ids_j; hides pairs only, positions run on (packed sequences are cu_seqlens)."""
    k = kind(ids) if isinstance(ids, Expr) else None
    if k is None or k.place != "token" or k.element != "int" or k.axes:
        raise VariantError(
            f"gn.same_document wants an integer a token; got {describe(ids)}",
            "declare ids: gn.Token[int]",
        )
    return Mask("same_document", (ids,))


def selected_blocks(blocks: Expr, *, size: int) -> Mask:
    """The block of j, of `size` keys, is among those listed for i; no gradient through it."""
    k = kind(blocks) if isinstance(blocks, Expr) else None
    if k is None or k.place != "row" or k.element != "int" or len(k.axes) != 1:
        raise VariantError(
            f"gn.selected_blocks wants a list of block numbers a query; got {describe(blocks)}",
            "declare blocks: gn.Query[gn.KVHead, gn.Entry, int]",
        )
    hint = "the keys of one block, e.g. size=64"
    return Mask("selected_blocks", (blocks, whole("selected_blocks", "size", size, 1, hint)))


def negligible(bias: Expr, *, log_eps: float = -10.0, bound: float | None = None) -> Mask:
    """Hides tiles whose weights together stay below e^log_eps of a row (ACP, FoX).

    The rest of the logit is bounded by norms; where it cannot be, `bound` must say what
    abs(logit - bias) never exceeds.
    """
    if not isinstance(bias, Decay):
        raise VariantError(
            f"gn.negligible skips keys behind a decay; got {describe(bias)}",
            "pass the value of gn.decay(log_f) that stands in the logit",
        )
    eps = real("negligible", "log_eps", log_eps, "a logarithm of a small share, e.g. -10.0")
    if bound is None:
        return Mask("negligible", (bias, eps))
    hint = "a number that abs(logit - bias) never exceeds"
    return Mask("negligible", (bias, eps, real("negligible", "bound", bound, hint, positive=True)))

"""Canonical forms: two spellings of one formula become one graph, and so have one digest.

Every rule is one line, before -> after; P is prefix_sum(x), pos is position(), c is a constant.

    at_query(P) - at_key(P)           -> decay(x)          under masks that look back
    decay(c)                          -> c * distance()
    dot(a, b, through=rotation(x))    -> dot(a @ R, b @ R)  R = rotation(P), or rotation(pos * c)
    dot(a, b, through=expm(G))        -> dot(a @ E, b @ E)  E = expm(pos * G), G constant and skew
    dot(a, b, through=identity())     -> dot(a, b)
    x @ identity()                    -> x
    cos(2 pi x)                       -> cos_turns(x)       with the literal 2 pi
    1 + 2                             -> 3                  numbers are folded
    x * 1, x + 0, x ** 1, --x         -> x
    x / sqrt(c)                       -> x * c ** -0.5      c from the shapes alone
    b * a, b + a                      -> a * b, a + b       sorted: gnomon.dsl.algebra
    maximum(b, a), x > y              -> maximum(a, b), y < x
    f(at_query(a), at_query(b), c)    -> at_query(f(a, b, c))
    x[0:n], (x[0:n], x[n:])           -> x                  slices that cut nothing
    causal() & everything(), m & m    -> causal(), m        masks sorted

Takes: a traced variant. Gives: an equal variant (same inputs, same values) in which equal values
are one object; canonical(canonical(v)) == canonical(v).
"""

import math
from collections.abc import Callable, Iterator

from gnomon.dsl.algebra import Algebra, Factors, is_host, read_late, whole
from gnomon.dsl.build import at
from gnomon.dsl.errors import CompilerBug
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    ATTENTIONS,
    Apply,
    At,
    Builtin,
    Concat,
    Constant,
    Contract,
    Decay,
    Diagonal,
    Dot,
    Expr,
    Lookup,
    Mask,
    MatrixExp,
    Node,
    Outer,
    PrefixSum,
    Rotation,
    Slice,
    Sum,
    Variant,
    walk,
)
from gnomon.dsl.rewrite import rewrite

ROUNDS = 20
MASK_ORDER = ("everything", "causal", "window", "same_document", "first_keys", "selected_blocks")
FOLDED: dict[str, Callable[..., int | float]] = {
    "//": lambda a, b: a // b,
    "**": lambda a, b: float(a) ** b,
    "abs": abs,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "floor": math.floor,
    "minimum": min,
    "maximum": max,
}


def canonical(variant: Variant) -> Variant:
    """The variant in canonical form; the rules are in the docstring of this module.

    CompilerBug where the rules do not come to rest.
    """
    rules = Rules(variant)
    for _ in range(ROUNDS):
        changed = share(rewrite(variant, rules))
        if changed == variant:
            return changed
        variant = changed
    raise CompilerBug(f"canonical: {variant.name} still changes after {ROUNDS} rounds")


def share(root: Variant) -> Variant:
    """Equal nodes -> one object, the first that was made; nothing else changes."""
    first: dict[Node, Node] = {}
    done: dict[int, Node] = {}
    for node in walk(root):
        changed = node.with_children(lambda child: done[id(child)])
        done[id(node)] = first.setdefault(changed, changed)
    result = done[id(root)]
    assert isinstance(result, Variant)
    return result


def looks_back(variant: Variant) -> bool:
    """Whether every mask of the variant hides the keys after the query."""

    def hides_later(mask: Mask) -> bool:
        inner = [m for m in mask.operands if isinstance(m, Mask)]
        if mask.rule == "and":
            return any(map(hides_later, inner))
        return all(map(hides_later, inner)) if mask.rule == "or" else mask.rule == "causal"

    return all(hides_later(n.mask) for n in walk(variant.output) if isinstance(n, ATTENTIONS))


class Rules:
    """One rule for each kind of node; a rule gives the replacement or None."""

    def __init__(self, variant: Variant) -> None:
        self.algebra = Algebra(variant.inputs, looks_back(variant))
        masks = [n for n in walk(variant.output) if isinstance(n, Mask) and n.rule == "negligible"]
        # a bound of a decay needs the decay itself, also where it is a power of a constant
        self.bounded = {operand for mask in masks for operand in mask.operands}

    def __call__(self, node: Node) -> Node | None:
        """What rewrite asks of a rule."""
        changed = self._change(node)
        return None if changed is None or changed == node else changed

    def _change(self, node: Node) -> Node | None:
        match node:
            case Apply():
                return self._apply(node)
            case Dot():
                return self._dot(node)
            case Decay(x) if kind(x).place == "constant" and node not in self.bounded:
                return self.algebra.product(Apply("*", (x, _distance())))
            case At():
                return self._at(node)
            case Contract(x, Diagonal(Constant(0.0), _)):
                return x
            case Contract() | Lookup() | Sum():
                return read_late(node)
            case Slice() | Concat():
                cut = _cut(node)
                return read_late(node) if cut is None else cut
            case Mask("and" | "or"):
                return self._mask(node)
        return None

    # ---- pointwise formulas

    def _apply(self, node: Apply) -> Expr | None:
        if len(kind(node).axes) > 1:
            return self._matrix(node)
        if node.fn in ("+", "-"):
            return self.algebra.sum(node)
        if node.fn in ("*", "/"):
            return self.algebra.product(node)
        if node.fn == "neg":
            inner = node.args[0]
            added = isinstance(inner, Apply) and inner.fn in ("+", "-")
            return self.algebra.sum(node) if added else self.algebra.product(node)
        folded = _fold(node)
        changed = self._word(node) if folded is None else folded
        return read_late(node) if changed is None else changed

    def _word(self, node: Apply) -> Expr | None:
        match node:
            case Apply("cos", (x,)):
                return self._turns(x)
            case Apply("**", (x, Constant(1))):
                return self.algebra.product(Apply("*", (x, Constant(1.0))))
            case Apply("**", (x, Constant(float(e)))) if e.is_integer():
                return Apply("**", (x, Constant(whole(e))))
            case Apply("**", (Constant(float(b)), x)) if b.is_integer():
                return Apply("**", (Constant(whole(b)), x))
            case Apply("sqrt" | "rsqrt" as fn, (c,)) if is_host(c):
                return Apply("**", (c, Constant(0.5 if fn == "sqrt" else -0.5)))
            case Apply(">" | ">=" as fn, (a, b)):
                return Apply(fn.replace(">", "<"), (b, a))
            case Apply("minimum" | "maximum" as fn, (a, b)):
                return Apply(fn, tuple(sorted((a, b), key=self._number_last)))
            case Apply("abs", (Apply("neg", (x,)),)):
                return Apply("abs", (x,))
        return None

    def _number_last(self, x: Expr) -> tuple[object, ...]:
        return isinstance(x, Constant), self.algebra.order.key(x)

    def _turns(self, x: Expr) -> Expr | None:
        """cos(2 pi x) -> cos_turns(x)."""
        found = self.algebra.factors(x)
        if abs(found.number) != 2 * math.pi or found.divisor != 1:
            return None
        turns = Factors(1, 1, found.over, found.under)
        return Apply("cos_turns", (self.algebra.multiplied(turns),))

    def _matrix(self, node: Apply) -> Expr | None:
        """A matrix times a number: the numbers meet in front, -(-A) -> A."""
        match node:
            case Apply("neg", (Apply("neg", (a,)),)) | Apply("*", (Constant(1), a)):
                return a
            case Apply("*", (m, a)) if not kind(a).axes:
                return Apply("*", (a, m))
            case Apply("*", (a, Apply("*", (b, m)))) if not kind(a).axes and not kind(b).axes:
                return Apply("*", (self.algebra.product(Apply("*", (a, b))), m))
            case Apply("*", (a, Apply("neg", (m,)))) | Apply("neg", (Apply("*", (a, m)),)):
                return Apply("*", (self.algebra.product(Apply("neg", (a,))), m))
        return None

    def _at(self, node: At) -> Expr | None:
        """at_query(c + a) -> at_query(a + c): what is read is a sum or product of one place."""
        if kind(node.x).place != "token":
            return node.x
        if len(kind(node).axes) > 1 or not isinstance(node.x, Apply):
            return None
        if node.x.fn in ("+", "-"):
            return self.algebra.sum(node)
        return self.algebra.product(node) if node.x.fn in ("*", "/", "neg") else None

    def _mask(self, node: Mask) -> Mask:
        """Masks once each, m & everything() -> m; the operands of & and | sorted by rule."""
        parts = set(_operands(node, node.rule))
        everything = Mask("everything")
        if everything in parts:
            if node.rule == "or":
                return everything
            parts = parts - {everything} or parts
        first, *rest = sorted(parts, key=self._mask_order)
        for mask in rest:
            first = Mask(node.rule, (first, mask))
        return first

    def _mask_order(self, mask: Mask) -> tuple[int, object]:
        rank = MASK_ORDER.index(mask.rule) if mask.rule in MASK_ORDER else len(MASK_ORDER)
        return rank, self.algebra.order.key(mask)

    # ---- dots

    def _dot(self, node: Dot) -> Expr | None:
        a, b = at(node.a, "row"), at(node.b, "column")
        match node.through:
            case Diagonal(Constant(0.0), _):
                return Dot(a, b)
            case Rotation(x, layout):
                if kind(x).place == "constant":
                    angle = self.algebra.product(Apply("*", (Builtin("position"), x)))
                else:
                    angle = PrefixSum(x, inclusive=True)
                return _both_sides(a, b, Rotation(angle, layout))
            case MatrixExp(x) if kind(x).place == "constant" and _is_skew(x):
                return _both_sides(a, b, MatrixExp(self._times_position(x)))
        return Dot(a, b, node.through)

    def _times_position(self, generator: Expr) -> Expr:
        turned = Apply("*", (Builtin("position"), generator))
        changed = self._matrix(turned)
        return turned if changed is None else changed


def _distance() -> Expr:
    position = Builtin("position")
    return Apply("-", (At(position, "row"), At(position, "column")))


def _both_sides(a: Expr, b: Expr, turn: Expr) -> Dot:
    """Turn both: a T^(i - j) b = (a T^i) . (b T^j), for an orthogonal T has its inverse as T^t."""
    return Dot(Contract(a, at(turn, "row")), Contract(b, at(turn, "column")))


def _is_skew(m: Expr) -> bool:
    """Whether the matrix is the negative of its transpose, whatever its numbers are."""
    match m:
        case Apply("*", (a, b)):
            return _is_skew(b if len(kind(b).axes) > 1 else a)
        case Apply("neg", (a,)):
            return _is_skew(a)
        case Apply("+" | "-" as fn, (a, b)):
            return (_is_skew(a) and _is_skew(b)) or (fn == "-" and b == _transposed(a))
    return False


def _transposed(m: Expr) -> Expr:
    match m:
        case Apply("transpose", (a,)):
            return a
        case Outer(w, u, scale):
            return Outer(u, w, scale)
    return Apply("transpose", (m,))


def _fold(node: Apply) -> Expr | None:
    """The number of a function of numbers, where it is a finite one."""
    values = [x.value for x in node.args if isinstance(x, Constant)]
    if len(values) != len(node.args) or node.fn not in FOLDED:
        return None
    try:
        number = FOLDED[node.fn](*values)
    except (ArithmeticError, ValueError):
        return None
    if isinstance(number, complex) or not math.isfinite(number):
        return None
    return Constant(float(number) if kind(node).element == "real" else int(number))


def _operands(mask: Mask, rule: str) -> Iterator[Mask]:
    """The masks that one chain of & or | combines."""
    for part in mask.operands:
        if isinstance(part, Mask):
            yield from _operands(part, rule) if part.rule == rule else (part,)


def _cut(node: Slice | Concat) -> Expr | None:
    """x[0:width] -> x; x[a:b][c:d] -> x[a+c:a+d]; (x[a:b], x[b:c]) -> x[a:c]; (x,) -> x."""
    match node:
        case Slice(x, start, stop) if not start.parts and kind(x).axes == (stop,):
            return x
        case Slice(Slice(x, first, _), start, stop):
            return Slice(x, first + start, first + stop)
        case Concat((x,)):
            return x
        case Concat(parts):
            joined: list[Expr] = []
            for part in (y for x in parts for y in (x.parts if isinstance(x, Concat) else (x,))):
                whole = _meet(joined[-1], part) if joined else None
                joined[-1 if whole is not None else len(joined) :] = [
                    part if whole is None else whole
                ]
            return None if tuple(joined) == parts else Concat(tuple(joined))
    return None


def _meet(left: Expr, right: Expr) -> Expr | None:
    """One slice for two that lie side by side."""
    match left, right:
        case Slice(x, start, middle), Slice(y, begin, stop) if x == y and middle == begin:
            return Slice(x, start, stop)
    return None

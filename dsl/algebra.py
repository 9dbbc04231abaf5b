"""Sums and products in one form: two spellings of one formula become equal nodes.

    sum      ::= (pair terms) + (row terms + constants) + (column terms)      a number last
    product  ::= (pair factors) * (row factors * constants) * (column factors)   a number first

Within a place terms stand in the order of `Order`; a term may be subtracted, a factor may divide.
Token values read at one place join under one `At`, constants with them, so that a map of one token
is evaluated once for each token: At(a) * c * At(b) -> At(c * a * b).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Literal

from gnomon.dsl.build import at
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    Apply,
    At,
    Builtin,
    Constant,
    Decay,
    Expr,
    Input,
    Node,
    Place,
    PrefixSum,
    Rotation,
    walk,
)
from gnomon.dsl.order import Order

Number = int | float
Read = Literal["row", "column"]
Term = tuple[int, Expr]
READS: tuple[Read, Read] = ("row", "column")
LARGEST_WHOLE = 2**53  # beyond it not every whole number is a float


@dataclass(slots=True)
class Factors:
    """number / divisor * over / under."""

    number: Number = 1
    divisor: Number = 1
    over: list[Expr] = field(default_factory=list)
    under: list[Expr] = field(default_factory=list)

    def place(self, place: str) -> "Factors":
        """The factors of one place; no number."""
        return self.split(lambda x: kind(x).place == place)

    def split(self, wanted: Callable[[Expr], bool]) -> "Factors":
        """The factors that are wanted; no number."""
        over, under = list(filter(wanted, self.over)), list(filter(wanted, self.under))
        return Factors(over=over, under=under)

    @property
    def plain(self) -> bool:
        """Whether the number is a neutral 1; 1.0 * x makes an int real."""
        return isinstance(self.number, int) and self.number == 1

    def take(self, other: "Factors") -> None:
        """Multiply by all that the other has; nothing is left there."""
        self.number, other.number = self.number * other.number, 1
        self.over += other.over
        self.under += other.under
        other.over, other.under = [], []

    def __bool__(self) -> bool:
        return bool(self.over or self.under)


def is_host(x: Expr) -> bool:
    """A number of the variant and the shapes alone: no tensor, no position."""
    return kind(x).place == "constant" and not any(isinstance(n, Input) for n in walk(x))


def whole(value: Number) -> Number:
    """2.0 -> 2, where the value beside it is real anyway."""
    exact = isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_WHOLE
    return int(value) if exact else value


def is_distance(x: Node) -> bool:
    """Whether x is the position at i minus position at j."""
    match x:
        case Apply("-", (At(Builtin("position", a), "row"), At(Builtin("position", b), "column"))):
            return a == b
    return False


def _inner(values: list[Expr]) -> list[Expr]:
    return [x.x for x in values if isinstance(x, At)]


def read_late(node: Expr) -> Expr | None:
    """f(at_query(a), at_query(b), c) -> at_query(f(a, b, c))."""
    for place in READS:
        inner = {id(child): _unread(child, place) for child in node.children()}
        found = {key: value for key, value in inner.items() if value is not None}
        if len(found) == len(inner):
            late = node.with_children(partial(_looked_up, found))
            if late is not node:
                return at(late, place)
    return None


def _looked_up(found: dict[int, Expr], node: Node) -> Expr:
    return found[id(node)]


def _unread(x: Node, place: Place) -> Expr | None:
    """The token value that is read here; constants are as they are; None where there is none."""
    match x:
        case At(inner, own):
            return inner if own == place else None
        case Rotation(angle, layout):
            turned = _unread(angle, place)
            return turned if turned is None else Rotation(turned, layout)
        case Expr():
            return x if kind(x).place == "constant" else None
    return None


class Algebra:
    """The normal form of sums and products over the inputs of one variant."""

    def __init__(self, inputs: Iterable[Input], looks_back: bool) -> None:
        self.order = Order(inputs)
        self.looks_back = looks_back

    # ---- products

    def product(self, node: Expr) -> Expr:
        """Multiply out: a * (c * b) / 2 -> 0.5 * c * a * b, grouped by place."""
        return self.multiplied(self.factors(node))

    def factors(self, x: Expr) -> Factors:
        """What the product x is made of."""
        found = Factors()
        self._factors(x, False, found, None)
        return found

    def _factors(self, x: Expr, under: bool, found: Factors, read: Read | None) -> None:
        match x:
            case Apply("*", (a, b)):
                self._factors(a, under, found, read)
                self._factors(b, under, found, read)
            case Apply("/", (a, b)):
                self._factors(a, under, found, read)
                self._factors(b, not under, found, read)
            case Apply("neg", (a,)):
                found.number = -found.number
                self._factors(a, under, found, read)
            case At(a, place) if read is None and place in READS:
                self._factors(a, under, found, "row" if place == "row" else "column")
            case Constant(value) if value and under:
                found.divisor = found.divisor * value
            case Constant(value) if not under:
                found.number = found.number * value
            case _:
                factor, under = self._power(x, under)
                (found.under if under else found.over).append(self._read(factor, read))

    @staticmethod
    def _read(x: Expr, read: Read | None) -> Expr:
        return x if read is None or kind(x).place == "constant" else At(x, read)

    @staticmethod
    def _power(x: Expr, under: bool) -> tuple[Expr, bool]:
        """One form for roots: x / sqrt(c) -> x * c ** -0.5 for a number c of the shapes."""
        match x:
            case Apply("sqrt", (c,)) if is_host(c):
                base, power = c, 0.5
            case Apply("rsqrt", (c,)) if is_host(c):
                base, power = c, -0.5
            case Apply("**", (c, Constant(e))) if is_host(c):
                base, power = c, e
            case _:
                return x, under
        power = whole(-power if under else power)
        if abs(power) == 1:
            return base, power < 0
        return Apply("**", (base, Constant(power))), False

    def multiplied(self, found: Factors) -> Expr:
        """The product of factors, in its normal form; 1.0 * i stays real, 2.0 * x is 2 * x."""
        number, under = found.number, list(found.under)
        if found.divisor != 1:
            ratio = number / found.divisor
            if abs(number) != 1 or Fraction(ratio) == Fraction(number) / Fraction(found.divisor):
                number = ratio
            else:
                under.append(Constant(whole(found.divisor)))
        others = [*found.over, *found.under]
        if found.under or any(kind(x).element == "real" for x in others):
            number = whole(number)
        if not others:
            return Constant(number)
        if number == -1 and isinstance(number, int):
            return Apply("neg", (self._product(Factors(over=found.over, under=under)),))
        return self._product(Factors(number, over=found.over, under=under))

    def _product(self, found: Factors) -> Expr:
        """Scalars are multiplied before they meet a vector, and before they are read."""
        vectors = found.split(lambda x: bool(kind(x).axes))
        scalars = found.split(lambda x: not kind(x).axes)
        if not (vectors and scalars):
            return self._grouped(found)
        scalars.number = found.number
        if vectors.over and not scalars.over:
            vectors.number, scalars.number = scalars.number, 1
        left, right = self._grouped(scalars), self._grouped(vectors)
        if not scalars.over and scalars.plain:
            both = Apply("/", (right, self._chain(self._divisors(scalars.under))))
        else:
            both = Apply("*", (left, right))
        late = read_late(both)
        return both if late is None else late

    def _grouped(self, found: Factors) -> Expr:
        constants, groups = found.place("constant"), {}
        constants.number = found.number
        for place in READS:
            group = found.place(place)
            reads = group.split(lambda x: isinstance(x, At))
            group = group.split(lambda x: not isinstance(x, At))
            if reads:
                token = Factors(over=_inner(reads.over), under=_inner(reads.under))
                group.over.append(At(self._joined([token, constants]), place))
                constants = Factors()
            groups[place] = group
        host = next((g for g in groups.values() if g.over), None)
        if host is not None:
            host.take(constants)
        parts = [found.place("pair"), groups["row"], groups["column"], found.place("token")]
        return self._joined([*parts, constants])

    def _joined(self, parts: list[Factors]) -> Expr:
        """The parts one after another; a part that only divides divides at the end."""
        result: Expr | None = None
        under: list[Expr] = []
        for part in parts:
            if not part.over and part.plain:
                under += part.under
                continue
            value = self._one(part)
            result = value if result is None else Apply("*", (result, value))
        if not under:
            return Constant(1) if result is None else result
        return Apply(
            "/", (Constant(1) if result is None else result, self._chain(self._divisors(under)))
        )

    def _one(self, part: Factors) -> Expr:
        over: list[Expr] = sorted(part.over, key=self.order.key)
        if not (part.plain and over):
            over.insert(0, Constant(part.number))
        value = self._chain(over)
        if not part.under:
            return value
        return Apply("/", (value, self._chain(self._divisors(part.under))))

    def _divisors(self, under: list[Expr]) -> list[Expr]:
        return sorted(under, key=lambda x: (not isinstance(x, Constant), self.order.key(x)))

    @staticmethod
    def _chain(factors: list[Expr]) -> Expr:
        value = factors[0]
        for x in factors[1:]:
            value = Apply("*", (value, x))
        return value

    # ---- sums

    def sum(self, node: Expr) -> Expr:
        """1 + (b - (c - a)) -> a + b - c + 1, grouped by place; prefix sums meet to decays."""
        terms: list[Term] = []
        number = self._terms(node, 1, terms, None)
        return self._added(terms, number)

    def _terms(self, x: Expr, sign: int, terms: list[Term], read: Read | None) -> Number:
        """Collect the terms of x; their numbers are returned, added up."""
        match x:
            case Apply("+" | "-" as fn, (a, b)):
                second = sign if fn == "+" else -sign
                return self._terms(a, sign, terms, read) + self._terms(b, second, terms, read)
            case Apply("neg", (a,)):
                return self._terms(a, -sign, terms, read)
            case At(a, place) if read is None and place in READS:
                return self._terms(a, sign, terms, "row" if place == "row" else "column")
            case Constant(value):
                return sign * value
        flip, term = self._unsigned(x)
        terms.append((sign * flip, self._read(term, read)))
        return 0

    def _unsigned(self, x: Expr) -> Term:
        """-2 * x -> minus, 2 * x."""
        if isinstance(x, Apply) and x.fn in ("*", "/"):
            found = self.factors(x)
            if found.number < 0:
                found.number = -found.number
                return -1, self.multiplied(found)
        return 1, x

    def _added(self, terms: list[Term], number: Number) -> Expr:
        if any(kind(x).element == "real" for _, x in terms):
            number = whole(number)
        if not terms:
            return Constant(number)
        sign, value = self._sum(self._meet(terms), number)
        return self._negative(value) if sign < 0 else value

    def _negative(self, x: Expr) -> Expr:
        negative = Apply("neg", (x,))
        return self.product(negative) if isinstance(x, Apply) and x.fn in ("*", "/") else negative

    def _meet(self, terms: list[Term]) -> list[Term]:
        """P_i - P_j -> decay(x) for P = prefix_sum(x); position_i - position_j stays together."""
        left = list(terms)
        for sign, x in terms:
            if not (isinstance(x, At) and x.place == "row" and self._has_steps(x.x)):
                continue
            partner = (-sign, At(x.x, "column"))
            if partner in left and (sign, x) in left:
                left.remove((sign, x))
                left.remove(partner)
                both = Apply("-", (x, partner[1]))
                left.append((sign, Decay(x.x.x) if isinstance(x.x, PrefixSum) else both))
        return left

    def _has_steps(self, x: Expr) -> bool:
        if isinstance(x, PrefixSum):
            # a decay exists for keys up to the query only; P_i - P_j for all of them
            return x.inclusive and self.looks_back and not kind(x).axes
        return isinstance(x, Builtin) and x.which == "position"

    def _sum(self, terms: list[Term], number: Number) -> Term:
        by_place: dict[str, list[Term]] = {
            p: [] for p in ("pair", "row", "column", "token", "constant")
        }
        for sign, x in terms:
            by_place[kind(x).place].append((sign, x))
        constants = by_place.pop("constant")
        for place in READS:
            reads = [(s, x.x) for s, x in by_place[place] if isinstance(x, At)]
            if reads:
                rest = [t for t in by_place[place] if not isinstance(t[1], At)]
                ordered = [*self._sorted(reads), *self._sorted(constants)]
                sign, value = self._added_up(ordered, number)
                by_place[place] = [*rest, (sign, At(value, place))]
                constants, number = [], 0
        if number or isinstance(number, float) or constants:
            first = next((by_place[p] for p in READS if by_place[p]), None)
            if first is not None:
                ordered = [*self._sorted(first), *self._sorted(constants)]
                first[:] = [self._added_up(ordered, number)]
                constants, number = [], 0
        parts = [self._added_up(self._sorted(p), 0) for p in by_place.values() if p]
        return self._added_up([*parts, *self._sorted(constants)], number)

    def _sorted(self, terms: list[Term]) -> list[Term]:
        return sorted(terms, key=lambda t: (self.order.key(t[1]), -t[0]))

    @staticmethod
    def _added_up(terms: list[Term], number: Number) -> Term:
        """The chain of terms in this order, but that a positive one goes first; the number last."""
        terms = list(terms)
        if number or isinstance(number, float):
            number_sign = -1 if number < 0 else 1
            terms.append((number_sign, Constant(abs(number))))
        first = next((n for n, (sign, _) in enumerate(terms) if sign > 0), None)
        overall = 1 if first is not None else -1
        value = terms.pop(first or 0)[1]
        for sign, x in terms:
            value = Apply("+" if sign == overall else "-", (value, x))
        return overall, value

"""What is known of the range of a value: the sign of a distance, whether norms bound a logit."""

from functools import lru_cache

from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    Apply,
    At,
    Builtin,
    Concat,
    Constant,
    Dot,
    Expr,
    Input,
    Lookup,
    Rotation,
    Slice,
    Sum,
    walk,
)

_LINEAR = frozenset({"+", "-", "*", "/", "//", "neg", "floor", "minimum", "detach"})
_NOT_NEGATIVE = frozenset(
    {"exp", "sigmoid", "softplus", "abs", "relu", "sqrt", "rsqrt"}
)  # whatever the argument
_SMALL = frozenset({"tanh", "sigmoid", "sin", "cos", "cos_turns"})
_KEEPS_BOUNDS = frozenset(
    {"+", "-", "*", "neg", "minimum", "maximum", "where", "relu", "softplus", "log_sigmoid"}
    | {"abs", "exp", "expm1", "floor", "detach", "clip"}
)


def is_distance(x: Expr) -> bool:
    """Whether x is a position read at the query minus the same read at the key."""
    match x:
        case Apply(fn="-", args=(At(place="row") as here, At(place="column") as there)):
            below = list(walk(here.x))
            of_positions = any(isinstance(n, Builtin) and n.which == "position" for n in below)
            return (
                here.x == there.x and of_positions and not any(isinstance(n, Input) for n in below)
            )
    return False


@lru_cache(maxsize=4096)
def is_signed(x: Expr) -> bool:
    """Whether x may be negative only because its key stands after its query."""
    if is_distance(x):
        return True
    match x:
        case Apply(fn="*", args=(a, b)) if a == b:
            return False
        case Apply(fn="**", args=(base, Constant(value=power))):
            return power % 2 == 1 and is_signed(base)
        case Apply(fn="clip", args=(inner, low, _)):
            return sign_looking_back(low) < 1 and is_signed(inner)
        case Apply(fn=fn, args=args) if fn in _LINEAR:
            return any(is_signed(a) for a in args)
        case Sum(x=inner) | Slice(x=inner):
            return is_signed(inner)
        case Concat(parts=parts):
            return any(is_signed(p) for p in parts)
    return False


@lru_cache(maxsize=4096)
def sign_looking_back(x: Expr) -> int:
    """1 where x >= 0 is known for every key that is not after its query, -1 for x <= 0, else 0."""
    if is_distance(x):
        return 1
    match x:
        case Constant(value=value):
            return 1 if value >= 0 else -1
        case Builtin(which=which):
            return 0 if which == "position" else 1
        case Apply(fn="neg", args=(a,)):
            return -sign_looking_back(a)
        case Apply(fn="*" | "/", args=(a, b)):
            return sign_looking_back(a) * sign_looking_back(b)
        case Apply(fn="+", args=(a, b)):
            return sign_looking_back(a) if sign_looking_back(a) == sign_looking_back(b) else 0
        case Apply(fn="-", args=(a, b)):
            return sign_looking_back(a) if sign_looking_back(a) == -sign_looking_back(b) else 0
        case Apply(fn=fn) if fn in _NOT_NEGATIVE:
            return 1
    return 0


def real_power_base(x: Expr) -> Expr | None:
    """What is raised to a real power, or is under a logarithm or root; None for other nodes."""
    match x:
        case Apply(fn="log" | "log1p" | "sqrt" | "rsqrt", args=(base,)):
            return base
        case Apply(fn="**", args=(base, power)):
            is_whole = isinstance(power, Constant) and float(power.value).is_integer()
            return None if is_whole or kind(power).element == "int" else base
    return None


@lru_cache(maxsize=4096)
def is_bounded(x: Expr) -> bool:
    """Whether norms of the tensors bound x over all pairs, for any values of the inputs."""
    if kind(x).place != "pair" or is_distance(x):
        return True
    match x:
        case Dot(through=through):
            return through is None or isinstance(through, Rotation)
        case Lookup(table=table):
            return is_bounded(table)
        case Apply(fn=fn) if fn in _SMALL:
            return True
        case Apply(fn="clip", args=(_, low, high)):
            return is_bounded(low) and is_bounded(high)
        case Apply(fn="/", args=(a, b)):
            return is_bounded(a) and kind(b).place != "pair"
        case Apply(fn="**", args=(base, Constant(value=power))):
            return power >= 0 and is_bounded(base)
        case Apply(fn=fn, args=args) if fn in _KEEPS_BOUNDS:
            return all(is_bounded(a) for a in args if kind(a).element != "bool")
    return False


def terms(x: Expr) -> list[tuple[int, Expr]]:
    """The signed terms of a sum."""
    match x:
        case Apply(fn="+", args=(a, b)):
            return terms(a) + terms(b)
        case Apply(fn="-", args=(a, b)):
            return terms(a) + [(-sign, term) for sign, term in terms(b)]
        case Apply(fn="neg", args=(a,)):
            return [(-sign, term) for sign, term in terms(a)]
    return [(1, x)]

"""Functions that TileLang lacks, as Python functions that build them from its own operations.

They run while a program is built, so that each call stands in the program as an expression. None
overflows, and none cancels where it matters.
"""

_SOURCES = {
    "magnitude": '''
def magnitude(x):
    """|x|; the C target has no T.abs of real numbers."""
    return T.max(x, -x)
''',
    "square": '''
def square(x):
    """x * x."""
    return x * x
''',
    "power": '''
def power(x, a):
    """x ** a for real a; x < 0 has a power where a is whole."""
    y = T.if_then_else(a == 0.0, 1.0, T.exp2(a * T.log2(magnitude(x))))
    y = T.if_then_else((x < 0.0) & (a * 0.5 != T.floor(a * 0.5)), -y, y)
    return T.if_then_else((x < 0.0) & (a != T.floor(a)), float("nan"), y)
''',
    "log1p": '''
def log1p(x):
    """log(1 + x): the logarithm of the rounded sum, times what rounding did to x (Kahan)."""
    u = 1.0 + x
    d = u - 1.0
    exact = (d == 0.0) | (d == T.infinity("float32"))
    return T.if_then_else(exact, x, T.log(u) * (x / T.if_then_else(exact, 1.0, d)))
''',
    "expm1": '''
def expm1(x):
    """exp(x) - 1: a Taylor polynomial where the difference would cancel."""
    y = 0.00138888889 + x * (0.000198412698 + x * 0.0000248015873)
    y = 0.166666667 + x * (0.0416666667 + x * (0.00833333333 + x * y))
    return T.if_then_else(magnitude(x) < 0.5, x * (1.0 + x * (0.5 + x * y)), T.exp(x) - 1.0)
''',
    "tanh": '''
def tanh(x):
    """The hyperbolic tangent, from a power of e that cannot overflow."""
    e = T.exp(-2.0 * magnitude(x))
    t = (1.0 - e) / (1.0 + e)
    return T.if_then_else(x < 0.0, -t, t)
''',
    "sigmoid": '''
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + T.exp(-x))
''',
    "softplus": '''
def softplus(x):
    """log(1 + e^x), from a power of e that cannot overflow."""
    return T.max(x, 0.0) + log1p(T.exp(-magnitude(x)))
''',
    "log_sigmoid": '''
def log_sigmoid(x):
    """log(1 / (1 + e^-x)), from a power of e that cannot overflow."""
    return T.min(x, 0.0) - log1p(T.exp(-magnitude(x)))
''',
    "sine_of_quarter": '''
def sine_of_quarter(r):
    """sin(2 pi r) for |r| <= 1/4, to the last bits of fp32."""
    z = r * r
    y = 81.6024807429 - z * (76.5812845597 - z * 39.7607220786)
    return r * (6.2831852803 - z * (41.3416806681 - z * y))
''',
    "cos_turns": '''
def cos_turns(x):
    """cos(2 pi x), with an exact reduction to one turn."""
    return sine_of_quarter(0.25 - magnitude(x - T.floor(x + 0.5)))
''',
    "sin_turns": '''
def sin_turns(x):
    """sin(2 pi x), with an exact reduction to one turn."""
    r = x - T.floor(x + 0.5)
    half = T.if_then_else(r < 0.0, -0.5, 0.5)
    return sine_of_quarter(T.if_then_else(magnitude(r) > 0.25, half - r, r))
''',
}
_NEEDS = {
    "power": ("magnitude",),
    "expm1": ("magnitude",),
    "tanh": ("magnitude",),
    "softplus": ("magnitude", "log1p"),
    "log_sigmoid": ("magnitude", "log1p"),
    "cos_turns": ("magnitude", "sine_of_quarter"),
    "sin_turns": ("magnitude", "sine_of_quarter"),
}

NAMES = frozenset(_SOURCES)


def closure(used: set[str]) -> list[str]:
    """The helpers that the used ones need too, each after what it calls."""
    needed = used | {name for user in used for name in _NEEDS.get(user, ())}
    return [name for name in _SOURCES if name in needed]


def source(name: str) -> str:
    """The text of one helper."""
    return f"{_SOURCES[name].strip()}\n"

"""Functions that Triton lacks or gives another meaning, as functions in its own words.

Each runs in the interpreter and on every target; none overflows, and none cancels where it matters.
"""

_SOURCES = {
    "floor_div": '''
def floor_div(a, b):
    """The quotient rounded down; Triton's own // rounds towards zero."""
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)
''',
    "floor_mod": '''
def floor_mod(a, b):
    """The remainder with the sign of b; Triton's own % takes the sign of a."""
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
''',
    "power": '''
def power(x, a):
    """x ** a for real a; x < 0 has a power where a is whole."""
    y = tl.where(a == 0.0, 1.0, tl.exp2(a * tl.log2(tl.abs(x))))
    turned = tl.where(a * 0.5 != tl.floor(a * 0.5), -y, y)
    turned = tl.where(a != tl.floor(a), float("nan"), turned)
    return tl.where(x < 0.0, turned, y)
''',
    "square": '''
def square(x):
    """x * x."""
    return x * x
''',
    "log1p": '''
def log1p(x):
    """log(1 + x): the logarithm of the rounded sum, times what rounding did to x (Kahan)."""
    u = 1.0 + x
    d = u - 1.0
    return tl.where((d == 0.0) | (d == float("inf")), x, tl.log(u) * (x / d))
''',
    "expm1": '''
def expm1(x):
    """exp(x) - 1: a Taylor polynomial where the difference would cancel."""
    y = 0.00138888889 + x * (0.000198412698 + x * 0.0000248015873)
    y = 0.166666667 + x * (0.0416666667 + x * (0.00833333333 + x * y))
    return tl.where(tl.abs(x) < 0.5, x * (1.0 + x * (0.5 + x * y)), tl.exp(x) - 1.0)
''',
    "tanh": '''
def tanh(x):
    """The hyperbolic tangent, from a power of e that cannot overflow."""
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0.0, -t, t)
''',
    "softplus": '''
def softplus(x):
    """log(1 + e^x), from a power of e that cannot overflow."""
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))
''',
    "log_sigmoid": '''
def log_sigmoid(x):
    """log(1 / (1 + e^-x)), from a power of e that cannot overflow."""
    return tl.minimum(x, 0.0) - log1p(tl.exp(-tl.abs(x)))
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
    return sine_of_quarter(0.25 - tl.abs(x - tl.floor(x + 0.5)))
''',
    "log2_approx": '''
def log2_approx(x):
    """log2(x) by the special-function unit, to 2^-22 beside 1 or of the result; twin: tl.log2."""
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
''',
    "cos_turns_approx": '''
def cos_turns_approx(x, turn=6.283185307179586):
    """cos(turn x) by the special-function unit, to 2^-20.9 + 2^-22 |turn x|; twin: cos_turns."""
    return tl.inline_asm_elementwise(
        "cos.approx.ftz.f32 $0, $1;",
        "=f,f",
        [x * turn],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
''',
    "sin_turns_approx": '''
def sin_turns_approx(x, turn=6.283185307179586):
    """sin(turn x) by the special-function unit, to 2^-20.9 + 2^-22 |turn x|; twin: sin_turns."""
    return tl.inline_asm_elementwise(
        "sin.approx.ftz.f32 $0, $1;",
        "=f,f",
        [x * turn],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
''',
    "toeplitz": '''
def toeplitz(table, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIGN: tl.constexpr):
    """table[SIGN (i - j)] of every pair of a tile [ROWS, COLUMNS].

    Each place is split into what a thread of a wgmma accumulator holds in its lane number, row r
    and column c of an 8 by 8 block, and what it holds in its register number: blocks h and n. The
    registers' part becomes an offset in the instruction, and equal offsets are loaded once. Loads
    that Triton knows of would be copied to shared memory, pair by pair.
    """
    r = (tl.arange(0, ROWS // 16) * 16)[:, None, None] + tl.arange(0, 8)[None, :, None]
    lane = ((r - tl.arange(0, 8)[None, None, :]) * (4 * SIGN)).to(tl.int64)
    block = tl.arange(0, 2)[:, None] - tl.arange(0, COLUMNS // 8)[None, :]
    register = (block * (32 * SIGN)).to(tl.int64)
    place = (table.to(tl.int64) + lane)[:, None, :, None, :] + register[None, :, None, :, None]
    entries = tl.inline_asm_elementwise(
        "ld.global.nc.f32 $0, [$1];", "=f,l", [place], dtype=tl.float32, is_pure=True, pack=1
    )
    return tl.reshape(entries, [ROWS, COLUMNS])
''',
    "sin_turns": '''
def sin_turns(x):
    """sin(2 pi x), with an exact reduction to one turn."""
    r = x - tl.floor(x + 0.5)
    half = tl.where(r < 0.0, -0.5, 0.5)
    return sine_of_quarter(tl.where(tl.abs(r) > 0.25, half - r, r))
''',
}
_NEEDS = {
    "softplus": ("log1p",),
    "log_sigmoid": ("log1p",),
    "cos_turns": ("sine_of_quarter",),
    "sin_turns": ("sine_of_quarter",),
}

NAMES = frozenset(_SOURCES)


def closure(used: set[str]) -> list[str]:
    """The helpers that the used ones need too, each after what it calls."""
    needed = used | {name for user in used for name in _NEEDS.get(user, ())}
    return [name for name in _SOURCES if name in needed]


def source(name: str) -> str:
    """The text of one helper."""
    return f"@triton.jit\n{_SOURCES[name].strip()}\n"

"""Functions that printed CPU kernels call, as text: mathematics without branches, copies of tiles.

LLVM turns a loop over these into vector code, for want of a vector library. Every function keeps
NaN, and is exact where its docstring says so. Errors (in units in the last place) are those that
tests/lowering/emit/test_numba_helpers.py finds over the whole range of fp32. They round as written:
only multiply-and-add may be fused in them, whatever the kernel around them allows.
"""

import ast
import re
from collections.abc import Iterable

PREAMBLE = """\
f32, f64, i32, i64 = np.float32, np.float64, np.int32, np.int64
INF, NAN = f32(np.inf), f32(np.nan)
LOG2E, LN2 = f32(1.4426950408889634), f32(0.6931471805599453)
"""

_MATHEMATICS = {
    "where": '''
def where(condition, x, y):
    """A choice between two values that both exist already."""
    return x if condition else y
''',
    "apart": '''
def apart(a, b, low):
    """a - b + low, in this order: the low digits of a sum count where its high ones meet."""
    return a - b + low
''',
    "added": '''
def added(total, x):
    """total + x, in any order of several."""
    return total + x
''',
    "square": '''
def square(x):
    """x * x."""
    return x * x
''',
    "exp2": '''
def exp2(x):
    """2^x within 1 ulp; exact for whole x; 0 below 2^-125."""
    x = where(x < f32(-126.0), f32(-126.0), x)
    x = where(x > f32(128.0), f32(128.0), x)
    shifted = x + f32(12583038.0)
    r = x - (shifted - f32(12583038.0))
    p = f32(3.03918627e-05)
    p = p * r + f32(0.000309340171)
    p = p * r + f32(0.00266678761)
    p = p * r + f32(0.0192360748)
    p = p * r + f32(0.111008207)
    p = p * r + f32(0.480453021)
    p = p * r + f32(1.38629436)
    p = p * r + f32(2.0)
    return p * i32(f32(shifted).view(i32) << 23).view(f32)
''',
    "exp": '''
def exp(x):
    """e^x within 2 ulp; exp(0) = 1; 0 below 2^-125."""
    x = where(x < f32(-87.33), f32(-87.33), x)
    x = where(x > f32(88.9), f32(88.9), x)
    shifted = x * f32(1.44269504) + f32(12583038.0)
    n = shifted - f32(12583038.0)
    r = x - n * f32(0.693359375) - n * f32(-0.00021219444)
    p = f32(0.00276286407)
    p = p * r + f32(0.0167377022)
    p = p * r + f32(0.0833368022)
    p = p * r + f32(0.33333039)
    p = p * r + f32(0.999999867)
    p = p * (r * r) + (f32(2.0) * r + f32(2.0))
    return p * i32(f32(shifted).view(i32) << 23).view(f32)
''',
    "expm1": '''
def expm1(x):
    """e^x - 1 within 2 ulp, also where it is small."""
    x = where(x < f32(-87.33), f32(-87.33), x)
    x = where(x > f32(88.9), f32(88.9), x)
    shifted = x * f32(1.44269504) + f32(12583038.0)
    n = shifted - f32(12583038.0)
    r = x - n * f32(0.693359375) - n * f32(-0.00021219444)
    p = f32(0.000198458933)
    p = p * r + f32(0.00139408233)
    p = p * r + f32(0.0083333898)
    p = p * r + f32(0.0416663586)
    p = p * r + f32(0.166666664)
    p = p * r + f32(0.500000004)
    p = p * (r * r) + r
    half = i32(f32(shifted).view(i32) << 23).view(f32)
    return f32(2.0) * (half * p + (half - f32(0.5)))
''',
    "log_parts": '''
def log_parts(x):
    """(n, f, t) with log(x) = n log(2) + f + t for a positive, finite x; f = x 2^-n - 1."""
    tiny = x < f32(1.17549435e-38)
    bits = f32(where(tiny, x * f32(8388608.0), x)).view(i32)
    n = i32(i32(bits - i32(0x3F3504F3)) >> 23)
    f = i32(bits - i32(n << 23)).view(f32) - f32(1.0)
    p = f32(0.0675756798)
    p = p * f + f32(-0.116943343)
    p = p * f + f32(0.118935132)
    p = p * f + f32(-0.12403084)
    p = p * f + f32(0.142185543)
    p = p * f + f32(-0.166680903)
    p = p * f + f32(0.200021671)
    p = p * f + f32(-0.250000087)
    p = p * f + f32(0.33333312)
    t = p * (f * f * f) - f32(0.5) * (f * f)
    return f32(n) - where(tiny, f32(23.0), f32(0.0)), f, t
''',
    "log_ends": '''
def log_ends(x, y):
    """The logarithm y of x, where x is 0, negative, infinite or NaN too."""
    y = where(x < INF, y, x)
    return where(x > f32(0.0), y, where(x == f32(0.0), -INF, NAN))
''',
    "log": '''
def log(x):
    """The natural logarithm within 1 ulp; log(1) = 0, log(0) = -inf."""
    n, f, t = log_parts(x)
    y = n * f32(0.693359375) + (f + (t + n * f32(-0.00021219444)))
    return log_ends(x, y)
''',
    "log2": '''
def log2(x):
    """The logarithm of base 2 within 2 ulp; exact for powers of two."""
    n, f, t = log_parts(x)
    return log_ends(x, n + (f + t) * f32(1.44269504))
''',
    "log1p": '''
def log1p(x):
    """log(1 + x) within 2 ulp, also where x is small: what 1 + x rounds off is added again."""
    u = f32(1.0) + x
    lost = where(u > f32(0.0), (x - (u - f32(1.0))) / u, f32(0.0))
    return where(x < INF, log(u) + lost, x)
''',
    "tanh": '''
def tanh(x):
    """The hyperbolic tangent within 3 ulp; odd."""
    a = abs(x)
    e = expm1(f32(2.0) * where(a > f32(10.0), f32(10.0), a))
    y = e / (e + f32(2.0))
    return where(x < f32(0.0), -y, y)
''',
    "sigmoid": '''
def sigmoid(x):
    """1 / (1 + e^-x) within 3 ulp."""
    return f32(1.0) / (f32(1.0) + exp(-x))
''',
    "log_sigmoid": '''
def log_sigmoid(x):
    """log(1 / (1 + e^-x)) within 3 ulp."""
    return where(x < f32(0.0), x, f32(0.0)) - log1p(exp(-abs(x)))
''',
    "softplus": '''
def softplus(x):
    """log(1 + e^x) within 3 ulp."""
    return where(x > f32(0.0), x, f32(0.0)) + log1p(exp(-abs(x)))
''',
    "circle": '''
def circle(r, k):
    """(cos, sin) of k quarter turns and r radians, |r| <= pi / 4; k counts modulo 4."""
    w = r * r
    s = f32(-0.000195149576)
    s = s * w + f32(0.00833215841)
    s = s * w + f32(-0.166666546)
    s = s * (w * r) + r
    c = f32(2.4432785e-05)
    c = c * w + f32(-0.00138873131)
    c = c * w + f32(0.0416666456)
    c = c * (w * w) - f32(0.5) * w + f32(1.0)
    return turned(c, s, k)
''',
    "turned": '''
def turned(c, s, k):
    """(cos, sin) after k quarter turns."""
    odd = i32(k & i32(1)) != 0
    x, y = where(odd, s, c), where(odd, c, s)
    x = where(i32((k + i32(1)) & i32(2)) != 0, -x, x)
    return x, where(i32(k & i32(2)) != 0, -y, y)
''',
    "radians": '''
def radians(x):
    """(r, k) with x = r + k pi / 2, reduced in fp64: |x| < 2^30."""
    shifted = f64(x) * 0.6366197723675814 + 6755399441055744.0
    n = shifted - 6755399441055744.0
    r = f32((f64(x) - n * 1.5707963267341256) - n * 6.077100506506192e-11)
    return r, i32(f64(shifted).view(i64) & 3)
''',
    "cos": '''
def cos(x):
    """The cosine of x radians within 2 ulp for |x| < 2^20; cos(0) = 1."""
    r, k = radians(x)
    return circle(r, k)[0]
''',
    "sin": '''
def sin(x):
    """The sine of x radians within 2 ulp for |x| < 2^20."""
    r, k = radians(x)
    return circle(r, k)[1]
''',
    "circle_turns": '''
def circle_turns(x):
    """(cos, sin) of x turns: the whole turns and the quarters come off without rounding."""
    r = x - np.rint(x)
    shifted = f32(4.0) * r + f32(12582912.0)
    y = r - f32(0.25) * (shifted - f32(12582912.0))
    w = y * y
    s = f32(-75.3922524)
    s = s * w + f32(81.5923277)
    s = s * w + f32(-41.3416613)
    s = s * w + f32(6.28318529)
    c = f32(59.2282174)
    c = c * w + f32(-85.4432087)
    c = c * w + f32(64.9393216)
    c = c * w + f32(-19.7392087)
    return turned(c * w + f32(1.0), s * y, f32(shifted).view(i32))
''',
    "cos_turns": '''
def cos_turns(x):
    """cos(2 pi x) within 2 ulp; exact where 4 x is whole."""
    return circle_turns(x)[0]
''',
    "sin_turns": '''
def sin_turns(x):
    """sin(2 pi x) within 2 ulp; exact where 4 x is whole."""
    return circle_turns(x)[1]
''',
    "power": '''
def power(x, a):
    """x^a within 1 ulp, through the logarithm in fp64; x < 0 has a power where a is whole."""
    bits = f64(abs(x)).view(i64)
    n = (bits - i64(0x3FE6A09E667F3BCD)) >> i64(52)
    m = i64(bits - (n << i64(52))).view(f64)
    s = (m - 1.0) / (m + 1.0)
    w = s * s
    p = 1.0 + w * (1 / 3 + w * (1 / 5 + w * (1 / 7 + w * (1 / 9 + w * (1 / 11 + w * (1 / 13))))))
    t = f64(a) * (f64(n) + 2.8853900817779268 * s * p)
    t = where(t < -160.0, -160.0, where(t > 129.0, 129.0, t))
    shifted = t + 6755399441056767.0
    r = 0.6931471805599453 * (t - (shifted - 6755399441056767.0))
    p = 1.0 + r / 4 * (1.0 + r / 5 * (1.0 + r / 6 * (1.0 + r / 7 * (1.0 + r / 8))))
    p = 1.0 + r * (1.0 + r / 2 * (1.0 + r / 3 * p))
    y = f32(p * i64(f64(shifted).view(i64) << i64(52)).view(f64))
    half = f32(0.5) * a
    y = where((x < f32(0.0)) & (half != np.floor(half)), -y, y)
    y = where((x < f32(0.0)) & (a != np.floor(a)), NAN, y)
    return where((x == x) | (a == f32(0.0)), y, x)
''',
    "ordered": '''
def ordered(x):
    """An integer that grows with x: integers have a maximum that LLVM can vectorise, NaN or not."""
    bits = f32(x).view(i32)
    return i32(bits ^ i32(i32(bits >> 31) & i32(0x7FFFFFFF)))
''',
    "unordered": '''
def unordered(bits):
    """The number that `ordered` made an integer of."""
    return i32(bits ^ i32(i32(bits >> 31) & i32(0x7FFFFFFF))).view(f32)
''',
    "from_bf16": '''
def from_bf16(half):
    """The number whose bf16 bits these are."""
    return i32(i32(half) << 16).view(f32)
''',
    "from_f16": '''
def from_f16(half):
    """The number whose fp16 bits these are; exact, subnormals, inf and NaN too."""
    bits = i32(i32(half & 0x7FFF) << 13)
    finite = bits.view(f32) * f32(5.192296858534828e33)
    x = where(bits >= i32(0x0F800000), i32(bits | i32(0x7F800000)).view(f32), finite)
    return where(half >= 0x8000, -x, x)
''',
}

_COPIES = {
    "clipped": '''
def clipped(start, limit, extent):
    """How many of the elements start ... start + extent - 1 lie below a limit."""
    return min(max(limit - start, 0), extent)
''',
    "load_tile": '''
def load_tile(tile, source, start, limit, fill=0):
    """Copy source[start:limit] into a tile, and fill the rest of it."""
    n = clipped(start[0], limit[0], tile.shape[0])
    width = clipped(start[1], limit[1], tile.shape[1])
    part = source[start[0] : start[0] + n, start[1] : start[1] + width]
    if part.strides[1] == part.itemsize:  # the same loop twice: this one becomes vector code
        for r in range(n):
            for c in range(width):
                tile[r, c] = CONVERT(part[r, c])
    else:
        for r in range(n):
            for c in range(width):
                tile[r, c] = CONVERT(part[r, c])
    tile[:n, width:] = fill
    tile[n:] = fill
''',
    "load_vector": '''
def load_vector(vector, source, start, limit, fill=0):
    """Copy source[start:limit] into a vector, and fill the rest of it."""
    n = clipped(start, limit, vector.shape[0])
    for r in range(n):
        vector[r] = CONVERT(source[start + r])
    vector[n:] = fill
''',
    "store_tile": '''
def store_tile(target, tile, start, limit):
    """Copy a tile to target[start:limit]."""
    n = clipped(start[0], limit[0], tile.shape[0])
    width = clipped(start[1], limit[1], tile.shape[1])
    part = target[start[0] : start[0] + n, start[1] : start[1] + width]
    if part.strides[1] == part.itemsize:  # the same loop twice: this one becomes vector code
        for r in range(n):
            for c in range(width):
                part[r, c] = tile[r, c]
    else:
        for r in range(n):
            for c in range(width):
                part[r, c] = tile[r, c]
''',
    "store_vector": '''
def store_vector(target, vector, start, limit):
    """Copy a vector to target[start:limit]."""
    for r in range(clipped(start, limit, vector.shape[0])):
        target[start + r] = vector[r]
''',
}


def _copies() -> dict[str, str]:
    """The copies, and for each 16-bit dtype those that widen what they read."""
    made = {}
    for name, source in _COPIES.items():
        made[name] = re.sub(r"CONVERT\((.*)\)", r"\1", source)
        for io in ("bf16", "f16"):
            if "CONVERT" in source:
                widened = source.replace("CONVERT", f"from_{io}")
                made[f"{name}_{io}"] = widened.replace(f"def {name}(", f"def {name}_{io}(")
    return made


SOURCES = {**_MATHEMATICS, **_copies()}


def used(text: str) -> list[str]:
    """The names of the helpers that a text calls, those first that others call."""
    ordered: dict[str, None] = {}
    for name in _called(text):
        ordered.update(dict.fromkeys((*used(SOURCES[name]), name)))
    return list(ordered)


def helpers(texts: Iterable[str], *, jit: bool) -> str:
    """The helpers that the texts call, as functions with their decorators."""
    names = used("\n".join(texts))
    starts = {name: "@summing\n" if name == "added" else "@inline\n" for name in names if jit}
    return "\n\n".join(f"{starts.get(name, '')}{SOURCES[name].lstrip()}" for name in names)


def _called(text: str) -> list[str]:
    calls = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    names = {function.id for function in calls if isinstance(function, ast.Name)}
    return [name for name in SOURCES if name in names]

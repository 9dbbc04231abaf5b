"""The mathematics of printed CPU kernels against float64, over the whole range of fp32."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numba import njit

from gnomon.lowering.emit import numba_helpers

Array = npt.NDArray[Any]


def turns(x: Array) -> Array:
    """exp(2 pi i x), right where x is a multiple of a quarter."""
    rest = x - np.rint(x)
    quarters = np.rint(4 * rest)
    quarter = np.array([1, 1j, -1, -1j])[np.nan_to_num(quarters).astype(int) % 4]
    angle = 2 * np.pi * (rest - quarters / 4)
    product: Array = (np.cos(angle) + 1j * np.sin(angle)) * quarter
    return product


EXACT: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.where(x < 0, np.exp(x), 1.0) / (1.0 + np.exp(-np.abs(x))),
    "log_sigmoid": lambda x: np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x))),
    "softplus": lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))),
    "sin": np.sin,
    "cos": np.cos,
    "sin_turns": lambda x: turns(x).imag,
    "cos_turns": lambda x: turns(x).real,
}
WITHIN = {
    **dict.fromkeys(("exp2", "log"), 1.0),
    **dict.fromkeys(("exp", "expm1", "log2", "log1p", "sin", "cos", "sin_turns", "cos_turns"), 2.0),
    **dict.fromkeys(("tanh", "sigmoid", "log_sigmoid", "softplus"), 3.0),
}
FLUSHED = 2.0**-125
"""Below this, powers of e and 2 are 0: what is compared there is the absolute error."""


def functions(*, jit: bool) -> dict[str, Any]:
    """All helpers, compiled or as plain Python."""
    names = [*EXACT, "power", "ordered", "unordered", "from_bf16", "from_f16"]
    inline = 'inline = njit(fastmath={"contract"}, error_model="numpy")\n'
    calls = "\n".join(f"{name}(x)" for name in names)
    text = numba_helpers.PREAMBLE + inline + numba_helpers.helpers([calls], jit=jit)
    space: dict[str, Any] = {"np": np, "njit": njit}
    exec(compile(text, "helpers", "exec"), space)
    return space


PLAIN = functions(jit=False)
COMPILED = functions(jit=True)


def compiled(name: str, x: Array, dtype: Any = np.float32) -> Array:
    """The function in a compiled loop, where LLVM makes vector code of it."""
    function = COMPILED[name]

    @njit(fastmath={"contract", "nsz", "arcp", "afn"}, error_model="numpy")
    def loop(out: Array, x: Array) -> None:
        for i in range(len(x)):
            out[i] = function(x[i])

    out = np.empty(len(x), dtype)
    loop(out, x)
    return out


def plain(name: str, x: Array) -> Array:
    """The function as Python, number by number."""
    with np.errstate(all="ignore"):
        return np.array([PLAIN[name](value) for value in x])


def grid(name: str, count: int) -> Array:
    """Numbers of all sizes and signs; angles up to 2^20 radians."""
    low, high = (-40, 20) if name in ("sin", "cos") else (-140, 127.9)
    sizes = np.exp2(np.linspace(low, high, count))
    middle = np.linspace(-100, 100, count)
    return np.concatenate([sizes, -sizes, middle, middle / 50]).astype(np.float32)


def units(got: Array, want: Array) -> Array:
    """The error in units in the last place of the right value."""
    near = np.abs(want)
    spacing = np.spacing(np.clip(near, FLUSHED, 2.0**127).astype(np.float32))
    finite = np.isfinite(want) & (near < np.finfo(np.float32).max)
    wrong = np.abs(got.astype(np.float64) - np.where(finite, want, 0.0)) / spacing
    wrong = np.where(finite, wrong, 0.0)
    return np.where((near < FLUSHED) & (np.abs(got) <= FLUSHED), 0.0, wrong)


@pytest.mark.parametrize("name", EXACT)
def test_error_stays_within_what_the_docstring_says(name: str) -> None:
    for x, run in ((grid(name, 100_000), compiled), (grid(name, 150), plain)):
        with np.errstate(all="ignore"):
            want = EXACT[name](x.astype(np.float64))
        got = run(name, x)
        assert got.dtype == np.float32
        assert (np.isnan(got) == np.isnan(want)).all()
        errors = units(got, want)
        worst = int(errors.argmax())
        assert errors[worst] <= WITHIN[name], (name, x[worst], got[worst], want[worst])
        assert f"within {WITHIN[name]:.0f} ulp" in numba_helpers.SOURCES[name]


INF, NAN = np.inf, np.nan
SPECIAL = [
    ("exp", [-INF, 0, INF, NAN, -1000, 1000], [0, 1, INF, NAN, 0, INF]),
    ("exp2", [-INF, 0, INF, NAN, 10, -3, 127, 128], [0, 1, INF, NAN, 1024, 0.125, 2.0**127, INF]),
    ("expm1", [-INF, 0, INF, NAN, 1e-30], [-1, 0, INF, NAN, 1e-30]),
    ("log", [0, 1, INF, NAN, -1, -INF], [-INF, 0, INF, NAN, NAN, NAN]),
    ("log2", [0, 1, INF, NAN, -1, 8, 2.0**-140], [-INF, 0, INF, NAN, NAN, 3, -140]),
    ("log1p", [-1, 0, INF, NAN, -2, 1e-30], [-INF, 0, INF, NAN, NAN, 1e-30]),
    ("tanh", [-INF, 0, INF, NAN, -1e30, 1e30], [-1, 0, 1, NAN, -1, 1]),
    ("sigmoid", [-INF, 0, INF, NAN], [0, 0.5, 1, NAN]),
    ("log_sigmoid", [-INF, INF, NAN], [-INF, 0, NAN]),
    ("softplus", [-INF, INF, NAN], [0, INF, NAN]),
    ("sin", [0, INF, NAN], [0, NAN, NAN]),
    ("cos", [0, -INF, NAN], [1, NAN, NAN]),
    ("cos_turns", [0, 0.25, 0.5, -0.75, 3, 1e30, INF, NAN], [1, 0, -1, 0, 1, 1, NAN, NAN]),
    ("sin_turns", [0, 0.25, 0.5, -0.25, 3, 1e30, INF, NAN], [0, 1, 0, -1, 0, 0, NAN, NAN]),
]


@pytest.mark.parametrize(("name", "x", "want"), SPECIAL, ids=[row[0] for row in SPECIAL])
def test_special_points_are_exact(name: str, x: list[float], want: list[float]) -> None:
    points, right = np.array(x, np.float32), np.array(want, np.float32)
    np.testing.assert_array_equal(plain(name, points), right)
    np.testing.assert_array_equal(compiled(name, points), right)


def test_power() -> None:
    """Against float64 over sizes and exponents, and where one of the two is out of the ordinary."""
    random = np.random.default_rng(0)
    x = np.exp2(random.uniform(-30, 30, 2000)).astype(np.float32)
    a = random.uniform(-4, 4, 2000).astype(np.float32)
    special = [(0, 0), (0, 2), (0, -1), (-2, 3), (-2, 2), (-2, 0.5), (INF, 1), (NAN, 0), (NAN, 1)]
    x, a = (np.append(u, [v[n] for v in special]).astype(np.float32) for n, u in enumerate((x, a)))
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), a)
        got = np.array([PLAIN["power"](u, v) for u, v in zip(x, a, strict=True)])
    function = COMPILED["power"]
    fast = np.array([function(u, v) for u, v in zip(x, a, strict=True)])
    for result in (got, fast):
        np.testing.assert_array_equal(result[-len(special) :], want[-len(special) :])
        assert units(result, want).max() <= 1.0


def test_sixteen_bits_widen_exactly() -> None:
    """All 65536 patterns of fp16 and of bf16: subnormals, infinities and NaN too."""
    patterns = np.arange(65536, dtype=np.uint16)
    wide = compiled("from_f16", patterns)
    np.testing.assert_array_equal(wide, patterns.view(np.float16).astype(np.float32))
    some = patterns[::97]
    half = plain("from_f16", some)
    np.testing.assert_array_equal(half, some.view(np.float16).astype(np.float32))
    bits = (patterns.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(compiled("from_bf16", patterns), bits)
    np.testing.assert_array_equal(plain("from_bf16", some), bits[::97])


def test_order_survives_as_integers() -> None:
    x = np.array([-INF, -3.5, -1e-40, 0.0, 1e-40, 2.0, INF], np.float32)
    for run in (plain, lambda name, x: compiled(name, x, np.int32)):
        keys = run("ordered", x)
        assert (np.diff(keys.astype(np.int64)) > 0).all()
    np.testing.assert_array_equal(plain("unordered", plain("ordered", x)), x)


def test_loops_over_them_become_vector_code() -> None:
    function = COMPILED["exp2"]

    @njit(fastmath={"reassoc", "contract", "nsz", "arcp", "afn"}, error_model="numpy")
    def rows(out: Array, x: Array) -> np.float32:
        total = np.float32(0.0)
        for i in range(len(x)):
            y = function(x[i])
            out[i] = y
            total += y
        return total

    x = np.linspace(-3, 3, 64, dtype=np.float32)
    assert abs(rows(np.empty_like(x), x) - np.exp2(x).sum()) < 1e-4
    assert " x float>" in rows.inspect_llvm(rows.signatures[0])

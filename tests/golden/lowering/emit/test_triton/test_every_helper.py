"""Functions."""

import triton
import triton.language as tl


@triton.jit
def floor_div(a, b):
    """The quotient rounded down; Triton's own // rounds towards zero."""
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit
def floor_mod(a, b):
    """The remainder with the sign of b; Triton's own % takes the sign of a."""
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def power(x, a):
    """x ** a for real a; x < 0 has a power where a is whole."""
    y = tl.where(a == 0.0, 1.0, tl.exp2(a * tl.log2(tl.abs(x))))
    turned = tl.where(a * 0.5 != tl.floor(a * 0.5), -y, y)
    turned = tl.where(a != tl.floor(a), float("nan"), turned)
    return tl.where(x < 0.0, turned, y)


@triton.jit
def square(x):
    """x * x."""
    return x * x


@triton.jit
def log1p(x):
    """log(1 + x): the logarithm of the rounded sum, times what rounding did to x (Kahan)."""
    u = 1.0 + x
    d = u - 1.0
    return tl.where((d == 0.0) | (d == float("inf")), x, tl.log(u) * (x / d))


@triton.jit
def expm1(x):
    """exp(x) - 1: a Taylor polynomial where the difference would cancel."""
    y = 0.00138888889 + x * (0.000198412698 + x * 0.0000248015873)
    y = 0.166666667 + x * (0.0416666667 + x * (0.00833333333 + x * y))
    return tl.where(tl.abs(x) < 0.5, x * (1.0 + x * (0.5 + x * y)), tl.exp(x) - 1.0)


@triton.jit
def tanh(x):
    """The hyperbolic tangent, from a power of e that cannot overflow."""
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0.0, -t, t)


@triton.jit
def softplus(x):
    """log(1 + e^x), from a power of e that cannot overflow."""
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def log_sigmoid(x):
    """log(1 / (1 + e^-x)), from a power of e that cannot overflow."""
    return tl.minimum(x, 0.0) - log1p(tl.exp(-tl.abs(x)))


@triton.jit
def sine_of_quarter(r):
    """sin(2 pi r) for |r| <= 1/4, to the last bits of fp32."""
    z = r * r
    y = 81.6024807429 - z * (76.5812845597 - z * 39.7607220786)
    return r * (6.2831852803 - z * (41.3416806681 - z * y))


@triton.jit
def cos_turns(x):
    """cos(2 pi x), with an exact reduction to one turn."""
    return sine_of_quarter(0.25 - tl.abs(x - tl.floor(x + 0.5)))


@triton.jit
def sin_turns(x):
    """sin(2 pi x), with an exact reduction to one turn."""
    r = x - tl.floor(x + 0.5)
    half = tl.where(r < 0.0, -0.5, 0.5)
    return sine_of_quarter(tl.where(tl.abs(r) > 0.25, half - r, r))


@triton.jit(do_not_specialize=["T_q"])
def apply_exp_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function exp."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.exp(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_exp2_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function exp2."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.exp2(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_log_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function log."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.log(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_log2_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function log2."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.log2(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_log1p_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function log1p."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, log1p(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_expm1_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function expm1."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, expm1(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_sqrt_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function sqrt."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.sqrt(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_rsqrt_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function rsqrt."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.rsqrt(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_sin_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function sin."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.sin(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_cos_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function cos."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.cos(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_cos_turns_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function cos_turns."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, cos_turns(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_sin_turns_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function sin_turns."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, sin_turns(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_tanh_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function tanh."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tanh(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_sigmoid_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function sigmoid."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.sigmoid(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_log_sigmoid_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function log_sigmoid."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, log_sigmoid(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_softplus_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function softplus."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, softplus(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_relu_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function relu."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.maximum(b_x, 0.0), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_floor_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function floor."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.floor(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_neg_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function neg."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, -b_x, mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_abs_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function abs."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.abs(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_power_f32(
    x,
    y,
    out,
    s_x_t,
    s_y_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function **."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_y = y + tl.cast(i_m * BM, tl.int64) * s_y_t
    b_y = tl.load(p_y + tl.arange(0, BM) * s_y_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, power(b_x, b_y), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_floor_div_f32(
    x,
    y,
    out,
    s_x_t,
    s_y_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function //."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_y = y + tl.cast(i_m * BM, tl.int64) * s_y_t
    b_y = tl.load(p_y + tl.arange(0, BM) * s_y_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.floor(b_x / b_y), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_minimum_f32(
    x,
    y,
    out,
    s_x_t,
    s_y_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function minimum."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_y = y + tl.cast(i_m * BM, tl.int64) * s_y_t
    b_y = tl.load(p_y + tl.arange(0, BM) * s_y_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.minimum(b_x, b_y), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_maximum_f32(
    x,
    y,
    out,
    s_x_t,
    s_y_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function maximum."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_y = y + tl.cast(i_m * BM, tl.int64) * s_y_t
    b_y = tl.load(p_y + tl.arange(0, BM) * s_y_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, tl.maximum(b_x, b_y), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_power_f32(
    x,
    out,
    s_x_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function **."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1.0)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, square(b_x), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_floor_div_i32(
    x,
    y,
    out,
    s_x_t,
    s_y_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function //."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1)
    p_y = y + tl.cast(i_m * BM, tl.int64) * s_y_t
    b_y = tl.load(p_y + tl.arange(0, BM) * s_y_t, mask=o_m < T_q, other=1)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, floor_div(b_x, b_y), mask=o_m < T_q)


@triton.jit(do_not_specialize=["T_q"])
def apply_floor_mod_i32(
    x,
    y,
    out,
    s_x_t,
    s_y_t,
    s_out_t,
    T_q,
    BM: tl.constexpr,
):
    """The function %."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    p_x = x + tl.cast(i_m * BM, tl.int64) * s_x_t
    b_x = tl.load(p_x + tl.arange(0, BM) * s_x_t, mask=o_m < T_q, other=1)
    p_y = y + tl.cast(i_m * BM, tl.int64) * s_y_t
    b_y = tl.load(p_y + tl.arange(0, BM) * s_y_t, mask=o_m < T_q, other=1)
    p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t
    tl.store(p_out + tl.arange(0, BM) * s_out_t, floor_mod(b_x, b_y), mask=o_m < T_q)

"""Sums along the sequence that a generated module for a GPU forms by kernels of its own."""

SOURCES = {
    "sum_by_tile_on_gpu": '''
@triton.jit(do_not_specialize=["T"])
def sums_by_tile(
    high,
    low,
    base,
    out,
    s_x_b,
    s_x_h,
    s_b_b,
    s_b_h,
    s_o_b,
    s_o_h,
    T,
    H,
    G,
    ROWS: tl.constexpr,
    LAST: tl.constexpr,
    HAS_BASE: tl.constexpr,
    BT: tl.constexpr,
):
    """out_t = base_t + (x_a - x_t) / ln 2, a the last token of t's tile, or x_a the high digits
    of the first one.
    """
    i_h = (tl.program_id(0) % H).to(tl.int64)
    i_b = (tl.program_id(0) // H).to(tl.int64)
    o_t = tl.program_id(1) * BT + tl.arange(0, BT)
    o_a = o_t // ROWS * ROWS
    if LAST:
        o_a = tl.minimum(o_a + ROWS, T) - 1
    start = i_b * s_x_b + i_h // G * s_x_h
    inside = o_t < T
    b_high = tl.load(high + start + o_t, mask=inside, other=0.0)
    b_low = tl.load(low + start + o_t, mask=inside, other=0.0)
    a_high = tl.load(high + start + o_a, mask=inside, other=0.0)
    apart = a_high - b_high - b_low
    if LAST:
        apart = a_high - b_high + (tl.load(low + start + o_a, mask=inside, other=0.0) - b_low)
    b_out = apart * 1.4426950408889634
    if HAS_BASE:
        b_out += tl.load(base + i_b * s_b_b + i_h * s_b_h + o_t, mask=inside, other=0.0)
    tl.store(out + i_b * s_o_b + i_h * s_o_h + o_t, b_out, mask=inside)


def sum_by_tile(high, low, rows, base, last):
    """[batch, time, head], like the sums of a head laid along time."""
    B, T, H = (high if base is None else base).shape
    steps = triton.cdiv(T, 16) * 16
    out = torch.empty(B, H, steps, dtype=torch.float32, device=high.device)[..., :T].transpose(1, 2)
    if out.numel():
        like = high if base is None else base
        with device_of(high):
            sums_by_tile[(B * H, triton.cdiv(T, 1024))](
                high,
                low,
                like,
                out,
                *high.stride()[::2],
                *like.stride()[::2],
                *out.stride()[::2],
                T,
                H,
                H // high.shape[2],
                ROWS=rows,
                LAST=last,
                HAS_BASE=base is not None,
                BT=1024,
            )
    return out


def until_tile_end(high, low, rows):
    """(x_e - x_t) / ln 2, e the last of t's tile of tokens; x = high + low [batch, time, heads]."""
    return sum_by_tile(high, low, rows, None, True)


def since_tile_start(high, low, rows, base):
    """base_t - (x_t - high_b) / ln 2, b the first of t's tile; base [batch, time, head]."""
    return sum_by_tile(high, low, rows, base, False)
''',
    "prefix_digits_on_gpu": '''
@triton.jit(do_not_specialize=["T", "H", "s_x_b", "s_x_h"])
def sums_of_steps(
    x,
    offsets,
    high,
    low,
    s_x_b,
    s_x_t,
    s_x_h,
    s_o_b,
    s_o_h,
    T,
    H,
    PACKED: tl.constexpr,
    BT: tl.constexpr,
):
    """high + low [batch, heads, time]: the float64 sum of x up to each token of its sequence."""
    i_h = (tl.program_id(0) % H).to(tl.int64)
    i_b = (tl.program_id(0) // H).to(tl.int64)
    first, last = 0, T
    if PACKED:
        first, last = tl.load(offsets + i_b), tl.load(offsets + i_b + 1)
        i_b = i_b * 0
    before = tl.zeros([1], tl.float64)
    for i_t in range(first, last, BT):
        o_t = (i_t + tl.arange(0, BT)).to(tl.int64)
        p_x = x + i_b * s_x_b + o_t * s_x_t + i_h * s_x_h
        b_x = tl.load(p_x, mask=o_t < last, other=0.0).to(tl.float64)
        b_x = tl.where(b_x < -1e30, -1e5, b_x)
        b_sum = before + tl.cumsum(b_x, 0)
        b_high = b_sum.to(tl.float32)
        p_out = i_b * s_o_b + i_h * s_o_h + o_t
        tl.store(high + p_out, b_high, mask=o_t < last)
        tl.store(low + p_out, (b_sum - b_high.to(tl.float64)).to(tl.float32), mask=o_t < last)
        before += tl.sum(b_x, 0)


@triton.jit(do_not_specialize=["T", "H", "s_x_b", "s_x_h", "s_d_b", "s_d_h"])
def sums_of_gradients(
    x,
    offsets,
    d,
    d_x,
    s_x_b,
    s_x_t,
    s_x_h,
    s_d_b,
    s_d_t,
    s_d_h,
    T,
    H,
    PACKED: tl.constexpr,
    BT: tl.constexpr,
):
    """d_x [batch, heads, time]: the float64 sum of d from each token to the end of its sequence."""
    i_h = (tl.program_id(0) % H).to(tl.int64)
    i_b = (tl.program_id(0) // H).to(tl.int64)
    first, last = 0, T
    if PACKED:
        first, last = tl.load(offsets + i_b), tl.load(offsets + i_b + 1)
        i_b = i_b * 0
    steps = tl.cdiv(last - first, BT)
    after = tl.zeros([1], tl.float64)
    for step in range(steps):
        o_t = (first + (steps - 1 - step) * BT + tl.arange(0, BT)).to(tl.int64)
        p_d = d + i_b * s_d_b + o_t * s_d_t + i_h * s_d_h
        b_d = tl.load(p_d, mask=o_t < last, other=0.0).to(tl.float64)
        p_x = x + i_b * s_x_b + o_t * s_x_t + i_h * s_x_h
        b_x = tl.load(p_x, mask=o_t < last, other=0.0)
        b_sum = tl.where(b_x < -1e30, 0.0, after + tl.cumsum(b_d, 0, reverse=True))
        p_out = d_x + (i_b * H + i_h) * T + o_t
        tl.store(p_out, b_sum.to(d_x.dtype.element_ty), mask=o_t < last)
        after += tl.sum(b_d, 0)


class PrefixDigits(torch.autograd.Function):
    """The sum of x up to each token of its sequence, in two digits of float32.

    A step below -1e30 counts as -1e5: e^-1e5 is 0, and differences of sums stay finite. The
    gradient goes through the high digits.
    """

    @staticmethod
    def forward(ctx, x, offsets):
        B, T, H = x.shape
        shape = B, H, triton.cdiv(T, 16) * 16
        high, low = (torch.empty(shape, dtype=torch.float32, device=x.device) for _ in range(2))
        programs = H * (B if offsets is None else len(offsets) - 1)
        if x.numel() and programs:
            with device_of(x):
                sums_of_steps[(programs,)](
                    x,
                    offsets,
                    high,
                    low,
                    *x.stride(),
                    *high.stride()[:2],
                    T,
                    H,
                    PACKED=offsets is not None,
                    BT=1024,
                )
        ctx.save_for_backward(x, offsets)
        high, low = (digits[..., :T].transpose(1, 2) for digits in (high, low))
        ctx.mark_non_differentiable(low)
        return high, low

    @staticmethod
    def backward(ctx, d, _):
        x, offsets = ctx.saved_tensors
        B, T, H = x.shape
        d_x = torch.empty(B, H, T, dtype=x.dtype, device=x.device)
        programs = H * (B if offsets is None else len(offsets) - 1)
        if x.numel() and programs:
            with device_of(x):
                sums_of_gradients[(programs,)](
                    x,
                    offsets,
                    d,
                    d_x,
                    *x.stride(),
                    *d.stride(),
                    T,
                    H,
                    PACKED=offsets is not None,
                    BT=1024,
                )
        return d_x.transpose(1, 2), None


def prefix_digits(x, call):
    """The sum of x [batch, time, heads] up to each token of its sequence, in two digits."""
    return PrefixDigits.apply(x, call.cu_seqlens_k)
''',
}
INNER = frozenset(
    {"PrefixDigits", "sum_by_tile", "sums_by_tile", "sums_of_gradients", "sums_of_steps"}
)
"""What only these functions call."""

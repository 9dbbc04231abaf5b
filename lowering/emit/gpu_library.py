"""Small kernels and functions that a generated module for a GPU takes along.

What is a line of torch elsewhere is a kernel here where memory would be read several times for it.
"""

SOURCES = {
    "within_reach": '''
def within_reach(x):
    """x [batch, time, heads, width], copied where an offset inside of a tile has over 31 bits."""
    reach = 256 * abs(x.stride(1)) + x.shape[-1] * abs(x.stride(-1))
    return x if reach < 2**31 else x.contiguous()
''',
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
    "row_dot_on_gpu": '''
@triton.jit(do_not_specialize=["s_a_b", "s_a_h", "s_b_b", "s_b_h", "T", "H"])
def row_dots(
    a,
    b,
    out,
    s_a_b,
    s_a_t,
    s_a_h,
    s_a_d,
    s_b_b,
    s_b_t,
    s_b_h,
    s_b_d,
    T,
    H,
    D: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    """out [batch, head, time]: dot products of the rows of a and b [batch, time, head, D]."""
    i_h = (tl.program_id(0) % H).to(tl.int64)
    i_b = (tl.program_id(0) // H).to(tl.int64)
    o_t = (tl.program_id(1) * BT + tl.arange(0, BT)).to(tl.int64)
    o_d = tl.arange(0, BD)
    inside = (o_t[:, None] < T) & (o_d[None, :] < D)
    p_a = a + i_b * s_a_b + i_h * s_a_h + o_t[:, None] * s_a_t + o_d[None, :] * s_a_d
    p_b = b + i_b * s_b_b + i_h * s_b_h + o_t[:, None] * s_b_t + o_d[None, :] * s_b_d
    b_a = tl.load(p_a, mask=inside, other=0.0).to(tl.float32)
    b_b = tl.load(p_b, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + tl.program_id(0).to(tl.int64) * T + o_t, tl.sum(b_a * b_b, 1), mask=o_t < T)


def row_dot(a, b):
    """a_i . b_i of each row of channels, in float32: one pass over memory, no product in it."""
    B, T, H, D = a.shape
    out = torch.empty(B, H, T, dtype=torch.float32, device=a.device)
    if out.numel():
        with device_of(a):
            row_dots[(B * H, triton.cdiv(T, 32))](
                a,
                b,
                out,
                *a.stride(),
                *b.stride(),
                T,
                H,
                D=D,
                BT=32,
                BD=padded_width(D),
            )
    return out.transpose(1, 2)
''',
    "rotation_on_gpu": '''
@triton.jit(do_not_specialize=["s_x_b", "s_x_h", "s_cos_b", "s_cos_h", "T", "H"])
def rotate_planes(
    x,
    cos,
    sin,
    out,
    s_x_b,
    s_x_t,
    s_x_h,
    s_x_d,
    s_cos_b,
    s_cos_t,
    s_cos_h,
    s_cos_p,
    T,
    H,
    sign,
    P: tl.constexpr,
    STEP: tl.constexpr,
    GAP: tl.constexpr,
    BT: tl.constexpr,
    BP: tl.constexpr,
):
    """out [batch, time, head, 2 P]: planes of channels (p STEP, p STEP + GAP) of x, turned."""
    i_h = (tl.program_id(0) % H).to(tl.int64)
    i_b = (tl.program_id(0) // H).to(tl.int64)
    o_t = (tl.program_id(1) * BT + tl.arange(0, BT)).to(tl.int64)[:, None]
    o_p = tl.arange(0, BP)[None, :]
    inside = (o_t < T) & (o_p < P)
    p_x = x + i_b * s_x_b + i_h * s_x_h + o_t * s_x_t + o_p * STEP * s_x_d
    b_a = tl.load(p_x, mask=inside, other=0.0).to(tl.float32)
    b_b = tl.load(p_x + GAP * s_x_d, mask=inside, other=0.0).to(tl.float32)
    o_turn = i_b * s_cos_b + i_h * s_cos_h + o_t * s_cos_t + o_p * s_cos_p
    b_cos = tl.load(cos + o_turn, mask=inside, other=0.0)
    b_sin = tl.load(sin + o_turn, mask=inside, other=0.0) * sign
    p_out = out + ((i_b * T + o_t) * H + i_h) * (2 * P) + o_p * STEP
    tl.store(p_out, (b_a * b_cos - b_b * b_sin).to(out.dtype.element_ty), mask=inside)
    tl.store(p_out + GAP, (b_b * b_cos + b_a * b_sin).to(out.dtype.element_ty), mask=inside)


def rotated(x, cos, sin, step, gap, sign):
    """x [batch, time, head, 2 planes] with each plane turned; cos, sin of the same leading axes."""
    B, T, H, D = x.shape
    out = torch.empty(B, T, H, D, dtype=x.dtype, device=x.device)
    if out.numel():
        with device_of(x):
            rotate_planes[(B * H, triton.cdiv(T, 32))](
                x,
                cos,
                sin,
                out,
                *x.stride(),
                *cos.stride(),
                T,
                H,
                sign,
                P=D // 2,
                STEP=step,
                GAP=gap,
                BT=32,
                BP=triton.next_power_of_2(D // 2),
            )
    return out


class Rotation(torch.autograd.Function):
    """A rotation of planes (p step, p step + gap) in fp32, in one pass over memory."""

    @staticmethod
    def forward(ctx, x, cos, sin, step, gap):
        shape = (*x.shape[:-1], x.shape[-1] // 2)
        wide = [turn.expand(shape) for turn in (cos, sin)]
        ctx.save_for_backward(x, cos, sin)
        ctx.step, ctx.gap = step, gap
        return rotated(x, *wide, step, gap, 1.0)

    @staticmethod
    def backward(ctx, d):
        x, cos, sin = ctx.saved_tensors
        dx = d_cos = d_sin = None
        if ctx.needs_input_grad[0]:
            wide = [turn.expand(*x.shape[:-1], -1) for turn in (cos, sin)]
            dx = rotated(d, *wide, ctx.step, ctx.gap, -1.0)
        if any(ctx.needs_input_grad[1:3]):
            place = torch.arange(x.shape[-1] // 2, device=x.device) * ctx.step
            a, b, da, db = (y[..., place + n].float() for y in (x, d) for n in (0, ctx.gap))
            d_cos = (da * a + db * b).sum_to_size(cos.shape)
            d_sin = (db * a - da * b).sum_to_size(sin.shape)
        return dx, d_cos, d_sin, None, None
''',
    "rotate_half_on_gpu": '''
def rotate_half(x, angle):
    """x with each plane (c, c + d/2) of its channels turned by its angle."""
    return Rotation.apply(x, angle.cos().float(), angle.sin().float(), 1, x.shape[-1] // 2)
''',
    "rotate_pairs_on_gpu": '''
def rotate_pairs(x, angle):
    """x with each plane (2c, 2c + 1) of its channels turned by its angle."""
    return Rotation.apply(x, angle.cos().float(), angle.sin().float(), 2, 1)
''',
}
INSTEAD = {
    "sum_by_tile": ("sum_by_tile_on_gpu",),
    "row_dot": ("row_dot_on_gpu",),
    "rotate_half": ("rotation_on_gpu", "rotate_half_on_gpu"),
    "rotate_pairs": ("rotation_on_gpu", "rotate_pairs_on_gpu"),
}
"""What stands for a function of the torch library in a module for a GPU."""

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
    "row_statistics_on_gpu": '''
@triton.jit(do_not_specialize=["s_a_b", "s_a_h", "s_b_b", "s_b_h", "T", "H"])
def rows_of_backward(
    a,
    b,
    lse,
    dlse,
    delta,
    lse_log2,
    dlse_alive,
    s_a_b,
    s_a_t,
    s_a_h,
    s_a_d,
    s_b_b,
    s_b_t,
    s_b_h,
    s_b_d,
    s_l_b,
    s_l_t,
    s_l_h,
    s_g_b,
    s_g_t,
    s_g_h,
    s_o_b,
    s_o_h,
    T,
    H,
    D: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    """delta = a . b - dlse and lse / ln 2 of each row; inf, and no dlse, of one without keys."""
    i_h = (tl.program_id(0) % H).to(tl.int64)
    i_b = (tl.program_id(0) // H).to(tl.int64)
    o_t = (tl.program_id(1) * BT + tl.arange(0, BT)).to(tl.int64)
    o_d = tl.arange(0, BD)
    inside = (o_t[:, None] < T) & (o_d[None, :] < D)
    p_a = a + i_b * s_a_b + i_h * s_a_h + o_t[:, None] * s_a_t + o_d[None, :] * s_a_d
    p_b = b + i_b * s_b_b + i_h * s_b_h + o_t[:, None] * s_b_t + o_d[None, :] * s_b_d
    b_a = tl.load(p_a, mask=inside, other=0.0).to(tl.float32)
    b_b = tl.load(p_b, mask=inside, other=0.0).to(tl.float32)
    b_lse = tl.load(lse + i_b * s_l_b + o_t * s_l_t + i_h * s_l_h, mask=o_t < T, other=0.0)
    b_dlse = tl.load(dlse + i_b * s_g_b + o_t * s_g_t + i_h * s_g_h, mask=o_t < T, other=0.0)
    dead = b_lse == float("-inf")
    b_dlse = tl.where(dead, 0.0, b_dlse)
    o_out = i_b * s_o_b + i_h * s_o_h + o_t
    tl.store(delta + o_out, tl.sum(b_a * b_b, 1) - b_dlse, mask=o_t < T)
    b_log2 = tl.where(dead, float("inf"), b_lse * 1.4426950408889634)
    tl.store(lse_log2 + o_out, b_log2, mask=o_t < T)
    tl.store(dlse_alive + o_out, b_dlse, mask=o_t < T)


def row_statistics(do, o, lse, dlse):
    """What the backward kernels read of each row, [batch, time, head], and dlse.

    delta = do . o - dlse, and lse / ln 2. A row without keys has inf there, and no dlse.
    """
    B, T, H, D = o.shape
    shape = 3, B, H, triton.cdiv(T, 16) * 16
    found = torch.empty(shape, dtype=torch.float32, device=o.device)
    if o.numel():
        with device_of(o):
            rows_of_backward[(B * H, triton.cdiv(T, 32))](
                do,
                o,
                lse,
                dlse,
                *found,
                *do.stride(),
                *o.stride(),
                *lse.stride(),
                *dlse.stride(),
                *found.stride()[1:3],
                T,
                H,
                D=D,
                BT=32,
                BD=padded_width(D),
            )
    return found[..., :T].transpose(2, 3).unbind(0)
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
    "margin_of_norms": ("margin_of_norms_on_gpu",),
    "prefix_digits": ("prefix_digits_on_gpu",),
    "row_dot": ("row_dot_on_gpu",),
    "row_statistics": ("row_statistics_on_gpu",),
    "staircases": ("staircases_on_gpu",),
    "rotate_half": ("rotation_on_gpu", "rotate_half_on_gpu"),
    "rotate_pairs": ("rotation_on_gpu", "rotate_pairs_on_gpu"),
}
"""What stands for a function of the torch library in a module for a GPU."""
INNER = frozenset({"Rotation", "rotate_planes", "rotated", "row_dots", "rows_of_backward"})
"""What only these functions call."""

"""How far tiles weigh behind a decay: kernels of a module for a GPU (lowering/made.py)."""

SOURCES = {
    "margin_of_norms_on_gpu": '''
@triton.jit(do_not_specialize=["s_x_b", "s_x_h", "T", "H", "STEPS"])
def largest_squares(
    x,
    out,
    s_x_b,
    s_x_t,
    s_x_h,
    s_x_d,
    T,
    H,
    STEPS,
    D: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    """out [batch, head, step]: the largest |x_t|^2 of BT tokens of x [batch, time, head, D]."""
    i_h = (tl.program_id(0) % H).to(tl.int64)
    i_b = (tl.program_id(0) // H).to(tl.int64)
    o_t = (tl.program_id(1) * BT + tl.arange(0, BT)).to(tl.int64)
    o_d = tl.arange(0, BD)
    p_x = x + i_b * s_x_b + i_h * s_x_h + o_t[:, None] * s_x_t + o_d[None, :] * s_x_d
    inside = (o_t[:, None] < T) & (o_d[None, :] < D)
    b_x = tl.load(p_x, mask=inside, other=0.0).to(tl.float32)
    b_largest = tl.max(tl.sum(b_x * b_x, 1), 0)
    tl.store(out + tl.program_id(0).to(tl.int64) * STEPS + tl.program_id(1), b_largest)


def largest_square(x):
    """max_t |x_t|^2 of x [batch, time, head, D], [batch, head]: one pass over memory."""
    B, T, H, D = x.shape
    steps = triton.cdiv(T, 64)
    out = torch.empty(B, H, steps, dtype=torch.float32, device=x.device)
    with device_of(x):
        largest_squares[(B * H, steps)](
            x, out, *x.stride(), T, H, steps, D=D, BT=64, BD=padded_width(D)
        )
    return out.amax(-1)


def margin_of_norms(q, k, scale, keys, log_eps):
    """2 u + log keys - log_eps, |q_i . k_j scale| <= u by norms: [batch, head].

    Keys whose decay is below minus that weigh less than e^log_eps of a row, all together.
    """
    if not (q.numel() and k.numel()):
        return torch.zeros(q.shape[0], q.shape[2], device=q.device)
    q, k = largest_square(q), largest_square(k)
    bound = (q * k.repeat_interleave(q.shape[1] // k.shape[1], 1)).sqrt()
    return bound * (2 * abs(scale)) + (math.log(keys) - log_eps)
''',
    "staircases_on_gpu": '''
@triton.jit(do_not_specialize=["T_q", "T_k", "STEPS"])
def first_keys_of_tiles(
    margin,
    rows,
    columns,
    out,
    s_m_b,
    s_m_h,
    s_r_b,
    s_r_t,
    s_r_h,
    s_c_b,
    s_c_t,
    s_c_h,
    T_q,
    T_k,
    H,
    STEPS,
    G_R,
    G_C,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SOME: tl.constexpr,
):
    """out [batch, head, tile]: the first tile of keys that is not too far below, in keys."""
    i_h = (tl.program_id(0) % H).to(tl.int64)
    i_b = (tl.program_id(0) // H).to(tl.int64)
    o_m = tl.program_id(1) * SOME + tl.arange(0, SOME)
    o_r = o_m[:, None] * BM + tl.arange(0, BM)[None, :]
    p_r = rows + i_b * s_r_b + i_h // G_R * s_r_h + o_r.to(tl.int64) * s_r_t
    b_highest = tl.max(tl.load(p_r, mask=o_r < T_q, other=float("-inf")), 1)
    b_bar = b_highest + tl.load(margin + i_b * s_m_b + i_h * s_m_h)
    tiles = tl.cdiv(T_k, BN)
    b_first = tl.zeros([SOME], tl.int32) + tiles
    for i_n in range(0, tiles, SOME):
        o_n = i_n + tl.arange(0, SOME)
        o_c = o_n[:, None] * BN + tl.arange(0, BN)[None, :]
        p_c = columns + i_b * s_c_b + i_h // G_C * s_c_h + o_c.to(tl.int64) * s_c_t
        b_lowest = tl.min(tl.load(p_c, mask=o_c < T_k, other=float("inf")), 1)
        b_near = tl.where(b_lowest[None, :] < b_bar[:, None], o_n[None, :], tiles)
        b_first = tl.minimum(b_first, tl.min(b_near, 1))
    tl.store(out + tl.program_id(0).to(tl.int64) * STEPS + o_m, b_first * BN, mask=o_m < STEPS)


@triton.jit(do_not_specialize=["T_q", "T_k", "STEPS"])
def last_queries_of_tiles(
    margin,
    rows,
    columns,
    out,
    s_m_b,
    s_m_h,
    s_r_b,
    s_r_t,
    s_r_h,
    s_c_b,
    s_c_t,
    s_c_h,
    T_q,
    T_k,
    H,
    STEPS,
    G_R,
    G_C,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SOME: tl.constexpr,
):
    """out [batch, head, tile]: behind the last tile of queries whose first key is not behind."""
    i_h = (tl.program_id(0) % H).to(tl.int64)
    i_b = (tl.program_id(0) // H).to(tl.int64)
    o_n = tl.program_id(1) * SOME + tl.arange(0, SOME)
    b_lowest = tl.full([SOME], float("inf"), tl.float32)
    for i_n in range(0, (tl.program_id(1) + 1) * SOME, SOME):
        o_before = i_n + tl.arange(0, SOME)
        o_c = o_before[:, None] * BN + tl.arange(0, BN)[None, :]
        p_c = columns + i_b * s_c_b + i_h // G_C * s_c_h + o_c.to(tl.int64) * s_c_t
        b_own = tl.min(tl.load(p_c, mask=o_c < T_k, other=float("inf")), 1)
        b_before = tl.where(o_before[None, :] <= o_n[:, None], b_own[None, :], float("inf"))
        b_lowest = tl.minimum(b_lowest, tl.min(b_before, 1))
    b_bar = b_lowest - tl.load(margin + i_b * s_m_b + i_h * s_m_h)
    b_behind = tl.zeros([SOME], tl.int32)
    for i_m in range(0, tl.cdiv(T_q, BM), SOME):
        o_m = i_m + tl.arange(0, SOME)
        o_r = o_m[:, None] * BM + tl.arange(0, BM)[None, :]
        p_r = rows + i_b * s_r_b + i_h // G_R * s_r_h + o_r.to(tl.int64) * s_r_t
        b_highest = tl.max(tl.load(p_r, mask=o_r < T_q, other=float("-inf")), 1)
        b_near = tl.where(b_highest[None, :] > b_bar[:, None], o_m[None, :] + 1, 0)
        b_behind = tl.maximum(b_behind, tl.max(b_near, 1))
    tl.store(out + tl.program_id(0).to(tl.int64) * STEPS + o_n, b_behind * BM, mask=o_n < STEPS)


def staircase(kernel, margin, rows, columns, BM, BN, heads, steps):
    """A bound of each tile, int32 [batch, head, tile]."""
    B = rows.shape[0]
    out = torch.empty(B, heads, steps, dtype=torch.int32, device=rows.device)
    if out.numel():
        with device_of(rows):
            kernel[(B * heads, triton.cdiv(steps, 16))](
                margin,
                rows,
                columns,
                out,
                *margin.expand(B, heads).stride(),
                *rows.stride(),
                *columns.stride(),
                rows.shape[1],
                columns.shape[1],
                heads,
                steps,
                heads // rows.shape[2],
                heads // columns.shape[2],
                BM=BM,
                BN=BN,
                SOME=16,
            )
    return out


def first_keys(margin, rows, columns, BM, BN, heads):
    """The first key that may weigh for a tile of BM queries, a multiple of BN: [batch, head, tile].

    rows, columns [batch, time, heads]: the prefix sums of a decay at queries and keys.
    """
    steps = triton.cdiv(rows.shape[1], BM)
    return staircase(first_keys_of_tiles, margin, rows, columns, BM, BN, heads, steps)


def last_queries(margin, rows, columns, BM, BN, heads):
    """Behind the last query that a tile of BN keys may weigh for, a multiple of BM."""
    steps = triton.cdiv(columns.shape[1], BN)
    return staircase(last_queries_of_tiles, margin, rows, columns, BM, BN, heads, steps)
''',
}
INNER = frozenset(
    {
        "first_keys_of_tiles",
        "largest_square",
        "largest_squares",
        "last_queries_of_tiles",
        "staircase",
    }
)
"""What only these functions call."""

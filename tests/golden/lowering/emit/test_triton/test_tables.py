"""Entries of tables."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["T_q", "T_k"])
def gather(
    t,
    u,
    out,
    s_t_t,
    s_t_e,
    s_u_e,
    s_out_t0,
    s_out_t1,
    T_q,
    T_k,
    N_t,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Entries of tables."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    for i_n in tl.range(0, T_k, BN, num_stages=3):
        o_n = i_n + tl.arange(0, BN)
        # the entry of each pair
        o_t = tl.maximum(tl.minimum(o_m[:, None] - o_n[None, :], N_t - 1), 0)
        b_s = tl.cast(
            tl.load(
                t
                + tl.cast(i_m * BM, tl.int64) * s_t_t
                + tl.arange(0, BM)[:, None] * s_t_t
                + o_t * s_t_e,
                mask=o_m[:, None] < T_q,
                other=0.0,
            ),
            tl.float32,
        )
        b_s += tl.load(u + o_t * s_u_e)
        p_out = out + tl.cast(i_m * BM, tl.int64) * s_out_t0 + tl.cast(i_n, tl.int64) * s_out_t1
        tl.store(
            p_out + tl.arange(0, BM)[:, None] * s_out_t0 + tl.arange(0, BN)[None, :] * s_out_t1,
            b_s,
            mask=(o_m[:, None] < T_q) & (o_n[None, :] < T_k),
        )


@triton.jit(do_not_specialize=["T_q", "T_k"])
def scatter(
    g,
    dt,
    du,
    s_g_t0,
    s_g_t1,
    s_dt_t,
    s_dt_e,
    s_du_t,
    s_du_e,
    T_q,
    T_k,
    N_t,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Gradients of tables."""
    i_m = tl.program_id(0)
    o_m = i_m * BM + tl.arange(0, BM)
    for i_n in range(0, T_k, BN):
        o_n = i_n + tl.arange(0, BN)
        o_t = tl.maximum(tl.minimum(o_m[:, None] - o_n[None, :], N_t - 1), 0)
        p_g = g + tl.cast(i_m * BM, tl.int64) * s_g_t0 + tl.cast(i_n, tl.int64) * s_g_t1
        b_g = tl.load(
            p_g + tl.arange(0, BM)[:, None] * s_g_t0 + tl.arange(0, BN)[None, :] * s_g_t1,
            mask=(o_m[:, None] < T_q) & (o_n[None, :] < T_k),
            other=0.0,
        )
        p_dt = dt + tl.cast(i_m * BM, tl.int64) * s_dt_t
        tl.debug_barrier()
        for i_e in tl.range(tl.min(o_t), tl.max(o_t) + 1, num_stages=1):
            p_e = p_dt + tl.arange(0, BM) * s_dt_t + tl.cast(i_e, tl.int64) * s_dt_e
            tl.store(
                p_e,
                tl.load(p_e, mask=o_m < T_q, other=0.0)
                + tl.sum(tl.where(o_t == i_e, b_g, 0.0), axis=1),
                mask=o_m < T_q,
            )
        # [BM, BN]
        g_du = b_g * 2.0
        tl.debug_barrier()
        for i_e in tl.range(tl.min(o_t), tl.max(o_t) + 1, num_stages=1):
            p_e = du + tl.cast(i_m, tl.int64) * s_du_t + tl.cast(i_e, tl.int64) * s_du_e
            tl.store(
                p_e, tl.load(p_e) + tl.sum(tl.sum(tl.where(o_t == i_e, g_du, 0.0), axis=1), axis=0)
            )

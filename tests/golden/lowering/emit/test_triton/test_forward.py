"""FoX, forward."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["s_lse_b", "s_lse_h", "T_q", "T_k", "NM"])
def fox_fwd(
    q,
    k,
    c,
    v,
    o,
    lse,
    s_q_b,
    s_q_t,
    s_q_h,
    s_q_d,
    s_k_b,
    s_k_t,
    s_k_h,
    s_k_d,
    s_c_b,
    s_c_t,
    s_c_h,
    s_v_b,
    s_v_t,
    s_v_h,
    s_v_d,
    s_o_b,
    s_o_t,
    s_o_h,
    s_o_d,
    s_lse_b,
    s_lse_t,
    s_lse_h,
    T_q,
    T_k,
    H,
    G,
    NM,
    scale,
    D0: tl.constexpr,
    DV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD0: tl.constexpr,
    BV: tl.constexpr,
):
    """FoX causal attention: one tile of queries."""
    i_p = tl.program_id(0)
    i_m = i_p % NM
    i_h = (i_p // NM % H).to(tl.int64)
    i_b = (i_p // (NM * H)).to(tl.int64)
    o_d0 = tl.arange(0, BD0)
    o_v = tl.arange(0, BV)
    i_kv = i_h // G
    first = i_m * BM
    o_m = first + tl.arange(0, BM)
    shift = T_k - T_q
    p_q = q + i_b * s_q_b + tl.cast(first, tl.int64) * s_q_t + i_h * s_q_h
    # [BM, BD0]
    b_q = tl.load(
        p_q + tl.arange(0, BM)[:, None] * s_q_t + o_d0[None, :] * s_q_d,
        mask=(o_m[:, None] < T_q) & (o_d0[None, :] < D0),
        other=0.0,
    )
    # [BM]
    b_m = tl.full([BM], float("-inf"), tl.float32)
    b_l = tl.zeros([BM], tl.float32)
    # [BM, BV]
    b_o = tl.zeros([BM, BV], tl.float32)

    # Keys up to the last query of the tile.
    stop = tl.minimum(first + BM + shift, T_k)
    for i_n in range(0, stop, BN):
        o_n = i_n + tl.arange(0, BN)
        p_k = k + i_b * s_k_b + tl.cast(i_n, tl.int64) * s_k_t + i_kv * s_k_h
        # [BN, BD0]
        b_k = tl.load(
            p_k + tl.arange(0, BN)[:, None] * s_k_t + o_d0[None, :] * s_k_d,
            mask=(o_n[:, None] < T_k) & (o_d0[None, :] < D0),
            other=0.0,
        )
        p_c = c + i_b * s_c_b + tl.cast(i_n, tl.int64) * s_c_t + i_h * s_c_h
        # [BN]
        b_c = tl.load(p_c + tl.arange(0, BN) * s_c_t, mask=o_n < T_k, other=0.0)
        # FoX: the logarithm of what the gates between the key and the query keep.
        # [BM, BN]
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale - b_c[None, :]
        b_z = tl.where(
            (o_n[None, :] <= (o_m + shift)[:, None]) & (o_n < T_k)[None, :], b_s, float("-inf")
        )
        # [BM]
        b_n = tl.maximum(b_m, tl.max(b_z, axis=1))
        b_f = tl.where(b_n == float("-inf"), 0.0, b_n)
        b_r = tl.exp2(b_m - b_f)
        # [BM, BN]
        b_p = tl.exp2(b_z - b_f[:, None])
        # [BM]
        b_l = b_l * b_r + tl.sum(b_p, axis=1)
        p_v = v + i_b * s_v_b + tl.cast(i_n, tl.int64) * s_v_t + i_kv * s_v_h
        # [BN, BV]
        b_v = tl.load(
            p_v + tl.arange(0, BN)[:, None] * s_v_t + o_v[None, :] * s_v_d,
            mask=(o_n[:, None] < T_k) & (o_v[None, :] < DV),
            other=0.0,
        )
        # [BM, BV]
        b_o = tl.dot(b_p.to(v.dtype.element_ty), b_v, b_o * b_r[:, None], input_precision="ieee")
        # [BM]
        b_m = b_n
    p_o = o + i_b * s_o_b + tl.cast(first, tl.int64) * s_o_t + i_h * s_o_h
    tl.store(
        p_o + tl.arange(0, BM)[:, None] * s_o_t + o_v[None, :] * s_o_d,
        (b_o / tl.where(b_l == 0.0, 1.0, b_l)[:, None]).to(o.dtype.element_ty),
        mask=(o_m[:, None] < T_q) & (o_v[None, :] < DV),
    )
    p_lse = lse + i_b * s_lse_b + tl.cast(first, tl.int64) * s_lse_t + i_h * s_lse_h
    tl.store(
        p_lse + tl.arange(0, BM) * s_lse_t,
        (b_m + tl.log2(b_l)) * 0.6931471805599453,
        mask=o_m < T_q,
    )

"""FoX, keys."""

import triton
import triton.language as tl


@triton.jit
def floor_div(a, b):
    """The quotient rounded down; Triton's own // rounds towards zero."""
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit(do_not_specialize=["s_dc_b", "s_dc_h", "T_q", "T_k", "NN"])
def fox_bwd_columns(
    q,
    k,
    c,
    v,
    do,
    lse,
    delta,
    dk,
    dv,
    dc,
    s_c_b,
    s_c_t,
    s_c_h,
    s_lse_b,
    s_lse_t,
    s_lse_h,
    s_delta_b,
    s_delta_t,
    s_delta_h,
    s_dk_b,
    s_dk_t,
    s_dk_h,
    s_dk_d,
    s_dv_b,
    s_dv_t,
    s_dv_h,
    s_dv_d,
    s_dc_b,
    s_dc_t,
    s_dc_h,
    T_q,
    T_k,
    H,
    G,
    NN,
    scale,
    D0: tl.constexpr,
    DV: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BD0: tl.constexpr,
    BV: tl.constexpr,
):
    """Gradients on the side of the keys: one tile of keys."""
    i_p = tl.program_id(0)
    i_n = i_p % NN
    i_kv = (i_p // NN % (H // G)).to(tl.int64)
    i_b = (i_p // (NN * (H // G))).to(tl.int64)
    o_d0 = tl.arange(0, BD0)
    o_v = tl.arange(0, BV)
    first = i_n * BN
    if first >= T_k:
        return
    o_n = first + tl.arange(0, BN)
    shift = T_k - T_q
    # [BN, BD0]
    b_k = tl.reshape(k.load([tl.cast(i_b, tl.int32), tl.cast(i_kv, tl.int32), first, 0]), BN, BD0)
    # [BN, BV]
    b_v = tl.reshape(v.load([tl.cast(i_b, tl.int32), tl.cast(i_kv, tl.int32), first, 0]), BN, BV)
    # [BN, BD0]
    b_dk = tl.zeros([BN, BD0], tl.float32)
    # [BN, BV]
    b_dv = tl.zeros([BN, BV], tl.float32)
    start = floor_div(tl.maximum(first - shift, 0), BM) * BM
    for i_h in range(i_kv * G, i_kv * G + G):
        p_c = c + i_b * s_c_b + tl.cast(first, tl.int64) * s_c_t + i_h * s_c_h
        # [BN]
        b_c = tl.load(p_c + tl.arange(0, BN) * s_c_t, mask=o_n < T_k, other=0.0)
        b_dc = tl.zeros([BN], tl.float32)
        for i_m in range(start, T_q, BM):
            o_m = i_m + tl.arange(0, BM)
            # [BM, BD0]
            b_q = tl.reshape(
                q.load([tl.cast(i_b, tl.int32), tl.cast(i_h, tl.int32), i_m, 0]), BM, BD0
            )
            # [BM, BV]
            b_do = tl.reshape(
                do.load([tl.cast(i_b, tl.int32), tl.cast(i_h, tl.int32), i_m, 0]), BM, BV
            )
            p_lse = lse + i_b * s_lse_b + tl.cast(i_m, tl.int64) * s_lse_t + i_h * s_lse_h
            # [BM]
            b_lse = tl.load(p_lse + tl.arange(0, BM) * s_lse_t, mask=o_m < T_q, other=float("inf"))
            p_delta = delta + i_b * s_delta_b + tl.cast(i_m, tl.int64) * s_delta_t + i_h * s_delta_h
            b_delta = tl.load(p_delta + tl.arange(0, BM) * s_delta_t, mask=o_m < T_q, other=0.0)
            # [BN, BM]
            b_s = tl.where(
                (o_n[:, None] <= (o_m + shift)[None, :]) & (o_m < T_q)[None, :],
                tl.dot(b_k, tl.trans(b_q), input_precision="ieee") * scale - b_c[:, None],
                float("-inf"),
            )
            b_p = tl.exp2(b_s - b_lse[None, :])
            b_ds = b_p * (tl.dot(b_v, tl.trans(b_do), input_precision="ieee") - b_delta[None, :])
            # [BN, BV]
            b_dv = tl.dot(b_p.to(v.dtype), b_do, b_dv, input_precision="ieee")
            # [BN, BD0]
            b_dk = tl.dot(b_ds.to(v.dtype), b_q, b_dk, input_precision="ieee")
            # [BN]
            b_dc = b_dc - tl.sum(b_ds, axis=1)
        p_dc = dc + i_b * s_dc_b + tl.cast(first, tl.int64) * s_dc_t + i_h * s_dc_h
        tl.store(p_dc + tl.arange(0, BN) * s_dc_t, b_dc, mask=o_n < T_k)
    p_dk = dk + i_b * s_dk_b + tl.cast(first, tl.int64) * s_dk_t + i_kv * s_dk_h
    tl.store(
        p_dk + tl.arange(0, BN)[:, None] * s_dk_t + o_d0[None, :] * s_dk_d,
        b_dk * scale * 0.6931471805599453,
        mask=(o_n[:, None] < T_k) & (o_d0[None, :] < D0),
    )
    p_dv = dv + i_b * s_dv_b + tl.cast(first, tl.int64) * s_dv_t + i_kv * s_dv_h
    tl.store(
        p_dv + tl.arange(0, BN)[:, None] * s_dv_t + o_v[None, :] * s_dv_d,
        b_dv,
        mask=(o_n[:, None] < T_k) & (o_v[None, :] < DV),
    )

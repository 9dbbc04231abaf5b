"""FoX: forward, gradients of keys and values."""

import tilelang.language as T


def fox_fwd(
    B, T_q, T_k, shift, H, G, D0, DV, BM, BN, BD0, BV, *, io="bfloat16", num_stages=2, threads=128
):
    """fox"""
    KV = H // G
    NM = T.ceildiv(T_q, BM)

    @T.prim_func
    def main(
        q: T.Tensor((B, T_q, H, D0), io),
        k: T.Tensor((B, T_k, KV, D0), io),
        log_f_sum_q: T.Tensor((B, T_q, H), "float32"),
        log_f_sum_k: T.Tensor((B, T_k, H), "float32"),
        log_f_sum_q_low: T.Tensor((B, T_q, H), "float32"),
        log_f_sum_k_low: T.Tensor((B, T_k, H), "float32"),
        v: T.Tensor((B, T_k, KV, DV), io),
        o: T.Tensor((B, T_q, H, DV), io),
        o_exact: T.Tensor((B, T_q, H, DV), "float32"),
        lse: T.Tensor((B, T_q, H), "float32"),
        log_f_sum_k_to_end: T.Tensor((B, T_k, H), "float32"),
        scale: T.float32,
    ):
        with T.Kernel(NM, H, B, threads=threads) as (i_m, i_h, i_b):
            b_q = T.alloc_shared((BM, BD0), io)
            b_log_f_sum_q = T.alloc_fragment((BM,), "float32")
            b_log_f_sum_q_low = T.alloc_fragment((BM,), "float32")
            b_m = T.alloc_fragment((BM,), "float32")
            b_l = T.alloc_fragment((BM,), "float32")
            b_o = T.alloc_fragment((BM, BV), "float32")
            b_log_f_sum_k_to_end = T.alloc_shared((BN,), "float32")
            b_k = T.alloc_shared((BN, BD0), io)
            b_s = T.alloc_fragment((BM, BN), "float32")
            b_logit = T.alloc_fragment((BM, BN), "float32")
            b_m_new = T.alloc_fragment((BM,), "float32")
            b_logit_max = T.alloc_fragment((BM,), "float32")
            b_base = T.alloc_fragment((BM,), "float32")
            b_p = T.alloc_fragment((BM, BN), "float32")
            b_c = T.alloc_fragment((BM,), "float32")
            b_p_sum = T.alloc_fragment((BM,), "float32")
            b_v = T.alloc_shared((BN, BV), io)
            b_p_io = T.alloc_fragment((BM, BN), io)
            b_log_f_sum_q_apart = T.alloc_fragment((BM,), "float32")
            b_log_f_sum_k = T.alloc_shared((BN,), "float32")
            b_log_f_sum_k_low = T.alloc_shared((BN,), "float32")
            b_whole = T.alloc_fragment((BM,), "float32")
            b_o_exact = T.alloc_fragment((BM, BV), "float32")
            ring_k = T.alloc_shared((BN, BD0), io)
            ring_v = T.alloc_shared((BN, BV), io)

            i_kv = i_h // G
            # long rows first
            i_r = (NM - 1 - i_m) * BM

            T.copy(q[i_b, i_r : i_r + BM, i_h, 0:BD0], b_q, disable_tma=True)
            for m in T.Parallel(BM):
                b_log_f_sum_q[m] = T.if_then_else(
                    i_r + m < T_q, log_f_sum_q[i_b, i_r + m, i_h], 0.0
                )
            anchor_log_f_sum_q = log_f_sum_q[i_b, i_r, i_h]
            for m in T.Parallel(BM):
                b_log_f_sum_q_low[m] = T.if_then_else(
                    i_r + m < T_q, log_f_sum_q_low[i_b, i_r + m, i_h], 0.0
                )
            # running maximum and sum
            T.fill(b_m, -T.infinity("float32"))
            T.fill(b_l, 0.0)
            T.fill(b_o, 0.0)

            p_first = i_r + shift
            stop = T.alloc_var("int32", init=T.min(p_first + BM, T_k))
            full_stop = T.alloc_var("int32", init=T.max(T.min(p_first + 1, stop), 0) // BN * BN)
            scale_log2 = scale * 1.4426950408889634
            # tiles that every row sees whole
            for i_t in T.Pipelined(T.ceildiv(full_stop, BN), num_stages=num_stages):
                i_c = i_t * BN
                for n in T.Parallel(BN):
                    b_log_f_sum_k_to_end[n] = log_f_sum_k_to_end[i_b, i_c + n, i_h]
                end_log_f_sum_k = log_f_sum_k[i_b, i_c + BN - 1, i_h]
                end_log_f_sum_k_low = log_f_sum_k_low[i_b, i_c + BN - 1, i_h]
                log_f_sum_k_to_anchor = end_log_f_sum_k - anchor_log_f_sum_q + end_log_f_sum_k_low
                log_f_sum_k_from_end = log_f_sum_k_to_anchor * -1.4426950408889634
                T.copy(k[i_b, i_c : i_c + BN, i_kv, 0:BD0], ring_k)
                T.gemm(b_q, ring_k, b_s, transpose_B=True, clear_accum=True)
                for m, n in T.Parallel(BM, BN):
                    b_logit[m, n] = b_s[m, n] * scale_log2 + b_log_f_sum_k_to_end[n]
                T.reduce_max(b_logit, b_logit_max, dim=1)
                for m in T.Parallel(BM):
                    b_m_new[m] = T.max(b_m[m], b_logit_max[m] + log_f_sum_k_from_end)
                    b_base[m] = T.if_then_else(
                        b_m_new[m] == -T.infinity("float32"), 0.0, b_m_new[m]
                    )
                for m, n in T.Parallel(BM, BN):
                    b_p[m, n] = T.exp2(b_logit[m, n] - (b_base[m] - log_f_sum_k_from_end))
                for m in T.Parallel(BM):
                    b_c[m] = T.exp2(b_m[m] - b_base[m])
                T.reduce_sum(b_p, b_p_sum, dim=1)
                for m in T.Parallel(BM):
                    b_l[m] = b_l[m] * b_c[m] + b_p_sum[m]
                    b_m[m] = b_m_new[m]
                T.copy(v[i_b, i_c : i_c + BN, i_kv, 0:BV], ring_v)
                for m, n in T.Parallel(BM, BN):
                    b_p_io[m, n] = T.cast(b_p[m, n], io)
                for m, d in T.Parallel(BM, BV):
                    b_o[m, d] = b_o[m, d] * b_c[m]
                T.gemm(b_p_io, ring_v, b_o)
            for m in T.Parallel(BM):
                b_log_f_sum_q_apart[m] = (
                    b_log_f_sum_q[m] - anchor_log_f_sum_q + b_log_f_sum_q_low[m]
                )
                b_m[m] = b_m[m] + b_log_f_sum_q_apart[m] * 1.4426950408889634
            # edge tiles: pairs are masked
            for i_t in T.serial(T.ceildiv(stop - full_stop, BN)):
                i_c = full_stop + i_t * BN
                T.copy(k[i_b, i_c : i_c + BN, i_kv, 0:BD0], b_k, disable_tma=True)
                T.gemm(b_q, b_k, b_s, transpose_B=True, clear_accum=True)
                for n in T.Parallel(BN):
                    b_log_f_sum_k[n] = T.if_then_else(
                        i_c + n < T_k, log_f_sum_k[i_b, i_c + n, i_h], 0.0
                    )
                    b_log_f_sum_k_low[n] = T.if_then_else(
                        i_c + n < T_k, log_f_sum_k_low[i_b, i_c + n, i_h], 0.0
                    )
                for m, n in T.Parallel(BM, BN):
                    b_logit[m, n] = T.if_then_else(
                        i_r + m + shift >= i_c + n,
                        b_s[m, n] * scale_log2
                        + (
                            b_log_f_sum_q[m]
                            - b_log_f_sum_k[n]
                            + (b_log_f_sum_q_low[m] - b_log_f_sum_k_low[n])
                        )
                        * 1.4426950408889634,
                        -T.infinity("float32"),
                    )
                T.reduce_max(b_logit, b_logit_max, dim=1)
                for m in T.Parallel(BM):
                    b_m_new[m] = T.max(b_m[m], b_logit_max[m])
                    b_base[m] = T.if_then_else(
                        b_m_new[m] == -T.infinity("float32"), 0.0, b_m_new[m]
                    )
                for m, n in T.Parallel(BM, BN):
                    b_p[m, n] = T.exp2(b_logit[m, n] - b_base[m])
                for m in T.Parallel(BM):
                    b_c[m] = T.exp2(b_m[m] - b_base[m])
                T.reduce_sum(b_p, b_p_sum, dim=1)
                for m in T.Parallel(BM):
                    b_l[m] = b_l[m] * b_c[m] + b_p_sum[m]
                    b_m[m] = b_m_new[m]
                T.copy(v[i_b, i_c : i_c + BN, i_kv, 0:BV], b_v, disable_tma=True)
                for m, n in T.Parallel(BM, BN):
                    b_p_io[m, n] = T.cast(b_p[m, n], io)
                for m, d in T.Parallel(BM, BV):
                    b_o[m, d] = b_o[m, d] * b_c[m]
                T.gemm(b_p_io, b_v, b_o)

            # a row without keys gives 0
            for m in T.Parallel(BM):
                b_whole[m] = T.if_then_else(b_l[m] == 0.0, 1.0, b_l[m])
            for m, d in T.Parallel(BM, BV):
                b_o_exact[m, d] = b_o[m, d] / b_whole[m]
                if i_r + m < T_q and d < DV:
                    o[i_b, i_r + m, i_h, d] = T.cast(b_o_exact[m, d], io)
                if i_r + m < T_q and d < DV:
                    o_exact[i_b, i_r + m, i_h, d] = b_o_exact[m, d]
            for m in T.Parallel(BM):
                if i_r + m < T_q:
                    lse[i_b, i_r + m, i_h] = T.if_then_else(
                        b_l[m] == 0.0,
                        -T.infinity("float32"),
                        (b_m[m] + T.log2(b_l[m])) * 0.6931471805599453,
                    )

    return main


def fox_bwd_columns(
    B, T_q, T_k, shift, H, G, D0, DV, BM, BN, BD0, BV, *, io="bfloat16", num_stages=2, threads=128
):
    """fox: gradients of keys, values and of what belongs to them"""
    KV = H // G
    NN = T.ceildiv(T_k, BN)

    @T.prim_func
    def main(
        q: T.Tensor((B, T_q, H, D0), io),
        k: T.Tensor((B, T_k, KV, D0), io),
        log_f_sum_q: T.Tensor((B, T_q, H), "float32"),
        log_f_sum_k: T.Tensor((B, T_k, H), "float32"),
        log_f_sum_q_low: T.Tensor((B, T_q, H), "float32"),
        log_f_sum_k_low: T.Tensor((B, T_k, H), "float32"),
        v: T.Tensor((B, T_k, KV, DV), io),
        do_: T.Tensor((B, T_q, H, DV), io),
        lse_log2: T.Tensor((B, T_q, H), "float32"),
        delta: T.Tensor((B, T_q, H), "float32"),
        dv: T.Tensor((B, T_k, KV, DV), io),
        d_k: T.Tensor((B, T_k, KV, D0), io),
        d_log_f_sum_k: T.Tensor((B, T_k, H), "float32"),
        lse_log2_near: T.Tensor((B, T_q, H), "float32"),
        scale: T.float32,
    ):
        with T.Kernel(NN, H // G, B, threads=threads) as (i_n, i_kv, i_b):
            b_k = T.alloc_shared((BN, BD0), io)
            b_v = T.alloc_shared((BN, BV), io)
            b_dv = T.alloc_fragment((BN, BV), "float32")
            b_d_k = T.alloc_fragment((BN, BD0), "float32")
            b_log_f_sum_k = T.alloc_fragment((BN,), "float32")
            b_log_f_sum_k_low = T.alloc_fragment((BN,), "float32")
            b_d_log_f_sum_k = T.alloc_fragment((BN,), "float32")
            b_do = T.alloc_shared((BM, BV), io)
            b_lse = T.alloc_shared((BM,), "float32")
            b_log_f_sum_q = T.alloc_shared((BM,), "float32")
            b_log_f_sum_q_low = T.alloc_shared((BM,), "float32")
            b_delta = T.alloc_shared((BM,), "float32")
            b_q = T.alloc_shared((BM, BD0), io)
            b_s = T.alloc_fragment((BN, BM), "float32")
            b_p = T.alloc_fragment((BN, BM), "float32")
            b_g = T.alloc_fragment((BN, BM), "float32")
            b_ds = T.alloc_fragment((BN, BM), "float32")
            b_p_io = T.alloc_fragment((BN, BM), io)
            b_ds_io = T.alloc_fragment((BN, BM), io)
            b_ds_sum = T.alloc_fragment((BN,), "float32")
            b_lse_near = T.alloc_shared((BM,), "float32")
            b_log_f_sum_k_apart = T.alloc_fragment((BN,), "float32")
            b_log_f_sum_k_log2 = T.alloc_fragment((BN,), "float32")

            i_c = i_n * BN

            T.copy(k[i_b, i_c : i_c + BN, i_kv, 0:BD0], b_k, disable_tma=True)
            T.copy(v[i_b, i_c : i_c + BN, i_kv, 0:BV], b_v, disable_tma=True)
            T.fill(b_dv, 0.0)
            T.fill(b_d_k, 0.0)

            start = T.alloc_var("int32", init=T.max(i_c - shift, 0) // BM * BM)
            full = T.alloc_var(
                "int32",
                init=start
                + T.ceildiv(T.max(T.max(i_c + BN - 1 - shift, 0), start) - start, BM) * BM,
            )
            full_stop = T.alloc_var(
                "int32",
                init=T.if_then_else(
                    i_c + BN <= T_k, full + (T.max(T_q, full) - full) // BM * BM, full
                ),
            )
            inside = T.alloc_var("int32", init=full_stop - full)
            scale_log2 = scale * 1.4426950408889634
            # every query head of the group adds to the gradients of its key head
            for i_h in T.serial(i_kv * G, i_kv * G + G):
                for n in T.Parallel(BN):
                    b_log_f_sum_k[n] = T.if_then_else(
                        i_c + n < T_k, log_f_sum_k[i_b, i_c + n, i_h], 0.0
                    )
                    b_log_f_sum_k_low[n] = T.if_then_else(
                        i_c + n < T_k, log_f_sum_k_low[i_b, i_c + n, i_h], 0.0
                    )
                T.fill(b_d_log_f_sum_k, 0.0)
                # edge tiles: pairs are masked
                for i_t in T.serial(T.ceildiv(T_q - inside - start, BM)):
                    i_t = start + i_t * BM
                    i_r = i_t + T.if_then_else(i_t < full, 0, inside)
                    T.copy(do_[i_b, i_r : i_r + BM, i_h, 0:BV], b_do, disable_tma=True)
                    for m in T.Parallel(BM):
                        b_lse[m] = T.if_then_else(
                            i_r + m < T_q, lse_log2[i_b, i_r + m, i_h], T.infinity("float32")
                        )
                        b_log_f_sum_q[m] = T.if_then_else(
                            i_r + m < T_q, log_f_sum_q[i_b, i_r + m, i_h], 0.0
                        )
                        b_log_f_sum_q_low[m] = T.if_then_else(
                            i_r + m < T_q, log_f_sum_q_low[i_b, i_r + m, i_h], 0.0
                        )
                        b_delta[m] = T.if_then_else(i_r + m < T_q, delta[i_b, i_r + m, i_h], 0.0)
                    T.copy(q[i_b, i_r : i_r + BM, i_h, 0:BD0], b_q, disable_tma=True)
                    T.gemm(b_k, b_q, b_s, transpose_B=True, clear_accum=True)
                    for n, m in T.Parallel(BN, BM):
                        b_p[n, m] = T.if_then_else(
                            i_r + m + shift >= i_c + n and i_r + m < T_q,
                            T.exp2(
                                b_s[n, m] * scale_log2
                                + (
                                    b_log_f_sum_q[m]
                                    - b_log_f_sum_k[n]
                                    + (b_log_f_sum_q_low[m] - b_log_f_sum_k_low[n])
                                )
                                * 1.4426950408889634
                                - b_lse[m],
                            ),
                            0.0,
                        )
                    T.gemm(b_v, b_do, b_g, transpose_B=True, clear_accum=True)
                    for n, m in T.Parallel(BN, BM):
                        b_ds[n, m] = T.if_then_else(
                            i_r + m + shift >= i_c + n and i_r + m < T_q,
                            b_p[n, m] * (b_g[n, m] - b_delta[m]),
                            0.0,
                        )
                    for n, m in T.Parallel(BN, BM):
                        b_p_io[n, m] = T.cast(b_p[n, m], io)
                    T.gemm(b_p_io, b_do, b_dv)
                    for n, m in T.Parallel(BN, BM):
                        b_ds_io[n, m] = T.cast(b_ds[n, m], io)
                    T.gemm(b_ds_io, b_q, b_d_k)
                    T.reduce_sum(b_ds, b_ds_sum, dim=1)
                    for n in T.Parallel(BN):
                        b_d_log_f_sum_k[n] = b_d_log_f_sum_k[n] + b_ds_sum[n]
                # tiles that every key sees whole
                for i_t in T.serial(T.ceildiv(full_stop - full, BM)):
                    i_r = full + i_t * BM
                    T.copy(do_[i_b, i_r : i_r + BM, i_h, 0:BV], b_do, disable_tma=True)
                    anchor_log_f_sum_q = log_f_sum_q[i_b, i_r, i_h]
                    for m in T.Parallel(BM):
                        b_lse_near[m] = lse_log2_near[i_b, i_r + m, i_h]
                        b_delta[m] = delta[i_b, i_r + m, i_h]
                    T.copy(q[i_b, i_r : i_r + BM, i_h, 0:BD0], b_q, disable_tma=True)
                    T.gemm(b_k, b_q, b_s, transpose_B=True, clear_accum=True)
                    for n in T.Parallel(BN):
                        b_log_f_sum_k_apart[n] = (
                            b_log_f_sum_k[n] - anchor_log_f_sum_q + b_log_f_sum_k_low[n]
                        )
                        b_log_f_sum_k_log2[n] = b_log_f_sum_k_apart[n] * 1.4426950408889634
                    for n, m in T.Parallel(BN, BM):
                        b_p[n, m] = T.exp2(
                            b_s[n, m] * scale_log2 - b_log_f_sum_k_log2[n] - b_lse_near[m]
                        )
                    T.gemm(b_v, b_do, b_g, transpose_B=True, clear_accum=True)
                    for n, m in T.Parallel(BN, BM):
                        b_ds[n, m] = b_p[n, m] * (b_g[n, m] - b_delta[m])
                    for n, m in T.Parallel(BN, BM):
                        b_p_io[n, m] = T.cast(b_p[n, m], io)
                    T.gemm(b_p_io, b_do, b_dv)
                    for n, m in T.Parallel(BN, BM):
                        b_ds_io[n, m] = T.cast(b_ds[n, m], io)
                    T.gemm(b_ds_io, b_q, b_d_k)
                    T.reduce_sum(b_ds, b_ds_sum, dim=1)
                    for n in T.Parallel(BN):
                        b_d_log_f_sum_k[n] = b_d_log_f_sum_k[n] + b_ds_sum[n]
                for n in T.Parallel(BN):
                    if i_c + n < T_k:
                        d_log_f_sum_k[i_b, i_c + n, i_h] = b_d_log_f_sum_k[n] * -1.0

            for n, d in T.Parallel(BN, BV):
                if i_c + n < T_k and d < DV:
                    dv[i_b, i_c + n, i_kv, d] = T.cast(b_dv[n, d], io)
            for n, d in T.Parallel(BN, BD0):
                if i_c + n < T_k and d < D0:
                    d_k[i_b, i_c + n, i_kv, d] = T.cast(b_d_k[n, d] * scale, io)

    return main

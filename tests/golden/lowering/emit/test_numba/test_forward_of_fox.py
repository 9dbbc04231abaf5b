@njit(
    void(
        int64,  # worker
        int64,  # workers
        float32[:, :, :, :],  # q [batch, time_q, head, D0]
        float32[:, :, :, :],  # k [batch, time_k, kv_head, D0]
        float32[:, :, :],  # c [batch, time_k, head]
        float32[:, :, :, :],  # v [batch, time_k, kv_head, DV]
        float32[:, :, :, :],  # o [batch, time_q, head, DV]
        float32[:, :, :],  # lse [batch, time_q, head]
        int64,  # T_q
        int64,  # T_k
        int64,  # H
        int64,  # G
        int64,  # NM
        float32,  # scale
        int64,  # D0
        int64,  # DV
        int64,  # BM
        int64,  # BN
        int64,  # BD0
        int64,  # BV
    ),
    nogil=True,
    cache=True,
    error_model="numpy",
    fastmath={"contract", "nsz", "arcp", "afn"},
)
def fox_fwd(
    worker, workers, q, k, c, v, o, lse, T_q, T_k, H, G, NM, scale, D0, DV, BM, BN, BD0, BV
):
    """FoX causal attention: one tile of queries."""
    B = q.shape[0]
    for program in range(worker, NM * H * B, workers):
        i_m = program % NM
        i_h = program // NM % H
        i_b = program // (NM * H)
        i_kv = i_h // G
        first = i_m * BM
        o_m = first
        shift = T_k - T_q

        b_q = np.empty((BM, BD0), f32)
        b_k = np.empty((BN, BD0), f32)
        b_c = np.empty(BN, f32)
        b_s_dot = np.empty((BM, BN), f32)
        b_z = b_s_dot
        b_r = np.empty(BM, f32)
        b_p = b_s_dot
        b_v = np.empty((BN, BV), f32)
        b_o_dot = np.empty((BM, BV), f32)
        b_lse = b_r
        b_o2 = b_o_dot

        load_tile(b_q, q[i_b, :, i_h, :], (o_m, 0), (T_q, D0))
        b_m = np.full(BM, -INF, f32)
        b_l = np.zeros(BM, f32)
        b_o = np.zeros((BM, BV), f32)

        # Keys up to the last query of the tile.
        stop = min(first + BM + shift, T_k)
        for i_n in range(0, stop, BN):
            o_n = i_n
            load_tile(b_k, k[i_b, :, i_kv, :], (o_n, 0), (T_k, D0))
            load_vector(b_c, c[i_b, :, i_h], o_n, T_k)
            np.dot(b_q, b_k.T, out=b_s_dot)
            # [BM, BN] b_s, b_z, b_n_max, b_n, b_f, b_r, b_m, b_p, b_l_sum, b_l
            for r in range(BM):
                b_n_max_key = ordered(-INF)
                for column in range(BN):
                    # FoX: the logarithm of what the gates between the key and the query keep.
                    b_s = b_s_dot[r, column] * scale - b_c[column]
                    b_z_rc = where(
                        (o_n + column <= o_m + r + shift) & (o_n + column < T_k), b_s, -INF
                    )
                    b_z[r, column] = b_z_rc
                    b_n_max_key = max(b_n_max_key, ordered(b_z_rc))
                b_n_max = unordered(b_n_max_key)
                b_n = max(b_m[r], b_n_max)
                b_f = where(b_n == -INF, f32(0.0), b_n)
                b_r_r = exp2(b_m[r] - b_f)
                b_r[r] = b_r_r
                b_m[r] = b_n
                b_l_sum = f32(0.0)
                for column in range(BN):
                    b_p_rc = exp2(b_z[r, column] - b_f)
                    b_p[r, column] = b_p_rc
                    b_l_sum = added(b_l_sum, b_p_rc)
                b_l[r] = b_l[r] * b_r_r + b_l_sum
            load_tile(b_v, v[i_b, :, i_kv, :], (o_n, 0), (T_k, DV))
            np.dot(b_p, b_v, out=b_o_dot)
            # [BM, BV] b_o
            for r in range(BM):
                for column in range(BV):
                    b_o[r, column] = b_o[r, column] * b_r[r] + b_o_dot[r, column]

        # [BM, BV] b_lse, b_o2
        for r in range(BM):
            b_lse[r] = (b_m[r] + log2(b_l[r])) * LN2
            for column in range(BV):
                b_o2[r, column] = b_o[r, column] / where(b_l[r] == f32(0.0), f32(1.0), b_l[r])
        store_tile(o[i_b, :, i_h, :], b_o2, (o_m, 0), (T_q, DV))
        store_vector(lse[i_b, :, i_h], b_lse, o_m, T_q)

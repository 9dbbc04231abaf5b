@njit(
    void(
        int64,  # worker
        int64,  # workers
        uint16[:, :, :, :],  # q [batch, time_q, head, D0]
        uint16[:, :, :, :],  # k [batch, time_k, kv_head, D0]
        float32[:, :, :],  # c [batch, time_k, head]
        uint16[:, :, :, :],  # v [batch, time_k, kv_head, DV]
        uint16[:, :, :, :],  # do [batch, time_q, head, DV]
        float32[:, :, :],  # lse [batch, time_q, head]
        float32[:, :, :],  # delta [batch, time_q, head]
        float32[:, :, :, :],  # dk [batch, time_k, kv_head, D0]
        float32[:, :, :, :],  # dv [batch, time_k, kv_head, DV]
        float32[:, :, :],  # dc [batch, time_k, head]
        int64,  # T_q
        int64,  # T_k
        int64,  # H
        int64,  # G
        int64,  # NN
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
def fox_bwd_columns(
    worker,
    workers,
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
    T_q,
    T_k,
    H,
    G,
    NN,
    scale,
    D0,
    DV,
    BM,
    BN,
    BD0,
    BV,
):
    """Gradients on the side of the keys: one tile of keys."""
    B = q.shape[0]
    for program in range(worker, NN * (H // G) * B, workers):
        i_n = program % NN
        i_kv = program // NN % (H // G)
        i_b = program // (NN * (H // G))
        first = i_n * BN
        if first >= T_k:
            continue
        o_n = first
        shift = T_k - T_q

        b_k = np.empty((BN, BD0), f32)
        b_v = np.empty((BN, BV), f32)
        b_c = np.empty(BN, f32)
        b_dc = np.empty(BN, f32)
        b_q = np.empty((BM, BD0), f32)
        b_do = np.empty((BM, BV), f32)
        b_lse = np.empty(BM, f32)
        b_delta = np.empty(BM, f32)
        b_s_dot = np.empty((BN, BM), f32)
        b_ds_dot = np.empty((BN, BM), f32)
        b_p = b_s_dot
        b_ds = b_ds_dot
        b_dv_dot = np.empty((BN, BV), f32)
        b_dk_dot = np.empty((BN, BD0), f32)
        b_dk2 = b_k

        load_tile_bf16(b_k, k[i_b, :, i_kv, :], (o_n, 0), (T_k, D0))
        load_tile_bf16(b_v, v[i_b, :, i_kv, :], (o_n, 0), (T_k, DV))
        b_dk = np.zeros((BN, BD0), f32)
        b_dv = np.zeros((BN, BV), f32)
        start = max(first - shift, 0) // BM * BM
        for i_h in range(i_kv * G, i_kv * G + G):
            load_vector(b_c, c[i_b, :, i_h], o_n, T_k)
            b_dc[:] = f32(0.0)
            for i_m in range(start, T_q, BM):
                o_m = i_m
                load_tile_bf16(b_q, q[i_b, :, i_h, :], (o_m, 0), (T_q, D0))
                load_tile_bf16(b_do, do[i_b, :, i_h, :], (o_m, 0), (T_q, DV))
                load_vector(b_lse, lse[i_b, :, i_h], o_m, T_q, INF)
                load_vector(b_delta, delta[i_b, :, i_h], o_m, T_q)
                np.dot(b_k, b_q.T, out=b_s_dot)
                np.dot(b_v, b_do.T, out=b_ds_dot)
                # [BN, BM] b_s, b_p, b_ds, b_dc_sum, b_dc
                for r in range(BN):
                    b_dc_sum = f32(0.0)
                    for column in range(BM):
                        b_s = where(
                            (o_n + r <= o_m + column + shift) & (o_m + column < T_q),
                            b_s_dot[r, column] * scale - b_c[r],
                            -INF,
                        )
                        b_p_rc = exp2(b_s - b_lse[column])
                        b_p[r, column] = b_p_rc
                        b_ds_rc = b_p_rc * (b_ds_dot[r, column] - b_delta[column])
                        b_ds[r, column] = b_ds_rc
                        b_dc_sum = added(b_dc_sum, b_ds_rc)
                    b_dc[r] = b_dc[r] - b_dc_sum
                np.dot(b_p, b_do, out=b_dv_dot)
                np.dot(b_ds, b_q, out=b_dk_dot)
                # [BN, BV, BD0] b_dv, b_dk
                for r in range(BN):
                    for column in range(BV):
                        b_dv[r, column] = b_dv[r, column] + b_dv_dot[r, column]
                    for column in range(BD0):
                        b_dk[r, column] = b_dk[r, column] + b_dk_dot[r, column]
            store_vector(dc[i_b, :, i_h], b_dc, o_n, T_k)
        # [BN, BD0] b_dk2
        for r in range(BN):
            for column in range(BD0):
                b_dk2[r, column] = b_dk[r, column] * scale * LN2
        store_tile(dk[i_b, :, i_kv, :], b_dk2, (o_n, 0), (T_k, D0))
        store_tile(dv[i_b, :, i_kv, :], b_dv, (o_n, 0), (T_k, DV))

"""Plain attention: forward."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma


@gluon.jit
def floor_div(a, b):
    """The quotient rounded down; Triton's own // rounds towards zero."""
    q = a // b
    return gl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@gluon.jit(do_not_specialize=["T_q", "T_k", "NM"])
def nope_fwd(
    q,
    k,
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
    shift,
    H,
    G,
    NM,
    scale,
    D0: gl.constexpr,
    DV: gl.constexpr,
    BM: gl.constexpr,
    BN: gl.constexpr,
    BD0: gl.constexpr,
    BV: gl.constexpr,
    num_warps: gl.constexpr,
):
    """nope"""
    copy_md: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    mma_mn: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BN, 16])
    mma_mv: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BV, 16])
    copy_nd: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    copy_nv: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    left_mv: gl.constexpr = gl.DotOperandLayout(0, mma_mv, 2)
    smem_md: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BD0], v.dtype.element_ty)
    smem_nd: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, BD0], v.dtype.element_ty)
    smem_nv: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, BV], v.dtype.element_ty)
    i_p = gl.program_id(0)
    i_m = i_p % NM
    i_h = (i_p // NM % H).to(gl.int64)
    i_b = (i_p // (NM * H)).to(gl.int64)
    m_copy_md = gl.arange(0, BM, gl.SliceLayout(1, copy_md))
    d_copy_md = gl.arange(0, BD0, gl.SliceLayout(0, copy_md))
    n_copy_nd = gl.arange(0, BN, gl.SliceLayout(1, copy_nd))
    d_copy_nd = gl.arange(0, BD0, gl.SliceLayout(0, copy_nd))
    n_copy_nv = gl.arange(0, BN, gl.SliceLayout(1, copy_nv))
    v_copy_nv = gl.arange(0, BV, gl.SliceLayout(0, copy_nv))
    m_mma_mn = gl.arange(0, BM, gl.SliceLayout(1, mma_mn))
    n_mma_mn = gl.arange(0, BN, gl.SliceLayout(0, mma_mn))
    m_mma_mv = gl.arange(0, BM, gl.SliceLayout(1, mma_mv))
    v_mma_mv = gl.arange(0, BV, gl.SliceLayout(0, mma_mv))
    b_q = gl.allocate_shared_memory(v.dtype.element_ty, [BM, BD0], smem_md)
    b_k = gl.allocate_shared_memory(v.dtype.element_ty, [BN, BD0], smem_nd)
    b_v = gl.allocate_shared_memory(v.dtype.element_ty, [BN, BV], smem_nv)

    i_kv = i_h // G
    # long rows first
    i_r = (NM - 1 - i_m) * BM

    p_q = q + i_b * s_q_b + gl.cast(i_r, gl.int64) * s_q_t + i_h * s_q_h
    # [BM, BD0]
    async_copy.async_copy_global_to_shared(
        b_q,
        p_q + m_copy_md[:, None] * s_q_t + d_copy_md[None, :] * s_q_d,
        mask=(i_r + m_copy_md < T_q)[:, None] & (d_copy_md < D0)[None, :],
    )
    # running maximum and sum
    b_m = gl.full([BM], float("-inf"), gl.float32, gl.SliceLayout(1, mma_mn))
    b_l = gl.full([BM], 0.0, gl.float32, gl.SliceLayout(1, mma_mn))
    b_o = gl.full([BM, BV], 0.0, gl.float32, mma_mv)

    p_first = i_r + shift
    stop = gl.minimum(p_first + BM, T_k)
    full_stop = floor_div(gl.maximum(gl.minimum(p_first + 1, stop), 0), BN) * BN
    scale_log2 = scale * 1.4426950408889634
    # tiles that every row sees whole
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    for i_c in range(0, full_stop, BN):
        p_k = k + i_b * s_k_b + gl.cast(i_c, gl.int64) * s_k_t + i_kv * s_k_h
        # [BN, BD0]
        async_copy.async_copy_global_to_shared(
            b_k,
            p_k + n_copy_nd[:, None] * s_k_t + d_copy_nd[None, :] * s_k_d,
            mask=(d_copy_nd < D0)[None, :],
        )
        async_copy.commit_group()
        async_copy.wait_group(0)
        fence_async_shared()
        # [BM, BN]
        b_s = warpgroup_mma(
            b_q, b_k.permute((1, 0)), gl.zeros([BM, BN], gl.float32, mma_mn), use_acc=False
        )
        b_logit = b_s * scale_log2
        b_logit_max = gl.max(b_logit, axis=1)
        b_m_new = gl.maximum(b_m, b_logit_max)
        b_base = gl.where(b_m_new == float("-inf"), 0.0, b_m_new)
        b_p = gl.exp2(b_logit - b_base[:, None])
        b_c = gl.exp2(b_m - b_base)
        b_p_sum = gl.sum(b_p, axis=1)
        b_l = b_l * b_c + b_p_sum
        b_m = b_m_new
        p_v = v + i_b * s_v_b + gl.cast(i_c, gl.int64) * s_v_t + i_kv * s_v_h
        # [BN, BV]
        async_copy.async_copy_global_to_shared(
            b_v,
            p_v + n_copy_nv[:, None] * s_v_t + v_copy_nv[None, :] * s_v_d,
            mask=(v_copy_nv < DV)[None, :],
        )
        b_p_io = b_p.to(v.dtype.element_ty)
        b_o = b_o * gl.convert_layout(b_c, gl.SliceLayout(1, mma_mv))[:, None]
        async_copy.commit_group()
        async_copy.wait_group(0)
        fence_async_shared()
        # [BM, BV]
        b_o = warpgroup_mma(gl.convert_layout(b_p_io, left_mv), b_v, b_o)
    # edge tiles: pairs are masked
    for i_c in range(full_stop, stop, BN):
        p_k = k + i_b * s_k_b + gl.cast(i_c, gl.int64) * s_k_t + i_kv * s_k_h
        # [BN, BD0]
        async_copy.async_copy_global_to_shared(
            b_k,
            p_k + n_copy_nd[:, None] * s_k_t + d_copy_nd[None, :] * s_k_d,
            mask=(i_c + n_copy_nd < T_k)[:, None] & (d_copy_nd < D0)[None, :],
        )
        async_copy.commit_group()
        async_copy.wait_group(0)
        fence_async_shared()
        # [BM, BN]
        b_s = warpgroup_mma(
            b_q, b_k.permute((1, 0)), gl.zeros([BM, BN], gl.float32, mma_mn), use_acc=False
        )
        b_logit = gl.where(
            (i_r + m_mma_mn + shift)[:, None] >= (i_c + n_mma_mn)[None, :],
            b_s * scale_log2,
            float("-inf"),
        )
        b_logit_max = gl.max(b_logit, axis=1)
        b_m_new = gl.maximum(b_m, b_logit_max)
        b_base = gl.where(b_m_new == float("-inf"), 0.0, b_m_new)
        b_p = gl.exp2(b_logit - b_base[:, None])
        b_c = gl.exp2(b_m - b_base)
        b_p_sum = gl.sum(b_p, axis=1)
        b_l = b_l * b_c + b_p_sum
        b_m = b_m_new
        p_v = v + i_b * s_v_b + gl.cast(i_c, gl.int64) * s_v_t + i_kv * s_v_h
        # [BN, BV]
        async_copy.async_copy_global_to_shared(
            b_v,
            p_v + n_copy_nv[:, None] * s_v_t + v_copy_nv[None, :] * s_v_d,
            mask=(i_c + n_copy_nv < T_k)[:, None] & (v_copy_nv < DV)[None, :],
        )
        b_p_io = b_p.to(v.dtype.element_ty)
        b_o = b_o * gl.convert_layout(b_c, gl.SliceLayout(1, mma_mv))[:, None]
        async_copy.commit_group()
        async_copy.wait_group(0)
        fence_async_shared()
        # [BM, BV]
        b_o = warpgroup_mma(gl.convert_layout(b_p_io, left_mv), b_v, b_o)

    # a row without keys gives 0
    b_whole = gl.where(b_l == 0.0, 1.0, b_l)
    p_o = o + i_b * s_o_b + gl.cast(i_r, gl.int64) * s_o_t + i_h * s_o_h
    gl.store(
        p_o + m_mma_mv[:, None] * s_o_t + v_mma_mv[None, :] * s_o_d,
        gl.cast(
            b_o / gl.convert_layout(b_whole, gl.SliceLayout(1, mma_mv))[:, None], v.dtype.element_ty
        ),
        mask=(i_r + m_mma_mv < T_q)[:, None] & (v_mma_mv < DV)[None, :],
    )
    p_lse = lse + i_b * s_lse_b + gl.cast(i_r, gl.int64) * s_lse_t + i_h * s_lse_h
    gl.store(
        p_lse + m_mma_mn * s_lse_t,
        gl.where(b_l == 0.0, float("-inf"), (b_m + gl.log2(b_l)) * 0.6931471805599453),
        mask=i_r + m_mma_mn < T_q,
    )

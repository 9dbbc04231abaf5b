"""Other maps of one token: decays per plane, learned and data-dependent rotations."""

import math

import gnomon as gn
from gnomon import Dim, Head, KVHead, Param, Plane, Query, Token
from gnomon.dsl.catalogue.entry import Family
from gnomon.dsl.catalogue.rotary import rotary

MAPS = Family("other maps")
GRAPE = "Zhang et al. 2025 (GRAPE), arXiv 2512.07805"


class Block(gn.Axis):
    "Diagonal blocks of a block matrix."


class Sub(gn.Axis):
    "Rows of one block."


class Rope(gn.Axis):
    "The channels that MLA rotates."


@MAPS.row(34, "Sun et al. 2022 (xPos), arXiv 2212.10554")
@gn.variant
def xpos(q, k, *, base=10000.0, gamma=0.4, span=512.0):
    "rope times zeta_c^((i - j) / 512) in each plane,  zeta_c = (c / (d/2) + gamma) / (1 + gamma)"
    angle = gn.position() * gn.frequencies(q, base)
    log_zeta = gn.log((2 * gn.plane(q) / gn.dim(q) + gamma) / (1 + gamma)) / span
    shrink = gn.diagonal(log=gn.concat(log_zeta, log_zeta))
    score = gn.dot(gn.rotate(q, angle), gn.rotate(k, angle), through=shrink)
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())


@MAPS.row(35, "HoPE (hyperbolic), 2025, arXiv 2509.05218")
@gn.variant
def hope_hyperbolic(q, k, damping: Param, *, base=10000.0):
    """e^(-D theta') q [[cosh, sinh], [sinh, cosh]](D theta) k / sqrt(d) in each plane,  D = i - j

    Two decays in the basis (1, 1), (1, -1); contracting for theta' > theta.
    """
    theta = gn.frequencies(q, base)
    (q0, q1), (k0, k1) = gn.split(q), gn.split(k)
    slow = gn.diagonal(log=gn.concat(theta, -theta) - damping)
    left, right = gn.concat(q0 + q1, q0 - q1), gn.concat(k0 + k1, k0 - k1)
    score = gn.dot(left, right, through=slow) / 2
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())


@MAPS.row(36, "Hua et al. 2024 (FoPE), arXiv 2412.17739")
@gn.variant
def fope(q, k, mix_cos: Param[Plane, Plane], mix_sin: Param[Plane, Plane], *, base=10000.0):
    """rope whose cos and sin are mixtures of harmonics: cos(i omega) M_c and sin(i omega) M_s

    Second hand: from the abstract.
    """
    angle = gn.position() * gn.frequencies(q, base)
    c, s = gn.cos(angle) @ mix_cos, gn.sin(angle) @ mix_sin

    def turn(x):
        a, b = gn.split(x)
        return gn.concat(a * c - b * s, b * c + a * s)

    return gn.softmax(gn.dot(turn(q), turn(k)) * gn.rsqrt_dim(q), mask=gn.causal())


@MAPS.row(37, "ComRoPE, 2025, arXiv 2506.03737")
@gn.variant
def comrope(q, k, p_y: Param[KVHead, Block, Sub, Sub], p_x: Param[KVHead, Block, Sub, Sub]):
    """q_i exp(sum_a (x_a^i - x_a^j) A_a) k_j / sqrt(d),  A = P - P^T in blocks that commute

    Whether the blocks commute is up to P; where they do not, this is LieRE in blocks.
    """
    turn = gn.expm(gn.position("y") * (p_y - p_y.T) + gn.position("x") * (p_x - p_x.T))
    return gn.softmax(gn.dot(q @ turn, k @ turn) * gn.rsqrt_dim(q), mask=gn.everything())


@MAPS.row(38, "Ostmeier et al. 2024 (LieRE), arXiv 2406.10322")
@gn.variant
def liere(q, k, p_y: Param[KVHead, Dim, Dim], p_x: Param[KVHead, Dim, Dim]):
    "(q_i E_i) . (k_j E_j) / sqrt(d),  E = exp(sum_a x_a A_a),  A = P - P^T, not commuting"
    turn = gn.expm(gn.position("y") * (p_y - p_y.T) + gn.position("x") * (p_x - p_x.T))
    return gn.softmax(gn.dot(q @ turn, k @ turn) * gn.rsqrt_dim(q), mask=gn.everything())


@MAPS.row(39, GRAPE)
@gn.variant
def grape_m(q, k, a: Param[KVHead, Dim], b: Param[KVHead, Dim], omega: Param[KVHead]):
    "q_i exp((j - i) omega L) k_j / sqrt(d),  L = a b^T - b a^T"
    step = gn.expm(-omega * (gn.outer(a, b) - gn.outer(b, a)))
    return gn.softmax(gn.dot(q, k, through=step) * gn.rsqrt_dim(q), mask=gn.causal())


@MAPS.row(40, "PoPE (polar coordinates), 2025, arXiv 2509.10534")
@gn.variant
def pope(q, k, delta: Param[Head, Dim], *, base=10000.0):
    """sum_c softplus(q_c) softplus(k_c) cos((i - j) omega_c - delta_c) / sqrt(d)

    omega_c = base^(-c / d), delta clamped to -2 pi ... 0. Second hand: sign and clamp are those of
    a third party's code.
    """
    angle = gn.position() * base ** (-gn.channel(q) / gn.dim(q))
    shifted = angle - gn.clip(delta, -2 * math.pi, 0.0)
    qm, km = gn.softplus(q), gn.softplus(k)
    left = gn.concat(qm * gn.cos(shifted), qm * gn.sin(shifted))
    right = gn.concat(km * gn.cos(angle), km * gn.sin(angle))
    return gn.softmax(gn.dot(left, right) * gn.rsqrt_dim(q), mask=gn.causal())


@MAPS.row(41, "CARoPE, 2025, arXiv 2507.23083")
@gn.variant
def carope(q, k, f: Token[KVHead]):
    """rope with the angle sum_{t <= i} f_t^(c + 1) in plane c,  0 < f < 1

    Second hand: f and its first exponent.
    """
    turn = gn.rotation(f ** (gn.plane(q) + 1))
    return gn.softmax(gn.dot(q, k, through=turn) * gn.rsqrt_dim(q), mask=gn.causal())


@MAPS.row(42, "Selective RoPE, 2025, arXiv 2511.17388")
@gn.variant
def selective_rope(q, k, step: Token[KVHead, Plane], *, base=10000.0):
    "rope with the angle omega_c sum_{t <= i} step_tc"
    turn = gn.rotation(step * gn.frequencies(q, base))
    return gn.softmax(gn.dot(q, k, through=turn) * gn.rsqrt_dim(q), mask=gn.causal())


@MAPS.row(43, GRAPE)
@gn.variant
def grape_m_contextual(q, k, g: Token[KVHead], *, base=10000.0):
    "rope with the angle omega_c sum_{t < i} g_t: the token's own step not yet taken"
    angle = gn.prefix_sum(g, inclusive=False) * gn.frequencies(q, base)
    return gn.softmax(rotary(q, k, angle), mask=gn.causal())


@MAPS.row(43, "Mamba-3, 2025; its angles in softmax attention")
@gn.variant
def mamba3_angles(q, k, dt: Token[KVHead], theta: Token[KVHead, Plane]):
    """rope with the angle sum_{t <= i} dt_t theta_tc

    Second hand: from the abstract.
    """
    turn = gn.rotation(dt * theta)
    return gn.softmax(gn.dot(q, k, through=turn) * gn.rsqrt_dim(q), mask=gn.causal())


@MAPS.row(44, "RePo, 2025, arXiv 2512.14391; DaRoPE")
@gn.variant
def repo(q, k, z: Token[KVHead], *, base=10000.0):
    """q_i R((z_j - z_i) omega) k_j / sqrt(d),  z = f(x) a real position of each token

    Second hand: from the abstract.
    """
    return gn.softmax(rotary(q, k, z * gn.frequencies(q, base)), mask=gn.causal())


@MAPS.row(45, "DeepSeek-AI 2024 (DeepSeek-V2), arXiv 2405.04434")
@gn.variant
def mla(q, k, q_r: Query[Head, Rope], k_r: Token[Rope], *, base=10000.0):
    "(q_i . k_j + R q_r . R k_r) / sqrt(d + d_r),  k_r shared by all heads"
    angle = gn.position() * gn.frequencies(q_r, base)
    q, k = gn.concat(q, gn.rotate(q_r, angle)), gn.concat(k, gn.rotate(k_r, angle))
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal())


@MAPS.row(46, "Wall attention, 2025, as its published kernels have it")
@gn.variant
def wall(q, k, log_g: Token[Head, Dim]):
    "sum_n q_in k_jn exp(sum_{s=j+1..i} log g_sn) / sqrt(d)"
    score = gn.dot(q, k, through=gn.diagonal(log=log_g))
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())

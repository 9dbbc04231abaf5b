"""Linear forms: decays and ordered products that weigh the values without a softmax."""

import gnomon as gn
from gnomon import Dim, Head, KVHead, Param, Repeat, Token
from gnomon.dsl.catalogue.entry import Family
from gnomon.dsl.catalogue.rotary import rotary

LINEAR = Family("linear forms")


@LINEAR.row(55, "Yang et al. 2024 (DeltaNet), arXiv 2406.06484")
@gn.variant
def delta_net(q, k, beta: Token[KVHead]):
    "o_i = sum_j (q_i prod_{s=j+1..i} (I - beta_s k_s k_s^T) beta_j k_j) v_j"
    score = gn.dot(q, k, through=gn.householder(k, beta))
    return gn.weighted_sum(score * gn.at_key(beta), mask=gn.causal())


@LINEAR.row(55, "Siems et al. 2025 (DeltaProduct), arXiv 2502.10297")
@gn.variant
def delta_product_linear(q, k, w: Token[KVHead, Repeat, Dim], beta: Token[KVHead, Repeat]):
    """o_i = sum_j (q_i prod_{s=j+1..i} prod_r (I - beta_sr w_sr w_sr^T) k_j) v_j

    The paper writes n_h pairs of key and value a token: flatten them to virtual tokens.
    """
    score = gn.dot(q, k, through=gn.householder(w, beta))
    return gn.weighted_sum(score, mask=gn.causal())


@LINEAR.row(55, "Kimi Team 2025 (Kimi Linear), arXiv 2510.26692")
@gn.variant
def kda_linear(q, k, log_alpha: Token[KVHead, Dim], beta: Token[KVHead]):
    "o_i = sum_j (q_i prod_{s=j+1..i} (I - beta_s k_s k_s^T) Diag(alpha_s) beta_j k_j) v_j"
    step = gn.householder(k, beta) @ gn.diagonal(log=log_alpha)
    return gn.weighted_sum(gn.dot(q, k, through=step) * gn.at_key(beta), mask=gn.causal())


@LINEAR.row(55, "Peng et al. 2025 (RWKV-7), arXiv 2503.14456")
@gn.variant
def rwkv7_linear(q, k, log_d: Token[KVHead, Dim], kappa: Token[KVHead, Dim], a: Token[KVHead, Dim]):
    "o_i = sum_j (q_i prod_{s=j+1..i} (D_s - (kappa_s * a_s) kappa_s^T) k_j) v_j"
    step = gn.diagonal(log=log_d) - gn.outer(kappa * a, kappa)
    return gn.weighted_sum(gn.dot(q, k, through=step), mask=gn.causal())


@LINEAR.row(65, "Sun et al. 2023 (RetNet), arXiv 2307.08621")
@gn.variant
def retention(q, k, *, base=10000.0):
    """s_ij v_j / max(|sum_l s_il|, 1),  s = (R q_i . R k_j) gamma_h^(i - j) / sqrt(d)

    gamma_h = 1 - 2^(-5 - h), h = 0 ... H - 1; no gradient through the row sum, as in the published
    code. The rotation is in the half layout. Second hand: the paper also divides by the root of
    the sum of the decays, which its group norm cancels in part.
    """
    gamma = 1 - 2.0 ** (-5 - gn.head())
    decay = gn.exp(gn.decay(gn.log(gamma)))
    score = rotary(q, k, gn.position() * gn.frequencies(q, base)) * decay
    return gn.ratio(score, gn.detach(score), mask=gn.causal(), at_least=1.0)


@LINEAR.row(66, "Dao and Gu 2024 (Mamba-2), arXiv 2405.21060")
@gn.variant
def ssd(q, k, dt: Token[Head], a: Param[Head]):
    "o_i = sum_j (C_i . B_j) e^(sum_{s=j+1..i} a dt_s) dt_j v_j,  C is q, B is k, a < 0"
    weight = gn.dot(q, k) * gn.exp(gn.decay(a * dt)) * gn.at_key(dt)
    return gn.weighted_sum(weight, mask=gn.causal())


@LINEAR.row(67, "Yang et al. 2023 (GLA), arXiv 2312.06635")
@gn.variant
def gla(q, k, log_g: Token[KVHead, Dim]):
    "o_i = sum_j (sum_n q_in k_jn exp(sum_{s=j+1..i} log g_sn)) v_j / sqrt(d)"
    weight = gn.dot(q, k, through=gn.diagonal(log=log_g)) * gn.rsqrt_dim(q)
    return gn.weighted_sum(weight, mask=gn.causal())

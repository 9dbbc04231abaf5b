"""Ordered products between query and key: PaTH and its relatives, with softmax."""

import gnomon as gn
from gnomon import Dim, Head, KVHead, Repeat, Token
from gnomon.dsl.catalogue.entry import Family
from gnomon.dsl.catalogue.maps import Block, Sub

PRODUCTS = Family("ordered products")
PATH = "Yang et al. 2025 (PaTH), arXiv 2505.16381"


@PRODUCTS.row(47, PATH)
@gn.variant
def path(q, k, w: Token[KVHead, Dim], beta: Token[KVHead]):
    """q_i H_i ... H_{j+1} k_j / sqrt(d),  H_s = I - beta_s w_s w_s^T

    w is taken as given; in the paper |w| = 1 and 0 < beta < 2.
    """
    score = gn.dot(q, k, through=gn.householder(w, beta))
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())


@PRODUCTS.row(47, PATH)
@gn.variant
def path_normalized(q, k, w: Token[KVHead, Dim], beta: Token[KVHead]):
    """q_i H_i ... H_{j+1} k_j / sqrt(d),  H_s = I - beta_s w_s w_s^T / |w_s|^2

    Exact reflections at beta = 2 also for w in 16 bits.
    """
    score = gn.dot(q, k, through=gn.householder(w, beta, normalize=True))
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())


@PRODUCTS.row(48, PATH)
@gn.variant
def path_fox(q, k, w: Token[KVHead, Dim], beta: Token[KVHead], log_f: Token[Head]):
    """q_i H_i ... H_{j+1} k_j / sqrt(d) + sum_{s=j+1..i} log f_s

    The gate stands outside the scale, as FoX has it; path_fox_fla has it inside.
    """
    score = gn.dot(q, k, through=gn.householder(w, beta))
    return gn.softmax(score * gn.rsqrt_dim(q) + gn.decay(log_f), mask=gn.causal())


@PRODUCTS.row(48, f"{PATH}, as flash-linear-attention has it")
@gn.variant
def path_fox_fla(q, k, w: Token[KVHead, Dim], beta: Token[KVHead], log_f: Token[Head]):
    """(q_i H_i ... H_{j+1} k_j + sum_{s=j+1..i} log f_s) / sqrt(d)

    The gate is scaled too; path_fox leaves it outside.
    """
    score = gn.dot(q, k, through=gn.householder(w, beta))
    return gn.softmax((score + gn.decay(log_f)) * gn.rsqrt_dim(q), mask=gn.causal())


@PRODUCTS.row(49, "Yang et al. 2024 (Gated DeltaNet), arXiv 2412.06464; its step as a position")
@gn.variant
def gated_delta(q, k, beta: Token[KVHead], log_a: Token[Head]):
    """e^(sum_{s=j+1..i} log a_s) q_i prod (I - beta_s k_s k_s^T) k_j / sqrt(d)

    The decay multiplies the logit: far keys tend to equal weights, not to none as in FoX.
    """
    score = gn.dot(q, k, through=gn.householder(k, beta)) * gn.exp(gn.decay(log_a))
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())


@PRODUCTS.row(50, "Siems et al. 2025 (DeltaProduct), arXiv 2502.10297; its step as a position")
@gn.variant
def delta_product(q, k, w: Token[KVHead, Repeat, Dim], beta: Token[KVHead, Repeat]):
    "q_i prod_{s=j+1..i} prod_r (I - beta_sr w_sr w_sr^T) k_j / sqrt(d): r = 0 acts first"
    score = gn.dot(q, k, through=gn.householder(w, beta))
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())


@PRODUCTS.row(51, "the identity plus low rank form of flash-linear-attention, as a position")
@gn.variant
def iplr(q, k, w: Token[KVHead, Dim], u: Token[KVHead, Dim], beta: Token[KVHead]):
    "q_i prod_{s=j+1..i} (I - beta_s w_s u_s^T) k_j / sqrt(d)"
    score = gn.dot(q, k, through=gn.identity() - beta * gn.outer(w, u))
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())


@PRODUCTS.row(52, "Peng et al. 2025 (RWKV-7), arXiv 2503.14456; its step as a position")
@gn.variant
def dplr(q, k, log_d: Token[KVHead, Dim], w: Token[KVHead, Dim], u: Token[KVHead, Dim]):
    """q_i prod_{s=j+1..i} (D_s - w_s u_s^T) k_j / sqrt(d),  D = Diag(exp(log_d))

    RWKV-7: w = kappa * a, u = kappa.
    """
    score = gn.dot(q, k, through=gn.diagonal(log=log_d) - gn.outer(w, u))
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())


@PRODUCTS.row(53, "Kimi Team 2025 (Kimi Linear), arXiv 2510.26692; its step as a position")
@gn.variant
def kda(q, k, log_alpha: Token[KVHead, Dim], beta: Token[KVHead]):
    "q_i prod_{s=j+1..i} (I - beta_s k_s k_s^T) Diag(alpha_s) k_j / sqrt(d)"
    step = gn.householder(k, beta) @ gn.diagonal(log=log_alpha)
    return gn.softmax(gn.dot(q, k, through=step) * gn.rsqrt_dim(q), mask=gn.causal())


@PRODUCTS.row(54, "no single paper: quaternion and SO(b) products of the data")
@gn.variant
def ordered_rotations(q, k, p: Token[KVHead, Block, Sub, Sub]):
    "q_i prod_{s=j+1..i} exp(P_s - P_s^T) k_j / sqrt(d) in small blocks (quaternions: blocks of 4)"
    score = gn.dot(q, k, through=gn.expm(p - p.T))
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())


@PRODUCTS.row(54, "no single paper: two reflections make a rotation of their plane")
@gn.variant
def ordered_plane_rotations(q, k, w: Token[KVHead, Repeat, Dim]):
    """q_i prod_{s=j+1..i} prod_r (I - 2 w_sr w_sr^T) k_j / sqrt(d)

    w in pairs of unit vectors that span the plane of a rotation.
    """
    score = gn.dot(q, k, through=gn.householder(w, 2.0))
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())

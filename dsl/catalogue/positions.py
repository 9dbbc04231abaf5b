"""No position, and positions added to the token."""

import gnomon as gn
from gnomon import Dim, Entry, Head, KVHead, Param
from gnomon.dsl.catalogue.bias import t5_bucket
from gnomon.dsl.catalogue.entry import Family

POSITIONS = Family("no or absolute position")


class Model(gn.Axis):
    "The width of the residual stream."


@POSITIONS.row(1, "Kazemnejad et al. 2023, arXiv 2305.19466")
@gn.variant
def nope(q, k):
    "softmax_j( q_i . k_j / sqrt(d) )"
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal())


@POSITIONS.row(2, "Vaswani et al. 2017, arXiv 1706.03762")
@gn.variant
def sinusoidal(q, k, w_q: Param[Head, Model, Dim], w_k: Param[KVHead, Model, Dim]):
    """(q_i + p_i W_q) . (k_j + p_j W_k) / sqrt(d),  p = (sin, cos) of position * omega

    In a model p is added to the embedding and the kernel is nope. The paper interleaves sin and
    cos, a permutation of the rows of W.
    """
    angle = gn.position() * gn.frequencies(Model)
    p = gn.concat(gn.sin(angle), gn.cos(angle))
    return gn.softmax(gn.dot(q + p @ w_q, k + p @ w_k) * gn.rsqrt_dim(q), mask=gn.causal())


@POSITIONS.row(
    3,
    "Devlin et al. 2018 (BERT), arXiv 1810.04805; Likhomanenko et al. 2021 (CAPE), arXiv "
    "2106.03143; Ruoss et al. 2023 (randomised positions), arXiv 2305.16843",
)
@gn.variant
def learned_absolute(
    q,
    k,
    table: Param[Entry, Model],
    w_q: Param[Head, Model, Dim],
    w_k: Param[KVHead, Model, Dim],
):
    """(q_i + p_i W_q) . (k_j + p_j W_k) / sqrt(d),  p_i = table[position_i]

    Randomised positions and CAPE pass positions= at the call; CAPE's real ones are rounded there.
    """
    p = gn.lookup(table, gn.position())
    return gn.softmax(gn.dot(q + p @ w_q, k + p @ w_k) * gn.rsqrt_dim(q), mask=gn.causal())


@POSITIONS.row(4, "Ke, He and Liu 2020, arXiv 2006.15595")
@gn.variant
def tupe(
    q,
    k,
    p_q: Param[Head, Entry, Dim],
    p_k: Param[KVHead, Entry, Dim],
    bias: Param[Head, Entry],
    *,
    buckets=32,
    max_distance=128,
):
    """(q_i . k_j + U_q p_i . U_k p_j) / sqrt(2 d) + b_h[bucket(i - j)]

    The products U p are given as tables; the untied first token of the paper is left out.
    """
    place = gn.dot(gn.lookup(p_q, gn.position()), gn.lookup(p_k, gn.position()))
    score = (gn.dot(q, k) + place) / gn.sqrt(2 * gn.dim(q))
    bucket = t5_bucket(gn.distance(), buckets, max_distance)
    return gn.softmax(score + gn.lookup(bias, bucket), mask=gn.causal())

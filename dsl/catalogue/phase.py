"""Phase modulation: the distance turns a phase that the content decides (TAPA)."""

import gnomon as gn
from gnomon import Dim, Head, Param
from gnomon.dsl.catalogue.entry import Family

PHASE = Family("phase modulation")
TAPA = "Wang et al. 2025 (TAPA), arXiv 2509.12635"


@PHASE.row(56, TAPA)
@gn.variant
def tapa(q, k, *, alpha=0.1, theta=0.5):
    """q_A . k_A / sqrt(theta d) * cos(2 pi (i - j)^alpha q_P . k_P / sqrt((1 - theta) d))

    A is the first share theta of the channels, P the rest.
    """
    (qa, qp), (ka, kp) = gn.split(q, theta), gn.split(k, theta)
    phase = gn.dot(qp, kp) * gn.rsqrt_dim(qp)
    amplitude = gn.dot(qa, ka) * gn.rsqrt_dim(qa)
    logit = amplitude * gn.cos_turns(gn.distance() ** alpha * phase)
    return gn.softmax(logit, mask=gn.causal())


@PHASE.row(56, f"{TAPA}, as its released code has it")
@gn.variant
def tapa_no_turns(q, k, *, alpha=0.5, theta=0.5):
    """q_A . k_A / sqrt(theta d) * cos((i - j)^alpha q_P . k_P / sqrt((1 - theta) d))

    The released code leaves out the 2 pi of the paper and uses alpha = 0.5.
    """
    (qa, qp), (ka, kp) = gn.split(q, theta), gn.split(k, theta)
    phase = gn.dot(qp, kp) * gn.rsqrt_dim(qp)
    amplitude = gn.dot(qa, ka) * gn.rsqrt_dim(qa)
    return gn.softmax(amplitude * gn.cos(gn.distance() ** alpha * phase), mask=gn.causal())


@PHASE.row(57, TAPA)
@gn.variant
def tapa_linear(q, k, *, alpha=0.1, theta=0.5):
    "q_A . k_A / sqrt(theta d) * cos(2 pi (i - j)^alpha (1 . q_P + 1 . k_P) / sqrt((1 - theta) d))"
    (qa, qp), (ka, kp) = gn.split(q, theta), gn.split(k, theta)
    phase = (gn.channel_sum(qp) + gn.channel_sum(kp)) * gn.rsqrt_dim(qp)
    amplitude = gn.dot(qa, ka) * gn.rsqrt_dim(qa)
    logit = amplitude * gn.cos_turns(gn.distance() ** alpha * phase)
    return gn.softmax(logit, mask=gn.causal())


@PHASE.row(58, TAPA)
@gn.variant
def tapa_general(q, k, m: Param[Head, Dim, Dim], n: Param[Head, Dim, Dim], *, alpha=0.1):
    "q_i M k_j cos(2 pi (i - j)^alpha q_i N k_j)"
    turns = gn.distance() ** alpha * gn.dot(q @ n, k)
    return gn.softmax(gn.dot(q @ m, k) * gn.cos_turns(turns), mask=gn.causal())

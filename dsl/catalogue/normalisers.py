"""How scores become weights: caps, sinks, temperatures, other normalisers, scans over keys."""

import math

import gnomon as gn
from gnomon import Dim, Entry, Head, Param, Query, ValueDim
from gnomon.dsl.catalogue.entry import Family

NORMALISERS = Family("normalisers, temperatures and scans")


@NORMALISERS.row(59, "Gemma Team 2024 (Gemma 2), arXiv 2408.00118")
@gn.variant
def soft_cap(q, k, *, cap=50.0):
    "c tanh(q_i . k_j / (c sqrt(d)))"
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.softmax(cap * gn.tanh(score / cap), mask=gn.causal())


@NORMALISERS.row(60, "Miller 2023 (a blog post)")
@gn.variant
def softmax_off_by_one(q, k):
    "e^s / (1 + sum e^s),  s = q_i . k_j / sqrt(d)"
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal(), sink=0.0)


@NORMALISERS.row(61, "OpenAI 2025 (gpt-oss), arXiv 2508.10925")
@gn.variant
def learned_sink(q, k, sink: Param[Head]):
    "e^s / (e^sink_h + sum e^s),  s = q_i . k_j / sqrt(d)"
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal(), sink=sink)


@NORMALISERS.row(62, "Ramapuram et al. 2024, arXiv 2409.04431")
@gn.variant
def sigmoid_attention(q, k, bias: Param[Head]):
    "o_i = sum_j sigmoid(q_i . k_j / sqrt(d) + b_h) v_j,  b near -log T"
    weight = gn.sigmoid(gn.dot(q, k) * gn.rsqrt_dim(q) + bias)
    return gn.weighted_sum(weight, mask=gn.causal())


@NORMALISERS.row(63, "Zuhri et al. 2025 (softpick), arXiv 2504.20966")
@gn.variant
def softpick(q, k):
    """relu(e^s - 1) / max(sum |e^s - 1|, 1e-6),  s = q_i . k_j / sqrt(d)

    Second hand: from memory; the paper adds its small number instead of taking the maximum.
    """
    e = gn.exp(gn.dot(q, k) * gn.rsqrt_dim(q)) - 1
    return gn.ratio(gn.relu(e), abs(e), mask=gn.causal(), at_least=1e-6)


@NORMALISERS.row(68, "Nakanishi 2025 (SSMax), arXiv 2501.19399")
@gn.variant
def scalable_softmax(q, k, s: Param[Head]):
    "s_h log(n_i) q_i . k_j / sqrt(d),  n_i = number of keys that i sees"
    mask = gn.causal()
    temperature = s * gn.log(gn.visible_count(mask))
    return gn.softmax(temperature * gn.dot(q, k) * gn.rsqrt_dim(q), mask=mask)


@NORMALISERS.row(69, "Su 2021 (a blog post); Chiang and Cholak 2022, arXiv 2202.12172")
@gn.variant
def log_n_scaling(q, k, *, trained=4096):
    """q_i . k_j / sqrt(d) * max(1, log n_i / log L),  n_i = i + 1

    Second hand: the clamp at 1 is that of released models.
    """
    n = gn.at_query(gn.position()) + 1
    temperature = gn.maximum(gn.log(n) / math.log(trained), 1.0)
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) * temperature, mask=gn.causal())


@NORMALISERS.row(69, "Meta 2025 (Llama 4), as its released code has it")
@gn.variant
def llama4_temperature(q, k, *, floor=8192, scale=0.1):
    "q_i . k_j / sqrt(d) * (1 + scale log(1 + floor((i + 1) / floor_scale)))"
    steps = gn.floor((gn.at_query(gn.position()) + 1) / floor)
    temperature = 1 + scale * gn.log(1 + steps)
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) * temperature, mask=gn.causal())


@NORMALISERS.row(70, "Tan et al. 2024, arXiv 2410.17980")
@gn.variant
def stick_breaking(q, k):
    "sigmoid(s_ij) prod_{j<l<i} (1 - sigmoid(s_il)),  s = q_i . k_j / sqrt(d), j < i"
    return gn.stick_breaking(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal(strict=True))


@NORMALISERS.row(71, "Csordas et al. 2021 (NDR), arXiv 2110.07732")
@gn.variant
def geometric(q, k):
    """sigmoid(s_ij) prod_{|l - i| < |j - i|} (1 - sigmoid(s_il)),  s = q_i . k_j / sqrt(d)

    Keys on both sides. Second hand: the paper breaks ties between the sides, and leaves out the
    diagonal; here equally near keys do not see each other.
    """
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.stick_breaking(score, mask=gn.everything(), order="nearest_first")


@NORMALISERS.row(72, "Golovneva et al. 2024 (CoPE), arXiv 2405.18719")
@gn.variant
def cope(q, k, e: Param[Entry, Dim], *, furthest=64):
    """q_i . k_j / sqrt(d) + q_i . e[p_ij],  p_ij = min(sum_{l=j..i} sigmoid(q_i . k_l), f - 1)

    e is read between its entries, f (furthest) of them. The gate has no scale.
    """
    score = gn.dot(q, k)
    place = gn.minimum(gn.score_scan(gn.sigmoid(score), inclusive=True), furthest - 1)
    bias = gn.interpolate(q @ e.T, place)
    return gn.softmax(score * gn.rsqrt_dim(q) + bias, mask=gn.causal())


@NORMALISERS.row(76, "Ye et al. 2024 (Differential Transformer), arXiv 2410.05258")
@gn.variant
def differential(q, k, weight: Param[ValueDim], lam: Param, *, initial=0.8):
    """norm( softmax(q1 k1 / sqrt(d/2)) V - lambda softmax(q2 k2 / sqrt(d/2)) V ) (1 - lambda_init)

    q and k hold both halves of a head; d is their width together.
    """
    (q1, q2), (k1, k2) = gn.split(q), gn.split(k)
    first = gn.softmax(gn.dot(q1, k1) * gn.rsqrt_dim(q1), mask=gn.causal())
    second = gn.softmax(gn.dot(q2, k2) * gn.rsqrt_dim(q2), mask=gn.causal())
    return gn.rms_norm(first - lam * second, weight) * (1 - initial)


@NORMALISERS.row(77, "Qiu et al. 2025, arXiv 2505.06708")
@gn.variant
def gated(q, k, gate: Query[Head, ValueDim]):
    "o_i * sigmoid(g_i),  o = softmax(q_i . k_j / sqrt(d)) v"
    output = gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal())
    return output * gn.sigmoid(gate)

"""The rows that are no sentences of the grammar, written as a user would; each with its law."""

import gnomon as gn
from gnomon import Dim, Entry, Head, Param, Query, ValueDim
from gnomon.dsl.catalogue.entry import Family

REFUSED = Family("refused")


@REFUSED.refused(6, "Shaw, Uszkoreit and Vaswani 2018, arXiv 1803.02155")
def shaw_value(q, k, a: Param[Entry, ValueDim], *, clip=16):
    "o_i = sum_j P_ij (v_j + a[clip(j - i) + c])"
    o = gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal())
    return o + gn.lookup(a, gn.clip(-gn.distance(), -clip, clip) + clip)


@REFUSED.refused(20, "Zheng et al. 2024 (DAPE), arXiv 2405.14722")
def dape(q, k, w: Param[Head, Entry, Entry]):
    "S + MLP over heads of S,  S = q_i . k_j / sqrt(d)"
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.softmax(score + gn.relu(score @ w), mask=gn.causal())


@REFUSED.refused(
    21, "Zheng et al. 2024 (DAPE V2), arXiv 2410.04798; Golovneva et al. 2025, arXiv 2504.00927"
)
def multi_token(q, k, w: Param[Head, Entry]):
    "a convolution over neighbouring scores S_{i-a, j-b} before the softmax"
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.softmax(score + gn.lookup(w, 1) * score[-1], mask=gn.causal())


@REFUSED.refused(22, "Shazeer et al. 2020 (talking heads), arXiv 2003.02436")
def talking_heads(q, k, w: Param[Entry, Entry]):
    "softmax(sum_h' W_hh' S_h'), and another mix after the softmax"
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) @ w, mask=gn.causal())


@REFUSED.refused(
    64, "Martins and Astudillo 2016, arXiv 1602.02068; Peters et al. 2019, arXiv 1905.05702"
)
def entmax(q, k):
    "max((alpha - 1) s_ij - tau_i, 0)^(1 / (alpha - 1)),  tau_i so that a row sums to 1"
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.entmax(score, alpha=1.5, mask=gn.causal())  # type: ignore[attr-defined]


@REFUSED.refused(73, "Leviathan et al. 2024 (selective attention), arXiv 2410.02703")
def selective(q, k):
    "s_ij - sum_{l<i} relu(s_lj)"
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.softmax(score - gn.prefix_sum(gn.relu(score), inclusive=False), mask=gn.causal())


@REFUSED.refused(74, "DeltaFormer, 2025, arXiv 2505.19488")
def delta_former(q, k, w: Query[Head, Dim], beta: Query[Head]):
    "attention over u_i = v_i - beta_i sum_{j<i} softmax(w_i . k_j) u_j"
    u = gn.softmax(gn.dot(w, k), mask=gn.causal(strict=True)) * -beta
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal(), values=u)


@REFUSED.refused(75, "Parallax, as its published kernels have it")
def parallax(q, k, r: Query[Head, Dim]):
    "O1 (1 + d2) - O2: a second score r_i . k_j weighs the values once more, after the softmax"
    o = gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal())
    return o * (1 + gn.dot(r, k)) - o

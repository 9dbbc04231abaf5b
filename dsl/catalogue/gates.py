"""A term added to the logit that the data decide: gates and path integrals."""

import gnomon as gn
from gnomon import Dim, Head, KVHead, Param, Token
from gnomon.dsl.catalogue.entry import Family

GATES = Family("data-dependent bias")


class Path(gn.Axis):
    "The few channels of a path feature."


@GATES.row(15, "Veisi et al. 2025 (CABLE), arXiv 2503.08067")
@gn.variant
def cable(q, k, x: Token[Head]):
    "q_i . k_j / sqrt(d) + S_i - S_j,  S = cumsum(-softplus(x))"
    bias = gn.decay(-gn.softplus(x))
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) + bias, mask=gn.causal())


@GATES.row(16, "Lin et al. 2025 (Forgetting Transformer), arXiv 2503.02130")
@gn.variant
def fox(q, k, log_f: Token[Head]):
    "q_i . k_j / sqrt(d) + sum_{s=j+1..i} log f_s"
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) + gn.decay(log_f), mask=gn.causal())


@GATES.row(17, "Lin et al. 2025 (Adaptive Computation Pruning), arXiv 2504.06949")
@gn.variant
def fox_pruned(q, k, log_f: Token[Head], *, log_eps=-10.0):
    """q_i . k_j / sqrt(d) + sum_{s=j+1..i} log f_s, without tiles that weigh below e^log_eps

    What is left out of a row weighs less than e^log_eps of it; the oracle leaves nothing out.
    """
    forget = gn.decay(log_f)
    mask = gn.causal() & gn.negligible(forget, log_eps=log_eps)
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) + forget, mask=mask)


@GATES.row(18, "Zhang et al. 2025 (GRAPE), arXiv 2512.07805")
@gn.variant
def grape_a(q, k, u: Param[KVHead, Dim], omega: Param[Head]):
    "q_i . k_j / sqrt(d) - (i - j) omega_h softplus(u_h . k_j / sqrt(d)): gated by the key"
    gate = gn.softplus(gn.channel_sum(u * k) * gn.rsqrt_dim(k))
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.softmax(score - gn.distance() * omega * gate, mask=gn.causal())


@GATES.row(18, "Zhang et al. 2025 (GRAPE), arXiv 2512.07805")
@gn.variant
def grape_a_query(q, k, u: Param[Head, Dim], omega: Param[Head]):
    "q_i . k_j / sqrt(d) - (i - j) omega_h softplus(u_h . q_i / sqrt(d)): gated by the query"
    gate = gn.softplus(gn.channel_sum(u * q) * gn.rsqrt_dim(q))
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.softmax(score - gn.distance() * omega * gate, mask=gn.causal())


@GATES.row(19, "Zhang et al. 2025 (GRAPE-AP), arXiv 2512.07805")
@gn.variant
def grape_ap(q, k, p: Token[KVHead, Path], slope: Param[Head]):
    """q_i . k_j / sqrt(d) + m_h sum_{l=j+1..i} log sigmoid(p_i . R p_l / d_p)

    R is taken as the rotation by the position on both sides.
    """
    angle = gn.position() * gn.frequencies(p)
    edge = gn.dot(gn.rotate(p, angle), gn.rotate(p, angle)) / gn.dim(p)
    path = gn.score_scan(gn.log_sigmoid(edge), inclusive=False)
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) + slope * path, mask=gn.causal())

"""A variant that nobody has published: a forget gate beside a learned logarithmic fade.

gnomon show examples/own_variant.py:fading
gnomon check examples/own_variant.py:fading
"""

import gnomon as gn
from gnomon import Head, Param, Token


@gn.variant
def fading(q, k, log_f: Token[Head], fade: Param[Head]):
    "q_i . k_j / sqrt(d) + sum_{s=j+1..i} log f_s - fade_h log(1 + i - j)"
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    distant = fade * gn.log1p(gn.distance())
    return gn.softmax(score + gn.decay(log_f) - distant, mask=gn.causal())

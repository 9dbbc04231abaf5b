"""Positions added to the token, and terms added to the logit."""

import math
from typing import Any

import numpy as np

from naive.base import (
    Array,
    between,
    biased,
    everything,
    half_turn,
    omega,
    plain,
    sigmoid,
    softmax,
    softplus,
)


def absolute(q: Array, k: Array, v: Array, p: Array, w_q: Array, w_k: Array) -> Array:
    return plain(q + p @ w_q, k + p @ w_k, v)


def sinusoidal(q: Array, k: Array, v: Array, w_q: Array, w_k: Array, **_: Any) -> Array:
    angle = np.arange(len(q))[:, None] * omega(len(w_q))
    return absolute(q, k, v, np.concatenate([np.sin(angle), np.cos(angle)], 1), w_q, w_k)


def learned_absolute(
    q: Array, k: Array, v: Array, table: Array, w_q: Array, w_k: Array, **_: Any
) -> Array:
    return absolute(q, k, v, table[: len(q)], w_q, w_k)


nope = plain


def fox(q: Array, k: Array, v: Array, log_f: Array, **_: Any) -> Array:
    return biased(q, k, v, lambda i, j: between(log_f, i, j))


def fox_pruned(q: Array, k: Array, v: Array, log_f: Array, **_: Any) -> Array:
    return fox(q, k, v, log_f)  # what is pruned is not seen at 11 tokens


def cable(q: Array, k: Array, v: Array, x: Array, **_: Any) -> Array:
    return biased(q, k, v, lambda i, j: between(-softplus(x), i, j))


def alibi(q: Array, k: Array, v: Array, h: int, H: int, **_: Any) -> Array:  # noqa: N803
    slope = 2 ** (-8 * (h + 1) / H)
    return biased(q, k, v, lambda i, j: -slope * (i - j))


def alibi_learned(q: Array, k: Array, v: Array, slope: float, **_: Any) -> Array:
    return biased(q, k, v, lambda i, j: -slope * (i - j))


def kerple_log(q: Array, k: Array, v: Array, r1: float, r2: float, **_: Any) -> Array:
    return biased(q, k, v, lambda i, j: -r1 * math.log(1 + r2 * (i - j)))


def kerple_power(q: Array, k: Array, v: Array, r1: float, r2: float, **_: Any) -> Array:
    return biased(q, k, v, lambda i, j: -r1 * (i - j) ** r2)


def sandwich(q: Array, k: Array, v: Array, omega: Array, h: int, H: int, **_: Any) -> Array:  # noqa: N803
    def bias(i: int, j: int) -> float:
        waves = sum(math.cos((i - j) * w) for w in omega) - len(omega)
        return waves / (8 * (h + 1) / H)

    return biased(q, k, v, bias)


def fire(
    q: Array,
    k: Array,
    v: Array,
    w1: Array,
    b1: Array,
    w2: Array,
    b2: float,
    c: float,
    threshold: float,
    **_: Any,
) -> Array:
    def psi(x: float) -> float:
        return math.log(abs(c) * x + 1)

    def bias(i: int, j: int) -> float:
        ratio = psi(i - j) / psi(max(float(i), abs(threshold)))
        return float(w2 @ np.maximum(w1 * ratio + b1, 0) + b2)

    return biased(q, k, v, bias)


def grape_a(q: Array, k: Array, v: Array, u: Array, omega: float, **_: Any) -> Array:
    root = math.sqrt(q.shape[1])
    return biased(q, k, v, lambda i, j: -(i - j) * omega * softplus(u @ k[j] / root))


def grape_a_query(q: Array, k: Array, v: Array, u: Array, omega: float, **_: Any) -> Array:
    root = math.sqrt(q.shape[1])
    return biased(q, k, v, lambda i, j: -(i - j) * omega * softplus(u @ q[i] / root))


def grape_ap(q: Array, k: Array, v: Array, p: Array, slope: float, **_: Any) -> Array:
    n = p.shape[1]
    turned_p = np.array([half_turn(x, t * omega(n)) for t, x in enumerate(p)])

    def bias(i: int, j: int) -> float:
        edges = [turned_p[i] @ turned_p[m] / n for m in range(j + 1, i + 1)]
        return slope * sum(math.log(sigmoid(edge)) for edge in edges)

    return biased(q, k, v, bias)


def t5_bucket(distance: int, buckets: int, max_distance: int) -> int:
    exact = buckets // 2
    if distance < exact:
        return distance
    log = math.log(distance / exact) / math.log(max_distance / exact)
    return min(exact + int(log * (buckets - exact) + 1e-6), buckets - 1)


def t5(q: Array, k: Array, v: Array, bias: Array, **_: Any) -> Array:
    return softmax(lambda i, j: q[i] @ k[j] + bias[t5_bucket(i - j, 8, 12)], v)


def t5_encoder(q: Array, k: Array, v: Array, bias: Array, **_: Any) -> Array:
    def score(i: int, j: int) -> float:
        return float(q[i] @ k[j] + bias[t5_bucket(abs(i - j), 4, 12) + (4 if j > i else 0)])

    return softmax(score, v, everything)


def tupe(q: Array, k: Array, v: Array, p_q: Array, p_k: Array, bias: Array, **_: Any) -> Array:
    def score(i: int, j: int) -> float:
        both = q[i] @ k[j] + p_q[i] @ p_k[j]
        return float(both / math.sqrt(2 * q.shape[1]) + bias[t5_bucket(i - j, 8, 12)])

    return softmax(score, v)


def shaw_key(q: Array, k: Array, v: Array, a: Array, **_: Any) -> Array:
    clip = 3
    root = math.sqrt(q.shape[1])

    def score(i: int, j: int) -> float:
        return float(q[i] @ (k[j] + a[max(-clip, min(clip, j - i)) + clip]) / root)

    return softmax(score, v)


def transformer_xl(
    q: Array, k: Array, v: Array, u: Array, v_r: Array, w_r: Array, **_: Any
) -> Array:
    frequency, root = omega(len(w_r)), math.sqrt(q.shape[1])

    def score(i: int, j: int) -> float:
        r = np.concatenate([np.sin((i - j) * frequency), np.cos((i - j) * frequency)])
        return float(((q[i] + u) @ k[j] + (q[i] + v_r) @ (r @ w_r)) / root)

    return softmax(score, v)


def deberta(q: Array, k: Array, v: Array, k_r: Array, q_r: Array, **_: Any) -> Array:
    span = 4

    def delta(i: int, j: int) -> int:
        return 0 if i - j <= -span else 2 * span - 1 if i - j >= span else i - j + span

    def score(i: int, j: int) -> float:
        total = q[i] @ k[j] + q[i] @ k_r[delta(i, j)] + k[j] @ q_r[delta(j, i)]
        return float(total / math.sqrt(3 * q.shape[1]))

    return softmax(score, v, everything)

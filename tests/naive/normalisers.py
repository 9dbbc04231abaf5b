"""Phase modulation, normalisers, temperatures, scans and masks."""

import math
from typing import Any

import numpy as np

from naive.base import (
    Array,
    biased,
    plain,
    sigmoid,
    softmax,
)


def tapa(
    q: Array,
    k: Array,
    v: Array,
    alpha: float = 0.1,
    theta: float = 0.5,
    turn: float = 2 * math.pi,
    **_: Any,
) -> Array:
    n = round(theta * q.shape[1])

    def score(i: int, j: int) -> float:
        amplitude = q[i, :n] @ k[j, :n] / math.sqrt(n)
        phase = q[i, n:] @ k[j, n:] / math.sqrt(q.shape[1] - n)
        return float(amplitude * math.cos(turn * (i - j) ** alpha * phase))

    return softmax(score, v)


def tapa_no_turns(q: Array, k: Array, v: Array, **_: Any) -> Array:
    return tapa(q, k, v, alpha=0.5, turn=1.0)


def tapa_linear(q: Array, k: Array, v: Array, **_: Any) -> Array:
    n = q.shape[1] // 2

    def score(i: int, j: int) -> float:
        amplitude = q[i, :n] @ k[j, :n] / math.sqrt(n)
        phase = (sum(q[i, n:]) + sum(k[j, n:])) / math.sqrt(n)
        return float(amplitude * math.cos(2 * math.pi * (i - j) ** 0.1 * phase))

    return softmax(score, v)


def tapa_general(q: Array, k: Array, v: Array, m: Array, n: Array, **_: Any) -> Array:
    def score(i: int, j: int) -> float:
        return float(q[i] @ m @ k[j] * math.cos(2 * math.pi * (i - j) ** 0.1 * (q[i] @ n @ k[j])))

    return softmax(score, v)


def soft_cap(q: Array, k: Array, v: Array, **_: Any) -> Array:
    return softmax(lambda i, j: 2 * math.tanh(q[i] @ k[j] / math.sqrt(q.shape[1]) / 2), v)


def softmax_off_by_one(q: Array, k: Array, v: Array, **_: Any) -> Array:
    return softmax(lambda i, j: q[i] @ k[j] / math.sqrt(q.shape[1]), v, sink=0.0)


def learned_sink(q: Array, k: Array, v: Array, sink: float, **_: Any) -> Array:
    return softmax(lambda i, j: q[i] @ k[j] / math.sqrt(q.shape[1]), v, sink=sink)


def sigmoid_attention(q: Array, k: Array, v: Array, bias: float, **_: Any) -> Array:
    weight = np.tril(sigmoid(q @ k.T / math.sqrt(q.shape[1]) + bias))
    return np.asarray(weight @ v)


def softpick(q: Array, k: Array, v: Array, **_: Any) -> Array:
    e = np.tril(np.exp(q @ k.T / math.sqrt(q.shape[1])) - 1)
    return np.asarray(np.maximum(e, 0) @ v / np.abs(e).sum(1, keepdims=True))


def scalable_softmax(q: Array, k: Array, v: Array, s: float, **_: Any) -> Array:
    root = math.sqrt(q.shape[1])
    return softmax(lambda i, j: s * math.log(i + 1) * (q[i] @ k[j]) / root, v)


def log_n_scaling(q: Array, k: Array, v: Array, **_: Any) -> Array:
    root = math.sqrt(q.shape[1])
    return softmax(lambda i, j: q[i] @ k[j] / root * max(1, math.log(i + 1, 4)), v)


def llama4_temperature(q: Array, k: Array, v: Array, **_: Any) -> Array:
    root = math.sqrt(q.shape[1])

    def score(i: int, j: int) -> float:
        return float(q[i] @ k[j] / root * (1 + 0.1 * math.log(1 + (i + 1) // 3)))

    return softmax(score, v)


def stick_breaking(q: Array, k: Array, v: Array, **_: Any) -> Array:
    beta = sigmoid(q @ k.T / math.sqrt(q.shape[1]))
    out = np.zeros_like(v)
    for i in range(len(v)):
        left = 1.0
        for j in reversed(range(i)):
            out[i] += beta[i, j] * left * v[j]
            left *= 1 - beta[i, j]
    return out


def geometric(q: Array, k: Array, v: Array, **_: Any) -> Array:
    beta = sigmoid(q @ k.T / math.sqrt(q.shape[1]))
    out = np.zeros_like(v)
    for i in range(len(v)):
        for j in range(len(v)):
            nearer = [1 - beta[i, m] for m in range(len(v)) if abs(m - i) < abs(j - i)]
            out[i] += beta[i, j] * np.prod(nearer) * v[j]
    return out


def cope(q: Array, k: Array, v: Array, e: Array, **_: Any) -> Array:
    def bias(i: int, j: int) -> float:
        place = min(sum(sigmoid(q[i] @ k[m]) for m in range(j, i + 1)), len(e) - 1)
        low = int(place)
        high = min(low + 1, len(e) - 1)
        return float(q[i] @ ((1 - place + low) * e[low] + (place - low) * e[high]))

    return biased(q, k, v, bias)


def differential(q: Array, k: Array, v: Array, weight: Array, lam: float, **_: Any) -> Array:
    n = q.shape[1] // 2
    x = plain(q[:, :n], k[:, :n], v) - lam * plain(q[:, n:], k[:, n:], v)
    return np.asarray(x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * weight * (1 - 0.8))


def gated(q: Array, k: Array, v: Array, gate: Array, **_: Any) -> Array:
    return np.asarray(plain(q, k, v) * sigmoid(gate))


def sliding_window(q: Array, k: Array, v: Array, **_: Any) -> Array:
    return biased(q, k, v, lambda i, j: 0.0, sees=lambda i, j: i - 3 < j <= i)


def streaming(q: Array, k: Array, v: Array, **_: Any) -> Array:
    return biased(q, k, v, lambda i, j: 0.0, sees=lambda i, j: j <= i and (i - j < 3 or j < 2))


def prefix_lm(q: Array, k: Array, v: Array, **_: Any) -> Array:
    return biased(q, k, v, lambda i, j: 0.0, sees=lambda i, j: j <= i or j < 4)


def documents(q: Array, k: Array, v: Array, ids: Array, **_: Any) -> Array:
    return biased(q, k, v, lambda i, j: 0.0, sees=lambda i, j: j <= i and ids[i] == ids[j])


def block_selection(q: Array, k: Array, v: Array, blocks: Array, **_: Any) -> Array:
    def sees(i: int, j: int) -> bool:
        return j <= i and j // 3 in blocks[i]

    return biased(q, k, v, lambda i, j: 0.0, sees=sees)

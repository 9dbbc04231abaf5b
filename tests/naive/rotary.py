"""Rotations and other maps of one token."""

import math
from typing import Any

import numpy as np
from scipy.linalg import expm

from naive.base import (
    Array,
    between,
    everything,
    half_turn,
    omega,
    softmax,
    softplus,
    turned,
)


def rope(q: Array, k: Array, v: Array, **_: Any) -> Array:
    return turned(q, k, v, np.arange(len(q))[:, None] * omega(q.shape[1]))


def rope_pairs(q: Array, k: Array, v: Array, **_: Any) -> Array:
    def complex_turn(x: Array) -> Any:
        phase = np.arange(len(x))[:, None] * omega(x.shape[1])
        return (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * phase)

    score = (complex_turn(q) @ complex_turn(k).conj().T).real / math.sqrt(q.shape[1])
    return softmax(lambda i, j: score[i, j], v)


def rope_partial(q: Array, k: Array, v: Array, **_: Any) -> Array:
    n = q.shape[1] // 4
    w, root = omega(n), math.sqrt(q.shape[1])

    def score(i: int, j: int) -> float:
        near = half_turn(q[i, :n], i * w) @ half_turn(k[j, :n], j * w)
        return float(near + q[i, n:] @ k[j, n:]) / root

    return softmax(score, v)


def p_rope(q: Array, k: Array, v: Array, **_: Any) -> Array:
    w = omega(q.shape[1])
    w[3 * len(w) // 4 :] = 0
    return turned(q, k, v, np.arange(len(q))[:, None] * w)


def rope_interpolated(q: Array, k: Array, v: Array, **_: Any) -> Array:
    return turned(q, k, v, np.arange(len(q))[:, None] / 4 * omega(q.shape[1], 500000.0))


def rope_dynamic_ntk(q: Array, k: Array, v: Array, **_: Any) -> Array:
    d = q.shape[1]
    s = 4 * len(q) / 5 - 3  # longer than the 5 trained tokens
    return turned(q, k, v, np.arange(len(q))[:, None] * omega(d, 10000.0 * s ** (d / (d - 2))))


def rope_ntk(q: Array, k: Array, v: Array, **_: Any) -> Array:
    d = q.shape[1]
    return turned(q, k, v, np.arange(len(q))[:, None] * omega(d, 10000.0 * 4.0 ** (d / (d - 2))))


def yarn(q: Array, k: Array, v: Array, scale: float = 16.0, **_: Any) -> Array:
    angles = []
    for w in omega(q.shape[1]):
        turns = 4096 / (2 * math.pi / w)
        keep = 0.0 if turns < 1 else 1.0 if turns > 32 else (turns - 1) / (32 - 1)
        angles.append((1 - keep) * w / scale + keep * w)
    temperature = (0.1 * math.log(scale) + 1) ** 2
    return turned(q, k, v, np.arange(len(q))[:, None] * np.array(angles), factor=temperature)


def yarn_by_plane(q: Array, k: Array, v: Array, scale: float = 16.0, **_: Any) -> Array:
    d = q.shape[1]
    low, high = (d * math.log(4096 / (n * 2 * math.pi)) / (2 * math.log(1e4)) for n in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), d - 1)
    ramp = np.clip((np.arange(d // 2) - low) / max(high - low, 0.001), 0, 1)
    angles = omega(d) / scale * ramp + omega(d) * (1 - ramp)
    temperature = (0.1 * math.log(scale) + 1) ** 2
    return turned(q, k, v, np.arange(len(q))[:, None] * angles, factor=temperature)


def rerope(q: Array, k: Array, v: Array, **_: Any) -> Array:
    window, leak, w, root = 3, 0.25, omega(q.shape[1]), math.sqrt(q.shape[1])

    def score(i: int, j: int) -> float:
        distance = i - j if i - j < window else window + leak * (i - j - window)
        return float(half_turn(q[i], distance * w) @ k[j]) / root

    return softmax(score, v)


def self_extend(q: Array, k: Array, v: Array, **_: Any) -> Array:
    window, group, w, root = 4, 3, omega(q.shape[1]), math.sqrt(q.shape[1])

    def score(i: int, j: int) -> float:
        far = i // group - j // group + window - window // group
        return float(half_turn(q[i], (i - j if i - j <= window else far) * w) @ k[j]) / root

    return softmax(score, v)


def xpos(q: Array, k: Array, v: Array, **_: Any) -> Array:
    d, root = q.shape[1], math.sqrt(q.shape[1])
    zeta = np.array([(c / (d / 2) + 0.4) / 1.4 for c in range(d // 2)])

    def score(i: int, j: int) -> float:
        grown = half_turn(q[i], (i - j) * omega(d)) * np.tile(zeta ** ((i - j) / 512), 2)
        return float(grown @ k[j]) / root

    return softmax(score, v)


def hope_hyperbolic(q: Array, k: Array, v: Array, damping: float, **_: Any) -> Array:
    n = q.shape[1] // 2

    def score(i: int, j: int) -> float:
        total = 0.0
        for c, theta in enumerate(omega(q.shape[1])):
            cosh, sinh = math.cosh((i - j) * theta), math.sinh((i - j) * theta)
            boost = np.array([[cosh, sinh], [sinh, cosh]])
            total += q[i, [c, c + n]] @ boost @ k[j, [c, c + n]]
        return math.exp(-(i - j) * damping) * total / math.sqrt(2 * n)

    return softmax(score, v)


def pope(q: Array, k: Array, v: Array, delta: Array, **_: Any) -> Array:
    d = q.shape[1]
    w = 10000.0 ** (-np.arange(d) / d)

    def score(i: int, j: int) -> float:
        phase = (i - j) * w - np.clip(delta, -2 * math.pi, 0)
        return float(softplus(q[i]) * softplus(k[j]) @ np.cos(phase)) / math.sqrt(d)

    return softmax(score, v)


def comrope(q: Array, k: Array, v: Array, place: Array, skews: list[Array]) -> Array:
    def score(i: int, j: int) -> float:
        away = place[i] - place[j]
        turn = expm(away[0] * skews[0] + away[1] * skews[1])
        return float(q[i] @ turn @ k[j]) / math.sqrt(q.shape[1])

    return softmax(score, v, everything)


def liere(q: Array, k: Array, v: Array, place: Array, skews: list[Array]) -> Array:
    turns = [expm(y * skews[0] + x * skews[1]) for y, x in place]

    def score(i: int, j: int) -> float:
        return float((q[i] @ turns[i]) @ (k[j] @ turns[j])) / math.sqrt(q.shape[1])

    return softmax(score, v, everything)


def grape_m(q: Array, k: Array, v: Array, a: Array, b: Array, omega: float, **_: Any) -> Array:
    plane = np.outer(a, b) - np.outer(b, a)

    def score(i: int, j: int) -> float:
        return float(q[i] @ expm((j - i) * omega * plane) @ k[j]) / math.sqrt(q.shape[1])

    return softmax(score, v)


def carope(q: Array, k: Array, v: Array, f: Array, **_: Any) -> Array:
    steps = f[:, None] ** np.arange(1, q.shape[1] // 2 + 1)
    return turned(q, k, v, np.cumsum(steps, 0))


def selective_rope(q: Array, k: Array, v: Array, step: Array, **_: Any) -> Array:
    return turned(q, k, v, np.cumsum(step, 0) * omega(q.shape[1]))


def grape_m_contextual(q: Array, k: Array, v: Array, g: Array, **_: Any) -> Array:
    taken = np.array([sum(g[:t]) for t in range(len(g))])
    return turned(q, k, v, taken[:, None] * omega(q.shape[1]))


def mla(q: Array, k: Array, v: Array, q_r: Array, k_r: Array, **_: Any) -> Array:
    n = q_r.shape[1]
    w, root = omega(n), math.sqrt(q.shape[1] + n)

    def score(i: int, j: int) -> float:
        return float(q[i] @ k[j] + half_turn(q_r[i], i * w) @ half_turn(k_r[j], j * w)) / root

    return softmax(score, v)


def wall(q: Array, k: Array, v: Array, log_g: Array, **_: Any) -> Array:
    def score(i: int, j: int) -> float:
        return float((q[i] * k[j]) @ np.exp(between(log_g, i, j))) / math.sqrt(q.shape[1])

    return softmax(score, v)


def fope(q: Array, k: Array, v: Array, mix_cos: Array, mix_sin: Array, **_: Any) -> Array:
    n = q.shape[1] // 2

    def turn(x: Array, t: int) -> Array:
        c, s = np.cos(t * omega(2 * n)) @ mix_cos, np.sin(t * omega(2 * n)) @ mix_sin
        return np.concatenate([x[:n] * c - x[n:] * s, x[n:] * c + x[:n] * s])

    return softmax(lambda i, j: turn(q[i], i) @ turn(k[j], j) / math.sqrt(2 * n), v)


def mamba3_angles(q: Array, k: Array, v: Array, dt: Array, theta: Array, **_: Any) -> Array:
    return turned(q, k, v, np.cumsum(dt[:, None] * theta, 0))


def repo(q: Array, k: Array, v: Array, z: Array, **_: Any) -> Array:
    return turned(q, k, v, z[:, None] * omega(q.shape[1]))


def longrope(q: Array, k: Array, v: Array, stretch: Array, **_: Any) -> Array:
    w = omega(q.shape[1])
    return turned(q, k, v, np.array([i * w if i < 4 else i * w / stretch for i in range(len(q))]))

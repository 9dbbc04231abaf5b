"""Ordered products, with softmax and by their recurrences."""

import math
from typing import Any

import numpy as np
from scipy.linalg import expm

from naive.base import (
    Array,
    between,
    half_turn,
    omega,
    ordered,
    reflections,
    softmax,
)


def path(q: Array, k: Array, v: Array, w: Array, beta: Array, **_: Any) -> Array:
    score = ordered(q, k, reflections(w, beta))
    return softmax(lambda i, j: score(i, j) / math.sqrt(q.shape[1]), v)


def path_normalized(q: Array, k: Array, v: Array, w: Array, beta: Array, **_: Any) -> Array:
    unit = w / np.sqrt((w**2).sum(1, keepdims=True))
    return path(q, k, v, unit, beta)


def path_fox(q: Array, k: Array, v: Array, w: Array, beta: Array, log_f: Array, **_: Any) -> Array:
    score, root = ordered(q, k, reflections(w, beta)), math.sqrt(q.shape[1])
    return softmax(lambda i, j: score(i, j) / root + between(log_f, i, j), v)


def path_fox_fla(
    q: Array, k: Array, v: Array, w: Array, beta: Array, log_f: Array, **_: Any
) -> Array:
    score, root = ordered(q, k, reflections(w, beta)), math.sqrt(q.shape[1])
    return softmax(lambda i, j: (score(i, j) + between(log_f, i, j)) / root, v)


def gated_delta(q: Array, k: Array, v: Array, beta: Array, log_a: Array, **_: Any) -> Array:
    score, root = ordered(q, k, reflections(k, beta)), math.sqrt(q.shape[1])
    return softmax(lambda i, j: math.exp(between(log_a, i, j)) * score(i, j) / root, v)


def delta_product(q: Array, k: Array, v: Array, w: Array, beta: Array, **_: Any) -> Array:
    steps = []
    for s in range(len(w)):
        step = np.eye(q.shape[1])
        for r in range(w.shape[1]):  # r = 0 meets the key first
            step = (np.eye(q.shape[1]) - beta[s, r] * np.outer(w[s, r], w[s, r])) @ step
        steps.append(step)
    score = ordered(q, k, steps)
    return softmax(lambda i, j: score(i, j) / math.sqrt(q.shape[1]), v)


def ordered_plane_rotations(q: Array, k: Array, v: Array, w: Array, **_: Any) -> Array:
    return delta_product(q, k, v, w, np.full(w.shape[:2], 2.0))


def iplr(q: Array, k: Array, v: Array, w: Array, u: Array, beta: Array, **_: Any) -> Array:
    eye = np.eye(q.shape[1])
    score = ordered(q, k, [eye - beta[s] * np.outer(w[s], u[s]) for s in range(len(w))])
    return softmax(lambda i, j: score(i, j) / math.sqrt(q.shape[1]), v)


def dplr(q: Array, k: Array, v: Array, log_d: Array, w: Array, u: Array, **_: Any) -> Array:
    steps = [np.diag(np.exp(log_d[s])) - np.outer(w[s], u[s]) for s in range(len(w))]
    score = ordered(q, k, steps)
    return softmax(lambda i, j: score(i, j) / math.sqrt(q.shape[1]), v)


def kda(q: Array, k: Array, v: Array, log_alpha: Array, beta: Array, **_: Any) -> Array:
    steps = [
        reflection @ np.diag(np.exp(decay))
        for reflection, decay in zip(reflections(k, beta), log_alpha, strict=True)
    ]
    score = ordered(q, k, steps)
    return softmax(lambda i, j: score(i, j) / math.sqrt(q.shape[1]), v)


def ordered_rotations(q: Array, k: Array, v: Array, p: Array, **_: Any) -> Array:
    steps = []
    for blocks in p:
        step = np.zeros((q.shape[1],) * 2)
        size = blocks.shape[1]
        for b, block in enumerate(blocks):
            at = slice(b * size, (b + 1) * size)
            step[at, at] = expm(block - block.T)
        steps.append(step)
    score = ordered(q, k, steps)
    return softmax(lambda i, j: score(i, j) / math.sqrt(q.shape[1]), v)


def recurrence(q: Array, v: Array, write: Array, steps: list[Array]) -> Array:
    """S_i = T_i S_{i-1} + write_i v_i^T,  o_i = q_i S_i."""
    state = np.zeros((q.shape[1], v.shape[1]))
    out = np.zeros_like(v)
    for i, step in enumerate(steps):
        state = step @ state + np.outer(write[i], v[i])
        out[i] = q[i] @ state
    return out


def delta_net(q: Array, k: Array, v: Array, beta: Array, **_: Any) -> Array:
    return recurrence(q, v, beta[:, None] * k, reflections(k, beta))


def kda_linear(q: Array, k: Array, v: Array, log_alpha: Array, beta: Array, **_: Any) -> Array:
    steps = [
        reflection @ np.diag(np.exp(decay))
        for reflection, decay in zip(reflections(k, beta), log_alpha, strict=True)
    ]
    return recurrence(q, v, beta[:, None] * k, steps)


def rwkv7_linear(
    q: Array, k: Array, v: Array, log_d: Array, kappa: Array, a: Array, **_: Any
) -> Array:
    steps = [np.diag(np.exp(log_d[s])) - np.outer(kappa[s] * a[s], kappa[s]) for s in range(len(q))]
    return recurrence(q, v, k, steps)


def gla(q: Array, k: Array, v: Array, log_g: Array, **_: Any) -> Array:
    return recurrence(q / math.sqrt(q.shape[1]), v, k, [np.diag(np.exp(g)) for g in log_g])


def ssd(q: Array, k: Array, v: Array, dt: Array, a: Array, **_: Any) -> Array:
    steps = [math.exp(a * step) * np.eye(q.shape[1]) for step in dt]
    return recurrence(q, v, dt[:, None] * k, steps)


def delta_product_linear(q: Array, k: Array, v: Array, w: Array, beta: Array, **_: Any) -> Array:
    steps = []
    for s in range(len(w)):
        step = np.eye(q.shape[1])
        for r in range(w.shape[1]):
            step = (np.eye(q.shape[1]) - beta[s, r] * np.outer(w[s, r], w[s, r])) @ step
        steps.append(step)
    return recurrence(q, v, k, steps)


def retention(q: Array, k: Array, v: Array, h: int, **_: Any) -> Array:
    gamma, w = 1 - 2.0 ** (-5 - h), omega(q.shape[1])
    out = np.zeros_like(v)
    for i in range(len(v)):
        weights = [
            half_turn(q[i], i * w)
            @ half_turn(k[j], j * w)
            / math.sqrt(q.shape[1])
            * gamma ** (i - j)
            for j in range(i + 1)
        ]
        out[i] = np.array(weights) @ v[: i + 1] / max(abs(float(np.sum(weights))), 1.0)
    return out

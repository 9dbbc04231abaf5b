"""What the formulas share: a softmax over what a query sees, ordered products, turns."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Score = Callable[[int, int], Any]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softplus(x: Any) -> Any:
    return np.log1p(np.exp(x))


def causal(i: int, j: int) -> bool:
    return j <= i


def everything(i: int, j: int) -> bool:
    return True


def softmax(
    score: Score, v: Array, sees: Callable[[int, int], bool] = causal, sink: float | None = None
) -> Array:
    out = np.zeros_like(v)
    for i in range(len(v)):
        keys = [j for j in range(len(v)) if sees(i, j)]
        weights = [math.exp(score(i, j)) for j in keys]
        total = sum(weights) + (0.0 if sink is None else math.exp(sink))
        for j, weight in zip(keys, weights, strict=True):
            out[i] += weight / total * v[j]
    return out


def plain(q: Array, k: Array, v: Array, **_: Any) -> Array:
    return softmax(lambda i, j: q[i] @ k[j] / math.sqrt(q.shape[1]), v)


def ordered(q: Array, k: Array, steps: list[Array]) -> Score:
    """q_i T_i T_{i-1} ... T_{j+1} k_j, applied to the column k_j from the right end."""

    def score(i: int, j: int) -> float:
        x = k[j]
        for s in range(j + 1, i + 1):
            x = steps[s] @ x
        return float(q[i] @ x)

    return score


def reflections(w: Array, beta: Array) -> list[Array]:
    eye = np.eye(w.shape[1])
    return [eye - b * np.outer(x, x) for x, b in zip(w, beta, strict=True)]


def between(x: Array, i: int, j: int) -> Any:
    """The sum over s = j + 1 ... i."""
    return sum((x[s] for s in range(j + 1, i + 1)), np.zeros_like(x[0]))


def half_turn(x: Array, angle: Array) -> Array:
    n = len(x) // 2
    out = np.zeros_like(x)
    for c in range(n):
        cos, sin = math.cos(angle[c]), math.sin(angle[c])
        out[c], out[c + n] = x[c] * cos - x[c + n] * sin, x[c + n] * cos + x[c] * sin
    return out


def omega(d: int, base: float = 10000.0) -> Array:
    return np.array([base ** (-2 * c / d) for c in range(d // 2)])


def turned(
    q: Array,
    k: Array,
    v: Array,
    angle: Array,
    sees: Callable[[int, int], bool] = causal,
    factor: float = 1.0,
) -> Array:
    """Both sides turned by the angle of their token, [time, d / 2]."""

    def score(i: int, j: int) -> float:
        left, right = half_turn(q[i], angle[i]), half_turn(k[j], angle[j])
        return float(left @ right) * factor / math.sqrt(q.shape[1])

    return softmax(score, v, sees)


def biased(q: Array, k: Array, v: Array, bias: Score, **options: Any) -> Array:
    root = math.sqrt(q.shape[1])
    return softmax(lambda i, j: q[i] @ k[j] / root + bias(i, j), v, **options)

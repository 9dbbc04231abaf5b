"""The papers' formulas for one head of one sequence, in numpy loops, without the language.

Every function takes q [time, d], k [time, d], v [time, d_v] and the inputs of that head by name,
`h` and `H` (which query head of how many), and gives the output [time, d_v].
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import expm

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


# ---- ordered products


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


# ---- positions added to the token


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


# ---- linear forms, by their recurrences


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
        out[i] = np.array(weights) @ v[: i + 1] / max(abs(sum(weights)), 1.0)
    return out


# ---- phase modulation


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


# ---- bias


def biased(q: Array, k: Array, v: Array, bias: Score, **options: Any) -> Array:
    root = math.sqrt(q.shape[1])
    return softmax(lambda i, j: q[i] @ k[j] / root + bias(i, j), v, **options)


def fox(q: Array, k: Array, v: Array, log_f: Array, **_: Any) -> Array:
    return biased(q, k, v, lambda i, j: between(log_f, i, j))


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
        ratio = psi(i - j) / psi(max(i, abs(threshold)))
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


# ---- rotations and other maps


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


# ---- normalisers, temperatures, scans, masks


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


def fox_pruned(q: Array, k: Array, v: Array, log_f: Array, **_: Any) -> Array:
    return fox(q, k, v, log_f)  # what is pruned is not seen at 11 tokens


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

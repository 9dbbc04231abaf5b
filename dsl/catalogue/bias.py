"""A term added to the logit: tables, slopes and functions of the distance."""

import math

import numpy as np

import gnomon as gn
from gnomon import Dim, Entry, Head, KVHead, Param
from gnomon.dsl.catalogue.entry import Family

BIAS = Family("additive bias")


class Model(gn.Axis):
    "The width of the relative embedding."


class Hidden(gn.Axis):
    "The hidden units of a small MLP."


class Wave(gn.Axis):
    "The waves of Sandwich, one for each frequency."


def t5_edges(buckets: int, max_distance: int) -> list[int]:
    """The smallest distance of each bucket behind the exact ones.

    The logarithm is rounded to float32 at each step as in the published code: whole distances
    such as 64 lie on an edge, and the last bit decides. Made of Python numbers when the variant is
    traced, so that every target has the same edges.
    """
    exact, single = buckets // 2, np.float32
    span = single(math.log(max_distance / exact))
    edges: list[int] = []
    distance = exact
    while len(edges) < buckets - exact - 1:
        log = single(math.log(single(distance) / single(exact)))
        bucket = exact + int(log / span * single(buckets - exact))
        edges += [distance] * min(bucket - exact - len(edges), buckets - exact - 1 - len(edges))
        distance += 1
    return edges


def t5_bucket(distance, buckets: int, max_distance: int):
    "Small distances have a bucket each, larger ones share buckets of equal size in log distance."
    bucket = gn.minimum(distance, buckets // 2)
    for edge in t5_edges(buckets, max_distance):
        bucket = bucket + gn.where(distance >= edge, 1, 0)
    return bucket


@BIAS.row(5, "Shaw, Uszkoreit and Vaswani 2018, arXiv 1803.02155")
@gn.variant
def shaw_key(q, k, a: Param[Entry, Dim], *, clip=16):
    "(q_i . k_j + q_i . a[clip(j - i) + c]) / sqrt(d),  clip to -c ... c"
    offset = gn.clip(-gn.distance(), -clip, clip) + clip
    score = gn.dot(q, k) + gn.lookup(q @ a.T, offset)
    return gn.softmax(score * gn.rsqrt_dim(q), mask=gn.causal())


@BIAS.row(7, "Dai et al. 2019, arXiv 1901.02860")
@gn.variant
def transformer_xl(q, k, u: Param[Head, Dim], v_r: Param[Head, Dim], w_r: Param[Head, Model, Dim]):
    """((q_i + u) . k_j + (q_i + v) . r_{i-j} W_R) / sqrt(d),  r = (sin, cos) of (i - j) omega

    r_{i-j} is a rotation of r_j, so its term is a dot of rotated features.
    """
    angle = gn.position() * gn.frequencies(Model)
    place = gn.dot(gn.rotate((q + v_r) @ w_r.T, angle), gn.concat(-gn.sin(angle), gn.cos(angle)))
    return gn.softmax((gn.dot(q + u, k) + place) * gn.rsqrt_dim(q), mask=gn.causal())


@BIAS.row(8, "Raffel et al. 2019, arXiv 1910.10683")
@gn.variant
def t5(q, k, bias: Param[Head, Entry], *, buckets=32, max_distance=128):
    """q_i . k_j + b_h[bucket(i - j)]

    The decoder's form; T5 has no 1/sqrt(d).
    """
    bucket = t5_bucket(gn.distance(), buckets, max_distance)
    return gn.softmax(gn.dot(q, k) + gn.lookup(bias, bucket), mask=gn.causal())


@BIAS.row(8, "Raffel et al. 2019, arXiv 1910.10683")
@gn.variant
def t5_encoder(q, k, bias: Param[Head, Entry], *, buckets=32, max_distance=128):
    """q_i . k_j + b_h[bucket(|i - j|) + n/2 (j > i)],  n/2 buckets for each side

    The encoder's form, where later keys are visible; no 1/sqrt(d).
    """
    half = buckets // 2
    side = gn.where(gn.distance() < 0, half, 0)
    bucket = side + t5_bucket(abs(gn.distance()), half, max_distance)
    return gn.softmax(gn.dot(q, k) + gn.lookup(bias, bucket), mask=gn.everything())


@BIAS.row(9, "Liu et al. 2021 (Swin), arXiv 2103.14030")
@gn.variant
def swin(q, k, bias: Param[Head, Entry, Entry], *, side=7):
    "q_i . k_j / sqrt(d) + B_h[dy + side - 1, dx + side - 1] inside a window of side x side patches"
    dy, dx = gn.distance("y") + side - 1, gn.distance("x") + side - 1
    score = gn.dot(q, k) * gn.rsqrt_dim(q)
    return gn.softmax(score + gn.lookup(bias, dy, dx), mask=gn.everything())


@BIAS.row(10, "He et al. 2020 (DeBERTa), arXiv 2006.03654")
@gn.variant
def deberta(q, k, k_r: Param[Head, Entry, Dim], q_r: Param[KVHead, Entry, Dim], *, span=256):
    """(q_i . k_j + q_i . K_r[delta(i, j)] + k_j . Q_r[delta(j, i)]) / sqrt(3 d)

    delta(i, j) = clip(i - j + span, 0, 2 span - 1).
    """
    there = gn.clip(gn.distance() + span, 0, 2 * span - 1)
    back = gn.clip(-gn.distance() + span, 0, 2 * span - 1)
    score = gn.dot(q, k) + gn.lookup(q @ k_r.T, there) + gn.lookup(k @ q_r.T, back)
    return gn.softmax(score / gn.sqrt(3 * gn.dim(q)), mask=gn.everything())


@BIAS.row(11, "Press, Smith and Lewis 2021, arXiv 2108.12409")
@gn.variant
def alibi(q, k):
    """q_i . k_j / sqrt(d) - m_h (i - j),  m_h = 2^(-8 h / H),  h = 1 ... H

    The paper gives this for a power of two; its code mixes two such series for other H: pass those
    slopes to alibi_learned.
    """
    slope = 2 ** (-8 * (gn.head() + 1) / gn.head_count())
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) - slope * gn.distance(), mask=gn.causal())


@BIAS.row(11, "Press, Smith and Lewis 2021, arXiv 2108.12409")
@gn.variant
def alibi_learned(q, k, slope: Param[Head]):
    "q_i . k_j / sqrt(d) - m_h (i - j),  m_h given or learned"
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) - slope * gn.distance(), mask=gn.causal())


@BIAS.row(12, "Chi et al. 2022 (KERPLE), arXiv 2205.09921")
@gn.variant
def kerple_log(q, k, r1: Param[Head], r2: Param[Head]):
    "q_i . k_j / sqrt(d) - r1 log(1 + r2 (i - j)),  r1, r2 > 0"
    bias = r1 * gn.log(1 + r2 * gn.distance())
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) - bias, mask=gn.causal())


@BIAS.row(12, "Chi et al. 2022 (KERPLE), arXiv 2205.09921")
@gn.variant
def kerple_power(q, k, r1: Param[Head], r2: Param[Head]):
    "q_i . k_j / sqrt(d) - r1 (i - j)^r2,  r1 > 0, 0 < r2 <= 2"
    bias = r1 * gn.distance() ** r2
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) - bias, mask=gn.causal())


@BIAS.row(13, "Chi et al. 2022 (Sandwich), arXiv 2212.10356")
@gn.variant
def sandwich(q, k, omega: Param[Wave]):
    """q_i . k_j / sqrt(d) + (sum_n cos((i - j) omega_n) - D/2) / (8 h / H),  n = 1 ... D/2

    omega_n = 10000^(-2n / D) with D = 128 in the paper, whatever d is. Second hand: the strength
    of a head is from memory.
    """
    strength = 8 * (gn.head() + 1) / gn.head_count()
    waves = gn.channel_sum(gn.cos(gn.distance() * omega)) - gn.dim(omega)
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) + waves / strength, mask=gn.causal())


@BIAS.row(14, "Li et al. 2023 (FIRE), arXiv 2310.04418")
@gn.variant
def fire(
    q,
    k,
    w1: Param[Hidden],
    b1: Param[Hidden],
    w2: Param[Head, Hidden],
    b2: Param[Head],
    c: Param,
    threshold: Param,
):
    "q_i . k_j / sqrt(d) + f( psi(i - j) / psi(max(i, L)) ),  psi(x) = log(|c| x + 1),  f = MLP"

    def psi(x):
        return gn.log(abs(c) * x + 1)

    furthest = gn.maximum(gn.at_query(gn.position()), abs(threshold))
    ratio = psi(gn.distance()) / psi(furthest)
    bias = gn.channel_sum(w2 * gn.relu(w1 * ratio + b1)) + b2
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) + bias, mask=gn.causal())

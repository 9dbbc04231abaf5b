"""What must hold of the oracle without knowing a formula: limits, symmetries, exact integers."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import gnomon as gn
from gnomon.dsl import catalogue
from gnomon.dsl.reference import reference

BATCH, TIME, HEADS, KV_HEADS, DIM = 2, 13, 4, 2, 8


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return (
        normal(BATCH, TIME, HEADS, DIM, seed=1),
        normal(BATCH, TIME, KV_HEADS, DIM, seed=2),
        normal(BATCH, TIME, KV_HEADS, 6, seed=3),
    )


def same(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def ask(name: str, *qkv: Tensor, **inputs: Any) -> Tensor:
    q, k, v = qkv
    found: Tensor = reference(catalogue.find(name), q, k, v, **inputs)
    return found


def test_nope_is_the_attention_of_torch(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = (x.transpose(1, 2) for x in qkv)
    plain = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    same(ask("nope", *qkv), plain.transpose(1, 2))


def test_path_without_steps_is_plain(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    w, beta = normal(BATCH, TIME, KV_HEADS, DIM, seed=4), torch.zeros(BATCH, TIME, KV_HEADS)
    same(ask("path", *qkv, w=w, beta=beta.double()), ask("nope", *qkv))


def test_fox_that_forgets_nothing_is_plain(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    log_f = torch.zeros(BATCH, TIME, HEADS, dtype=torch.float64)
    same(ask("fox", *qkv, log_f=log_f), ask("nope", *qkv))


def test_fox_with_one_constant_gate_is_alibi(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    slope = torch.tensor([2 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)], dtype=torch.float64)
    log_f = (-slope).expand(BATCH, TIME, HEADS)
    same(ask("fox", *qkv, log_f=log_f), ask("alibi", *qkv))


def test_a_reflection_of_one_coordinate_flips_its_sign_at_each_step(
    qkv: tuple[Tensor, Tensor, Tensor],
) -> None:
    """w = e_0 and beta = 2: coordinate 0 of the key is multiplied by (-1)^(i - j)."""
    q, k, v = qkv
    w = torch.zeros(BATCH, TIME, KV_HEADS, DIM, dtype=torch.float64)
    w[..., 0] = 1
    beta = torch.full((BATCH, TIME, KV_HEADS), 2.0, dtype=torch.float64)
    sign = torch.ones(TIME, DIM, dtype=torch.float64)
    sign[1::2, 0] = -1
    flipped = (x * sign[:, None] for x in (q, k))
    same(ask("path", q, k, v, w=w, beta=beta), ask("nope", *flipped, v))


@pytest.mark.parametrize("name", ["rope", "rope_pairs", "rope_partial", "yarn", "xpos", "alibi"])
def test_relative_variants_depend_on_the_distance_alone(
    qkv: tuple[Tensor, Tensor, Tensor], name: str
) -> None:
    here = torch.arange(TIME).expand(BATCH, -1)
    same(ask(name, *qkv, positions=here + 1000), ask(name, *qkv), 1e-10)


def test_absolute_variants_do_not(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    w_q, w_k = normal(HEADS, 6, DIM, seed=5), normal(KV_HEADS, 6, DIM, seed=6)
    here = torch.arange(TIME).expand(BATCH, -1)
    moved = ask("sinusoidal", *qkv, w_q=w_q, w_k=w_k, positions=here + 3)
    assert (moved - ask("sinusoidal", *qkv, w_q=w_q, w_k=w_k)).abs().max() > 1e-2


def test_swap_tokens_give_exact_integers_at_any_distance() -> None:
    """w = (e_x - e_y) / sqrt(2) and beta = 2 swap two slots of the key (1, 2, 3, 4, 5, 0)."""
    time, random = 200, torch.Generator().manual_seed(7)
    swaps = [torch.randperm(5, generator=random)[:2].tolist() for _ in range(time)]
    w = torch.zeros(1, time, 1, 6, dtype=torch.float64)
    for t, (x, y) in enumerate(swaps):
        w[0, t, 0, x], w[0, t, 0, y] = math.sqrt(0.5), -math.sqrt(0.5)
    beta = torch.full((1, time, 1), 2.0, dtype=torch.float64)
    key = [1.0, 2.0, 3.0, 4.0, 5.0, 0.0]
    k = torch.zeros(1, time, 1, 6, dtype=torch.float64)
    k[0, 0, 0] = torch.tensor(key)
    q = normal(1, time, 1, 6, seed=8).mul(3).round()
    v = torch.zeros(1, time, 1, 1, dtype=torch.float64)
    v[0, 0, 0, 0] = 1

    @gn.variant
    def scores(q, k, w: gn.Token[gn.KVHead, gn.Dim], beta: gn.Token[gn.KVHead]):  # type: ignore[no-untyped-def]
        """sum_j (q_i H_i ... H_{j+1} k_j) v_j"""
        return gn.weighted_sum(gn.dot(q, k, through=gn.householder(w, beta)), mask=gn.causal())

    found = reference(scores, q, k, v, w=w, beta=beta)[0, :, 0, 0]
    moved = [key.copy()]  # the key's own step is out
    for x, y in swaps[1:]:
        key[x], key[y] = key[y], key[x]
        moved.append(key.copy())
    expected = (torch.tensor(moved, dtype=torch.float64) * q[0, :, 0]).sum(1)
    assert torch.equal(found.round(), expected)
    same(found, expected, 1e-11)


def test_a_transport_by_rotations_turns_as_rotate_does() -> None:
    """x @ rotation(a) = rotate(x, a): the transposed orientation turns backwards."""

    @gn.variant
    def carried(q, k, step: gn.Token[gn.KVHead, gn.Plane]):  # type: ignore[no-untyped-def]
        """q_i R(step_i) ... R(step_{j+1}) k_j"""
        return gn.softmax(gn.dot(q, k, through=gn.rotation(step)), mask=gn.causal())

    @gn.variant
    def turned(q, k, step: gn.Token[gn.KVHead, gn.Plane]):  # type: ignore[no-untyped-def]
        """R(sum step) q_i . R(sum step) k_j"""
        angle = gn.prefix_sum(step)
        return gn.softmax(gn.dot(gn.rotate(q, angle), gn.rotate(k, angle)), mask=gn.causal())

    q, k, v = (normal(1, TIME, 2, DIM, seed=s) for s in (1, 2, 3))
    step = normal(1, TIME, 2, DIM // 2, seed=4)
    same(reference(carried, q, k, v, step=step), reference(turned, q, k, v, step=step))
    backwards = reference(turned, q, k, v, step=-step)
    assert (reference(carried, q, k, v, step=step) - backwards).abs().max() > 0.1


def test_rotations_also_carry_to_later_keys() -> None:
    """The product over (j, i] for j > i is the inverse of the one over (i, j]."""

    @gn.variant
    def carried(q, k, step: gn.Token[gn.KVHead, gn.Plane]):  # type: ignore[no-untyped-def]
        """q_i R(step_i) ... R(step_{j+1}) k_j, on both sides"""
        return gn.softmax(gn.dot(q, k, through=gn.rotation(step)), mask=gn.everything())

    @gn.variant
    def turned(q, k, step: gn.Token[gn.KVHead, gn.Plane]):  # type: ignore[no-untyped-def]
        """R(sum step) q_i . R(sum step) k_j, on both sides"""
        angle = gn.prefix_sum(step)
        return gn.softmax(gn.dot(gn.rotate(q, angle), gn.rotate(k, angle)), mask=gn.everything())

    q, k, v = (normal(1, TIME, 2, DIM, seed=s) for s in (1, 2, 3))
    step = normal(1, TIME, 2, DIM // 2, seed=4)
    same(reference(carried, q, k, v, step=step), reference(turned, q, k, v, step=step))


def test_a_constant_transport_follows_the_positions() -> None:
    """exp(-omega L) to the power of a distance that is no whole number."""
    q, k, v = (normal(1, 5, 1, DIM, seed=s) for s in (1, 2, 3))
    a, b = normal(1, DIM, seed=4), normal(1, DIM, seed=5)
    omega = torch.tensor([0.3], dtype=torch.float64)
    places = torch.tensor([[0.0, 0.5, 2.0, 2.25, 4.0]])
    found = ask("grape_m", q, k, v, a=a, b=b, omega=omega, positions=places)
    skew = torch.outer(a[0], b[0]) - torch.outer(b[0], a[0])
    away = (places[0, 3] - places[0, :4]).double()
    logits = [
        q[0, 3, 0] @ torch.linalg.matrix_exp(-x * 0.3 * skew) @ k[0, j, 0] / math.sqrt(DIM)
        for j, x in enumerate(away)
    ]
    same(found[0, 3, 0], torch.stack(logits).softmax(0) @ v[0, :4, 0])


def test_stick_breaking_is_a_scan_of_scores(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    @gn.variant
    def spelled(q, k):  # type: ignore[no-untyped-def]
        """exp(log sigmoid(s) + sum_{l>j} -softplus(s_l))"""
        s = gn.dot(q, k) * gn.rsqrt_dim(q)
        rest = gn.score_scan(-gn.softplus(s), inclusive=False)
        return gn.weighted_sum(gn.exp(gn.log_sigmoid(s) + rest), mask=gn.causal(strict=True))

    same(reference(spelled, *qkv), ask("stick_breaking", *qkv))


def test_the_nearest_key_first_is_right_to_left_where_all_keys_lie_on_one_side(
    qkv: tuple[Tensor, Tensor, Tensor],
) -> None:
    @gn.variant
    def nearest(q, k):  # type: ignore[no-untyped-def]
        """stick breaking, the nearest key first"""
        s = gn.dot(q, k) * gn.rsqrt_dim(q)
        return gn.stick_breaking(s, mask=gn.causal(strict=True), order="nearest_first")

    same(reference(nearest, *qkv), ask("stick_breaking", *qkv))


def test_a_sink_takes_its_share_and_no_value(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    out, lse = reference(catalogue.find("nope"), *qkv, return_lse=True)
    share = torch.sigmoid(lse - 0.0)  # sum e^s / (1 + sum e^s)
    same(ask("softmax_off_by_one", *qkv), out * share[..., None])


def test_a_forget_gate_of_zero_cuts_the_past_off(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    """log f = -inf at token 5: later queries see nothing before it, and no NaN comes out."""
    log_f = torch.zeros(BATCH, TIME, HEADS, dtype=torch.float64)
    log_f[:, 5] = -torch.inf
    q, k, v = qkv
    found = ask("fox", *qkv, log_f=log_f)
    same(found[:, 5:], ask("nope", q[:, 5:], k[:, 5:], v[:, 5:]))
    same(found[:, :5], ask("nope", q[:, :5], k[:, :5], v[:, :5]))

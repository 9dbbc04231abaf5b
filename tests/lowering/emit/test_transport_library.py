"""The printed stages of a transport: versions and near, put together, are the dots through it.

All in float64, where the bound of 1e-11 leaves no room for a wrong term: forward, and the gradients
of every argument for a random cotangent of the logits, against the definition token by token.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transport_steps import call_of, dense_steps, directions, logits, stages, swap_tokens

from gnomon.lowering.emit import transport_library

BOUND = 1e-11


def met(call: Any, leaf: int, made: Sequence[Tensor], lengths: Sequence[tuple[int, int]]) -> Tensor:
    """The logits that the pair kernels would see, from the description of the tree alone."""
    q, k, near = made
    group, levels = q.shape[2] // k.shape[2], _levels(q, leaf)
    rows = q.shape[1] // max(levels, 1)
    found = torch.zeros(1, q.shape[2], call.T_q, call.T_k, dtype=q.dtype)
    first_q = first_k = 0
    for number, (queries, keys) in enumerate(lengths):
        start = (first_k // leaf + number) * leaf if len(lengths) > 1 else 0
        for row in range(queries):
            i = start + keys - queries + row
            for token in range(keys - queries + row + 1):
                j = start + token
                level = (i // leaf ^ j // leaf).bit_length() - 1
                place = (slice(None), slice(None), first_q + row, first_k + token)
                if level < 0:
                    found[place] = near[:, first_q + row, :, j % leaf]
                    continue
                span = leaf << level
                a, b = (level * rows + (x // (2 * span)) * span + x % span for x in (i, j))
                found[place] = (q[:, a] * k[:, b].repeat_interleave(group, 1)).sum(-1)
        first_q, first_k = first_q + queries, first_k + keys
    return found


def _levels(q: Tensor, leaf: int) -> int:
    """How many levels L have L R rows, R = leaf 2^(L - 1)."""
    return next(n for n in range(30) if n * (leaf << n) // 2 == q.shape[1])


def assert_moved(
    flavour: str,
    leaf: int,
    lengths: Sequence[tuple[int, int]],
    steps: Sequence[Tensor],
    *,
    heads: int = 2,
    bound: float = BOUND,
) -> None:
    """Logits and gradients of the stages are those of the definition."""
    module, kv, d = stages(flavour, leaf), steps[0].shape[2], steps[0].shape[-1]
    call = call_of(module, lengths, heads, kv)
    random = torch.Generator().manual_seed(3)
    q, k = (
        torch.randn(1, time, n, d, generator=random, dtype=torch.float64)
        for time, n in ((call.T_q, heads), (call.T_k, kv))
    )
    given = [x.requires_grad_() for x in (q, k, *(x.clone() for x in steps))]
    apply = getattr(module, transport_library.class_name(flavour)).apply
    actual = met(call, leaf, apply(call, *given), lengths)
    expected = logits(q, k, _dense(flavour, given[2:]), lengths)
    size = expected.detach().abs().max().clamp(min=1)
    assert (actual - expected).abs().max() <= bound * size
    weight = torch.randn(expected.shape, generator=random, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad((x * weight).sum(), given, materialize_grads=True)
        for x in (actual, expected)
    )
    for name, a, e in zip(("q", "k", *transport_library.PARTS[flavour]), ours, theirs, strict=True):
        assert (a - e).abs().max() <= bound * e.abs().max().clamp(min=1), name


def _dense(flavour: str, parts: Sequence[Tensor]) -> Tensor:
    return torch.diag_embed(parts[0].exp()) if flavour == "diagonal" else dense_steps(*parts)


def gates(time: int, d: int) -> Tensor:
    """Logarithms of decays, a few of them nearly -inf."""
    random = torch.Generator().manual_seed(5)
    log = -0.1 * torch.rand(1, time, 1, d, generator=random, dtype=torch.float64)
    return torch.where(torch.rand(log.shape, generator=random) < 0.05, -30.0, log)


def betas(*shape: int) -> Tensor:
    random = torch.Generator().manual_seed(6)
    return 1.9 + 0.1 * torch.rand(shape, generator=random, dtype=torch.float64)


@pytest.mark.parametrize("time", [1, 3, 4, 5, 8, 9, 16, 23])
def test_path_of_any_length(time: int) -> None:
    """T = 1, T < leaf, B - 1, B, B + 1, powers of two and others."""
    w = directions(1, time, 1, 6)
    assert_moved("low_rank", 4, [(time, time)], [w, w, betas(1, time, 1)])


@pytest.mark.parametrize("queries", [1, 3, 4, 12])
def test_queries_are_the_last_tokens(queries: int) -> None:
    w = directions(1, 19, 2, 6)
    assert_moved("low_rank", 4, [(queries, 19)], [w, w, betas(1, 19, 2)], heads=4)


def test_packed_sequences_do_not_meet() -> None:
    lengths = [(n, n) for n in (5, 0, 1, 16, 8, 3)]
    w, u = directions(1, 33, 1, 6), directions(1, 33, 1, 6, seed=1)
    near = torch.nn.functional.normalize(w + 0.05 * u, dim=-1)
    assert_moved("low_rank", 4, lengths, [w, near, betas(1, 33, 1)])
    assert_moved("diagonal", 4, lengths, [gates(33, 6)])
    assert_moved("gated", 4, lengths, [w, near, betas(1, 33, 1), gates(33, 6)])


def test_packed_queries_are_fewer() -> None:
    lengths = [(2, 5), (0, 7), (4, 16)]
    w = directions(1, 28, 1, 6)
    assert_moved("low_rank", 4, lengths, [w, w, betas(1, 28, 1)])


@pytest.mark.parametrize("repeats", [2, 3])
def test_several_reflections_of_a_token(repeats: int) -> None:
    w = directions(1, 21, 1, repeats, 6)
    assert_moved("low_rank", 8, [(21, 21)], [w, w, betas(1, 21, 1, repeats)])


@pytest.mark.parametrize("flavour", ["gated", "diagonal"])
def test_decays_of_each_channel(flavour: str) -> None:
    log, w, u = gates(37, 6), directions(1, 37, 1, 6), directions(1, 37, 1, 6, seed=1)
    steps = [log] if flavour == "diagonal" else [w, 0.3 * u, betas(1, 37, 1), log]
    assert_moved(flavour, 8, [(37, 37)], steps)


def test_a_decay_to_nothing_leaves_no_infinity() -> None:
    """e^-200 a token in each channel: any quotient of two running products would be 0 / 0."""
    assert_moved("diagonal", 8, [(20, 20)], [torch.full((1, 20, 1, 6), -200.0).double()])


@pytest.mark.parametrize("time", [64, 70])
def test_permutations_reach_the_first_token(time: int) -> None:
    """Swaps of five slots at beta = 2: nothing fades, and a missing far term would show."""
    w = swap_tokens(time, 1, 6)
    assert_moved("low_rank", 8, [(time, time)], [w, w, torch.full((1, time, 1), 2.0).double()])


def test_one_direction_again_and_again() -> None:
    """(I - 2 w w^T) 40 times is I: the inverse inside a leaf must not be a series of powers."""
    w = directions(1, 1, 1, 6).expand(1, 40, 1, 6)
    assert_moved("low_rank", 8, [(40, 40)], [w, w, torch.full((1, 40, 1), 2.0).double()])


def test_steps_that_grow_do_not_reach_the_next_sequence() -> None:
    """Products of e^9 outgrow float64 over 79 tokens: nodes across two sequences are not formed."""
    time, d = 300, 2
    grow = torch.full((1, time, 1, d), 9.0).double()
    grow[:, 140:160] = -0.1
    lengths = [(n, n) for n in (70, 70, 20, 70, 70)]
    module = stages("diagonal", 4)
    call = call_of(module, lengths, 1, 1)
    q, k = (directions(1, time, 1, d, seed=n).requires_grad_() for n in (0, 1))
    made = module.DiagonalVersions.apply(call, q, k, grow.requires_grad_())
    part = [(20, 20)]
    expected = logits(q[:, 140:160], k[:, 140:160], torch.diag_embed(grow[:, 140:160].exp()), part)
    actual = met(call, 4, made, lengths)[:, :, 140:160, 140:160]
    assert torch.allclose(actual, expected, rtol=0, atol=1e-12)
    found = torch.autograd.grad(actual.sum(), (q, k, grow))
    wanted = torch.autograd.grad(expected.sum(), (q, k, grow))
    for a, e in zip(found, wanted, strict=True):
        assert torch.allclose(a, e, rtol=0, atol=1e-11)

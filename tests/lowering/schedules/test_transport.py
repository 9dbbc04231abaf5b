"""The stages of a transport against one transition after the other, in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from tile_interpreter import run
from torch import Tensor
from transport_data import far_field, last_logits, random_call
from transport_oracle import Tree, expected
from transport_stages import Runner, Stages, kernels

from gnomon.lowering.legal_tile import broken
from gnomon.lowering.schedules.transport.precision import EXACT, Precision
from gnomon.lowering.schedules.transport.stage import Plan

PLANS = {
    "exact": Plan(block=8, precision=EXACT),
    "two_digits": Plan(block=8),
    "one_digit": Plan(block=8, precision=Precision(path="f16")),
}
SHAPES = {
    "one_token": (1, 1, 1, 1, 16),
    "part_of_a_block": (2, 5, 1, 1, 16),
    "one_leaf": (1, 16, 2, 2, 16),
    "a_token_more": (1, 17, 1, 1, 16),
    "three_leaves": (1, 41, 4, 1, 24),
    "five_leaves": (2, 77, 4, 2, 16),
    "eleven_leaves": (1, 161, 1, 1, 16),
}
# rounding of f16 is 2^-12 at most, relative, and the gradient of w passes through about 8 roundings
BOUNDS = {"exact": (1e-6, 1e-6), "two_digits": (8e-4, 1.5e-3), "one_digit": (1e-3, 2e-3)}


def relative(found: Any, wanted: Tensor) -> float:
    found = torch.as_tensor(np.asarray(found)).double()
    norm = wanted.norm()
    return float((found - wanted).norm() / norm) if norm > 0 else float(found.abs().sum())


def whole(plan: Plan, width: int, **changes: Any) -> Plan:
    fields = {name: getattr(plan, name) for name in Plan.__slots__} | changes
    return Plan(**{**fields, "whole": width & (width - 1) == 0})


def stages_of(plan: Plan, call: dict[str, Tensor], runner: Runner = run) -> Stages:
    inputs = [name for name in call if name != "u" or not plan.shared]
    return Stages(plan, runner, {name: call[name].float().numpy() for name in inputs})


def check(plan: Plan, call: dict[str, Tensor], bounds: tuple[float, float], runner: Runner) -> None:
    """Versions, logits and every gradient; what the oracle leaves out must not be written."""
    stages = stages_of(plan, call, runner)
    stages.forward()
    leaves = {name: x.clone().requires_grad_() for name, x in call.items()}
    if plan.shared:
        leaves["u"] = leaves["w"]
    q, k, w, u, beta = (leaves[name] for name in ("q", "k", "w", "u", "beta"))
    wanted = expected(q, k, w, u, beta, stages.tree.leaf)
    names = ("qv", "kv", "loc")
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=torch.float64)
    for name, x in zip(names, wanted, strict=True):
        found = stages.memory.get(name, np.zeros(x.shape, np.float32))
        missing = np.isnan(found)
        assert not (missing & (x.detach().numpy() != 0)).any(), name
        assert relative(np.where(missing, 0, found), x.detach()) < bounds[0], name
        # small, as gradients are; NaN where nobody looks
        d = 1e-4 * torch.randn(x.shape, generator=generator).double()
        stages.memory[f"d_{name}"] = np.where(
            missing | (x.detach().numpy() == 0), np.nan, d.float()
        )
        total = total + (x * d * torch.from_numpy(~missing) * (x.detach() != 0)).sum()
    stages.backward()
    inputs = [name for name in leaves if name != "u" or not plan.shared]
    grads = torch.autograd.grad(total, [leaves[name] for name in inputs], allow_unused=True)
    for name, grad in zip(inputs, grads, strict=True):
        grad = torch.zeros_like(leaves[name]) if grad is None else grad
        assert relative(stages.memory[f"d{name}"], grad) < bounds[1], name


@pytest.mark.parametrize("precision", PLANS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("blocks", [1, 2])
def test_versions_and_gradients_equal_those_token_by_token(
    shape: str, blocks: int, precision: str
) -> None:
    plan = whole(PLANS[precision], SHAPES[shape][-1], blocks=blocks)
    check(plan, random_call(SHAPES[shape]), BOUNDS[precision], run)


@pytest.mark.parametrize("blocks", [1, 2])
def test_two_vectors_a_transition(blocks: int) -> None:
    plan = Plan(block=8, blocks=blocks, shared=False, precision=EXACT)
    check(plan, random_call((2, 77, 4, 2, 16), shared=False), BOUNDS["exact"], run)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("shared", [True, False])
def test_tile_programs_are_legal(name: str, blocks: int, shared: bool) -> None:
    plan = whole(PLANS[name], 16, blocks=blocks, shared=shared)
    assert {k.name: list(broken(k)) for k in kernels(plan) if list(broken(k))} == {}


FAR = {"swaps": 1e-3, "reflections": 2e-3, "near_two": 2e-3, "repeated": 1.5e-3}
"""Relative error of logits at any distance, versions in fp32: path-class values in two digits leave
the roundings of rows and nodes, one a level, and those inside a leaf, 2^-12 each."""


@pytest.mark.parametrize("kind", FAR)
def test_errors_of_far_logits_do_not_grow_with_distance(kind: str) -> None:
    tokens, rows = 8192, 64
    call = far_field(kind, tokens, 64)
    stages = stages_of(Plan(), call)
    stages.forward()
    wanted = last_logits(call, rows)
    errors = {}
    for begin, end, logits in rectangles_of_last(stages, rows):
        part = wanted[:, begin:end]
        errors[begin] = relative(logits, part)
    assert len(errors) == 6
    assert max(errors.values()) < FAR[kind], errors


def rectangles_of_last(stages: Stages, rows: int) -> list[tuple[int, int, Tensor]]:
    """The logits of the last rows against each node that they meet."""
    tree: Tree = stages.tree
    qv, kv = (torch.as_tensor(stages.memory[name])[0, :, 0].double() for name in ("qv", "kv"))
    found = []
    for level in range(tree.levels):
        size = tree.leaf << level
        node = (tree.tokens - 1) // size
        if node % 2:
            first = tree.row(level, tree.tokens - rows)
            begin = (node - 1) * size
            keys = kv[tree.row(level, begin) : tree.row(level, begin) + size]
            found.append((begin, begin + size, qv[first : first + rows] @ keys.T))
    return found

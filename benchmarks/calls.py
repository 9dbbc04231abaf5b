"""What is called: the inputs of a problem, our attention on them, and what a pass is of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gnomon.benchmarks.shapes import Problem
from gnomon.benchmarks.timing import Run
from gnomon.dsl.nodes import Variant
from gnomon.runtime.check import compare
from gnomon.runtime.compile import Attention
from gnomon.runtime.grid import DTYPES, Case
from gnomon.runtime.sample import Sampler, Shape, grid, roles_of

CHECKED_LENGTH = 384
"""A kernel is compared with the oracle at this T: tiles that are whole, and tiles on the edge."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tensors of one problem; no two implementations write to them.

    q [B, T, H, D], k and v [B, T, key head, D], cotangent [B, T, H, D] of the output;
    extra    the other inputs of the variant
    options  positions, where the formula has coordinates
    """

    q: Tensor
    k: Tensor
    v: Tensor
    cotangent: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def all_heads_first(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and the cotangent, contiguous [B, H, T, D] with a key head to each query head."""
        groups = self.q.shape[2] // self.k.shape[2]
        k, v = (x.repeat_interleave(groups, 2) for x in (self.k, self.v))
        q, k, v, do = (x.transpose(1, 2).contiguous() for x in (self.q, k, v, self.cotangent))
        return q, k, v, do


class Data:
    """The tensors of one problem, the same numbers each time; q, k, v are those of every variant.

    q, k, v and the cotangent are normal, gates logsigmoid(N(0, 1) + 4), as a new model has them.
    Whatever else a variant takes suits its role (runtime/sample.py).
    """

    def __init__(self, problem: Problem, dtype: str, device: str) -> None:
        self.problem, self.dtype, self.device = problem, DTYPES[dtype], device
        random = torch.Generator(device).manual_seed(0)  # on the device: millions of numbers
        heads = problem.H, problem.key_heads, problem.key_heads, problem.H
        self.q, self.k, self.v, self.cotangent = (
            torch.randn(problem.B, problem.T, h, problem.D, generator=random, device=device).to(
                self.dtype
            )
            for h in heads
        )
        self._known: dict[str, Inputs] = {}

    def of(self, variant: Variant) -> Inputs:
        """The inputs of a variant; made once."""
        if variant.name not in self._known:
            self._known[variant.name] = self._make(variant)
        return self._known[variant.name]

    def _make(self, variant: Variant) -> Inputs:
        p, roles = self.problem, roles_of(variant)
        shape, random = Shape(p.B, p.T, p.H, p.key_heads, p.D), torch.Generator().manual_seed(1)
        extra, options = {}, dict[str, Any]()
        for given in variant.inputs:
            if given.name in ("q", "k"):
                continue
            x = Sampler(shape).draw(given, roles, random)
            if given.name in roles.decays:
                x = functional.logsigmoid(torch.randn(x.shape, generator=random) + 4)
            if x.is_floating_point():
                x = x.to(self.dtype if given.name in roles.narrow else torch.float32)
            extra[given.name] = x.to(self.device)
        if roles.coordinates:
            places = grid(roles.coordinates, shape).items()
            options["positions"] = {name: x.to(self.device) for name, x in places}
        return Inputs(self.q, self.k, self.v, self.cotangent, extra, options)


@dataclass(frozen=True, slots=True)
class Call:
    """An implementation on its inputs: `forward` of tensors, those that have a gradient first."""

    forward: Callable[..., Tensor]
    tensors: Sequence[Tensor]
    cotangent: Tensor

    def run(self, which: str) -> Run:
        """What is timed: fwd saves what the backward pass needs, fwd_bwd makes every gradient."""
        given = [x.detach().requires_grad_(x.is_floating_point()) for x in self.tensors]
        leaves = [x for x in given if x.requires_grad]

        def forward() -> Tensor:
            return self.forward(*given)

        def both() -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(forward(), leaves, self.cotangent, allow_unused=True)

        return forward if which == "fwd" else both


def ours(attention: Attention, inputs: Inputs) -> Call:
    """The whole public call: maps, prefix sums and kernels, of [B, T, H, D]."""
    names = list(inputs.extra)

    def forward(q: Tensor, k: Tensor, v: Tensor, *extra: Tensor) -> Tensor:
        given = dict(zip(names, extra, strict=True))
        out: Tensor = attention(q, k, v, **given, **inputs.options)
        return out

    return Call(forward, [inputs.q, inputs.k, inputs.v, *inputs.extra.values()], inputs.cotangent)


def fault(attention: Attention, problem: Problem, dtype: str, device: str) -> str:
    """What is wrong with our kernels at the dtype, width and grouping of a problem; "" if nothing.

    Output, log-sum-exp and every gradient against the float64 oracle, on fewer tokens and heads;
    where the past acts on the present, on data too on which it matters.
    """
    heads = min(problem.H, 2 * problem.groups)
    length = min(problem.T, CHECKED_LENGTH)
    shape = Shape(1, length, heads, heads // problem.groups, problem.D)
    case = Case(f"{length} tokens", shape, dtype)
    cases = [case]
    if roles_of(attention.variant).far:
        cases.append(replace(case, name=f"far field, {length} tokens", far=True))
    on: Any = device
    wrong = [
        f"{r.tensor} {r.note or f'{r.error:.1e}, bound {r.bound:.0e}'} ({r.case})"
        for each in cases
        for r in compare(attention, attention.variant, each, on=on)
        if not r.passed
    ]
    return "; ".join(wrong)

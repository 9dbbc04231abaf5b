"""An attention layer for any variant: projections make q, k, v and every declared input.

    layer = AttentionLayer(gn.catalogue.fox, width=128, heads=4)
    y = layer(x)                                   x, y [batch, time, width]

A token or query input is a linear map of the layer's input, brought into the range of its role:
log_sigmoid for what is itself the logarithm of a decay, length 1 for a direction of a reflection, a
named range where the formula asks for one. A `Param` is a parameter of the layer. Integers
(documents, selected blocks) are given at the call.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gnomon.dsl.errors import InputError
from gnomon.dsl.nodes import Decay, Diagonal, Input, Variant, walk
from gnomon.dsl.signature import summed_inputs
from gnomon.dsl.trace import Declaration
from gnomon.runtime.compile import compile as compile_variant
from gnomon.runtime.sample import RANGES, SIZES, roles_of

FORGET_BIAS = 4.0
"""A gate opens at log_sigmoid(4) = -0.018 a step, so that a new layer sees some fifty tokens."""


class AttentionLayer(nn.Module):
    """Attention by a variant, [batch, time, width] -> [batch, time, width].

    `kv_heads` groups query heads (GQA); `dim` is the width of a head; `sizes` gives the axes of
    parameters (Entry, Hidden, ...) by their symbol. Raises InputError for an axis without a size.
    """

    def __init__(
        self,
        variant: Declaration,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        dim: int | None = None,
        sizes: Mapping[str, int] | None = None,
        **hyperparameters: Any,
    ) -> None:
        super().__init__()
        self.attention = compile_variant(variant, **hyperparameters)
        node = self.attention.variant
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.dim = dim or width // heads
        self.sizes = {**SIZES, "d": self.dim, "d_v": self.dim, **(sizes or {})}
        self.roles = _Roles(node)
        inner = self.heads * self.dim
        self.q = nn.Linear(width, inner, bias=False)
        self.k = nn.Linear(width, self.kv_heads * self.dim, bias=False)
        self.v = nn.Linear(width, self.kv_heads * self.dim, bias=False)
        self.out = nn.Linear(inner, width, bias=False)
        self.maps = nn.ModuleDict()
        self.tables = nn.ParameterDict()
        self.given: list[str] = []
        for item in node.inputs:
            if item.name not in ("q", "k"):
                self._make(item, width)

    def _make(self, item: Input, width: int) -> None:
        shape = self._shape(item)
        if item.element == "int":
            self.given.append(item.name)
        elif item.place == "constant":
            self.tables[item.name] = nn.Parameter(_start(item, shape))
        else:
            linear = nn.Linear(width, math.prod(shape))
            nn.init.constant_(linear.bias, FORGET_BIAS if item.name in self.roles.logs else 0.0)
            self.maps[item.name] = linear

    def _shape(self, item: Input) -> tuple[int, ...]:
        """Heads and further axes of an input."""
        heads = {None: (), "Head": (self.heads,), "KVHead": (self.kv_heads,)}[item.heads]
        for axis in item.axes:
            for symbol, _ in axis.parts:
                if symbol != "1" and symbol not in self.sizes:
                    expected = f"the size of {symbol} of {item.name}, as in {{{symbol!r}: 64}}"
                    raise InputError("sizes", expected, f"{sorted(self.sizes)}")
        return (*heads, *(axis.size(self.sizes) for axis in item.axes))

    def forward(self, x: Tensor, **given: Any) -> Tensor:
        """The result [batch, time, width]; `given` has integer inputs, positions, cu_seqlens."""
        missing = [name for name in self.given if name not in given]
        if missing:
            raise InputError(missing[0], "a tensor of integers at the call", "none")
        q = self.q(x).unflatten(-1, (self.heads, self.dim))
        k = self.k(x).unflatten(-1, (self.kv_heads, self.dim))
        v = self.v(x).unflatten(-1, (self.kv_heads, self.dim))
        inputs: dict[str, Any] = {n: self._input(n, linear(x)) for n, linear in self.maps.items()}
        y = self.attention(q, k, v, **inputs, **self.tables, **given)
        result: Tensor = self.out(y.flatten(-2))
        return result

    def _input(self, name: str, x: Tensor) -> Tensor:
        """A token input in the range of its role, in fp32 where a call must give it so."""
        x = x.float() if name in self.roles.summed else x
        x = x.unflatten(-1, self._shape(self.roles.inputs[name]) or (1,))
        if not self._shape(self.roles.inputs[name]):
            x = x[..., 0]
        if name in self.roles.logs:
            return functional.logsigmoid(x.float())
        if name in self.roles.directions:
            return functional.normalize(x.float(), dim=-1).to(x.dtype)
        if name in RANGES:
            low, high = RANGES[name]
            return low + (high - low) * x.float().sigmoid()
        return x


class _Roles:
    """What the inputs of a variant are for."""

    def __init__(self, node: Variant) -> None:
        self.inputs = {item.name: item for item in node.inputs}
        self.directions, self.summed = roles_of(node).directions, summed_inputs(node)
        # only what is a logarithm itself: the formula may make one of it (-softplus(x))
        self.logs = {
            n.x.name for n in walk(node) if isinstance(n, Decay) and isinstance(n.x, Input)
        } | {n.log.name for n in walk(node) if isinstance(n, Diagonal) and isinstance(n.log, Input)}


def _start(item: Input, shape: tuple[int, ...]) -> Tensor:
    """A first value: the middle of the range, small noise in matrices and tables, 0 elsewhere."""
    if item.name in RANGES:
        low, high = RANGES[item.name]
        return torch.full(shape, (low + high) / 2)
    if len(item.axes) > 1:
        return torch.randn(shape) / math.sqrt(shape[-1])
    return 0.02 * torch.randn(shape)

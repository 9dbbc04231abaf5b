"""The value of every node of the score IR in float64, for sequences of one length."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gnomon.dsl import evaluate_pointwise as pointwise
from gnomon.dsl.evaluate_layout import LEADING, Call, align, evaluate_mask, look_up
from gnomon.dsl.evaluate_matrices import collapsed, matrix
from gnomon.dsl.evaluate_normalisers import attend
from gnomon.dsl.evaluate_transports import carried_dot
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    ATTENTIONS,
    Apply,
    At,
    Builtin,
    Concat,
    Constant,
    Contract,
    Decay,
    Diagonal,
    Dot,
    Expr,
    Input,
    Lookup,
    Mask,
    MatrixExp,
    Outer,
    Place,
    PrefixSum,
    Rotation,
    ScoreScan,
    Slice,
    Sum,
    Width,
)


@dataclass
class Evaluator:
    """Evaluates nodes of one variant; pair values belong to the attention whose mask they see.

    The dictionaries go by the identity of a node: the variant outlives its evaluator.
    """

    call: Call
    mask: Mask | None = None
    values: dict[int, Tensor] = field(default_factory=dict)
    pairs: dict[Mask, dict[int, Tensor]] = field(default_factory=dict)
    log_sums: dict[int, Tensor] = field(default_factory=dict)

    def under(self, mask: Mask) -> "Evaluator":
        """The same call, seen by an attention with this mask."""
        return Evaluator(self.call, mask, self.values, self.pairs, self.log_sums)

    def __call__(self, node: Expr) -> Tensor:
        """The value of a node, each shared one once."""
        memo = self.values
        if kind(node).place == "pair" and self.mask is not None:
            memo = self.pairs.setdefault(self.mask, {})
        if id(node) not in memo:
            memo[id(node)] = self._evaluate(node)
        return memo[id(node)]

    def at(self, node: Expr, place: Place) -> Tensor:
        """The value read at a place: a token value at the query or at the key."""
        return self.call.read(self(node), kind(node).place, place)

    def visible(self) -> Tensor:
        """Which pairs the mask shows, [batch | 1, head | 1, time_q, time_k]."""
        assert self.mask is not None
        return evaluate_mask(self, self.mask)

    def size(self, width: Width) -> int:
        """The number of channels of a symbolic width in this call."""
        return width.size(self.call.sizes)

    def _evaluate(self, node: Expr) -> Tensor:
        match node:
            case Input():
                return self.call.inputs[node.name]
            case Constant():
                element = torch.int64 if isinstance(node.value, int) else torch.float64
                return self._number(torch.tensor(node.value, dtype=element))
            case Builtin():
                return self._builtin(node)
            case Dot() if node.through is not None:
                return carried_dot(self, node, node.through)
            case Dot() | Decay() | ScoreScan():
                return self._pair(node)
            case Rotation() | Diagonal() | Outer() | MatrixExp():
                return matrix(self, node)
            case Apply() | Contract() if len(kind(node).axes) > 1:
                return matrix(self, node)
            case _ if isinstance(node, ATTENTIONS):
                return attend(self, node)
            case _:
                return self._map(node)

    def _number(self, value: Tensor) -> Tensor:
        return value.to(self.call.device).reshape(1, 1, 1, 1, *value.shape)

    def _builtin(self, node: Builtin) -> Tensor:
        sizes = self.call.sizes
        match node.which, node.of:
            case "position", None | str() as of:
                return self.call.positions[of]
            case "length", _:
                return self._number(torch.tensor(sizes["time_k"]))
            case "head", _:
                return self._number(torch.arange(sizes["Head"])).transpose(1, 4)[..., 0]
            case "head_count", _:
                return self._number(torch.tensor(sizes["Head"]))
            case "dim", Width() as width:
                return self._number(torch.tensor(self.size(width)))
            case "channel" | "plane", Width():
                return self._number(torch.arange(self.size(kind(node).axes[0])))
            case "visible_count", Mask() as mask:
                return evaluate_mask(self, mask).sum(3, keepdim=True)
            case _:
                raise TypeError(f"no builtin {node.which!r} of {node.of!r}")

    def _map(self, node: Expr) -> Tensor:
        place = kind(node).place
        match node:
            case Apply():
                return pointwise.apply(node.fn, align([self.at(x, place) for x in node.args]))
            case Slice():
                return self(node.x)[..., self.size(node.start) : self.size(node.stop)]
            case Concat():
                parts = [self.at(part, place) for part in node.parts]
                shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
                return torch.cat([part.expand(*shape, part.shape[-1]) for part in parts], -1)
            case Sum():
                return self(node.x).sum(-1)
            case Contract():
                return self._contract(node, place)
            case Lookup():
                return look_up(self.at(node.table, place), [self.at(x, place) for x in node.index])
            case PrefixSum():
                return self._prefix_sum(node)
            case At():
                return self.at(node.x, node.place)
            case _:
                raise TypeError(f"no value for a node of the class {type(node).__name__}")

    def _contract(self, node: Contract, place: Place) -> Tensor:
        x, m = self.at(node.x, place), collapsed(self, node.m, place)
        if m.ndim - LEADING == 3:
            blocks = x.unflatten(-1, (m.shape[-3], m.shape[-1]))
            return torch.einsum("...d,...de->...e", blocks, m).flatten(-2)
        return torch.einsum("...d,...de->...e", x.double(), m.double())

    def _prefix_sum(self, node: PrefixSum) -> Tensor:
        x = self.at(node.x, "token")
        total = x.cumsum(3)
        if node.inclusive:
            return total
        return torch.cat([torch.zeros_like(x[:, :, :, :1]), total[:, :, :, :-1]], 3)

    def _pair(self, node: Dot | Decay | ScoreScan) -> Tensor:
        match node:
            case Dot():
                a, b = self.at(node.a, "row")[:, :, :, 0], self.at(node.b, "column")[:, :, 0]
                return a.double() @ b.double().transpose(-1, -2)
            case Decay() if kind(node.x).place == "constant":
                position = self.call.positions[None]
                row = self.call.read(position, "token", "row")
                column = self.call.read(position, "token", "column")
                return pointwise.apply("*", [self(node.x), row - column])
            case Decay():
                return self._decay(self.at(node.x, "token").double())
            case ScoreScan():
                x = torch.where(self.visible(), self(node.x).double(), 0.0)
                total = x.flip(3).cumsum(3).flip(3)
                if node.inclusive:
                    return total
                return torch.cat([total[..., 1:], torch.zeros_like(total[..., :1])], 3)

    def _decay(self, x: Tensor) -> Tensor:
        """P_i - P_j; steps of -inf are counted apart, for -inf - -inf has no value."""

        def between(step: Tensor) -> Tensor:
            total = step.cumsum(3)
            row = self.call.read(total, "token", "row")
            return row - self.call.read(total, "token", "column")

        dead = torch.isneginf(x)
        steps = between(torch.where(dead, 0.0, x))
        return torch.where(between(dead.long()) > 0, -torch.inf, steps)

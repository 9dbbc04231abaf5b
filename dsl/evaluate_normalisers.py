"""The four ways in which scores become an output, in float64.

A row that sees no key gives 0, and its log-sum-exp is -inf; hidden pairs get weight 0 and give
gradient 0.
"""

import torch
from torch import Tensor

from gnomon.dsl.evaluate_layout import Values
from gnomon.dsl.evaluate_pointwise import log_sigmoid, maximum
from gnomon.dsl.nodes import Expr, Ratio, Softmax, StickBreaking, WeightedSum


def attend(values: Values, node: Expr) -> Tensor:
    """The output of one attention, [batch, head, time_q, 1, d_v]."""
    assert isinstance(node, Softmax | WeightedSum | Ratio | StickBreaking)
    inside = values.under(node.mask)
    visible = inside.visible()
    v = values.call.inputs["v"][:, :, 0]
    if not visible.shape[3]:  # no keys at all
        values.log_sums[id(node)] = v.new_full((1, 1, values.call.time_q, 1), -torch.inf)
        return v.sum(2)[:, :, None, None].expand(-1, -1, values.call.time_q, -1, -1)

    def shown(pair: Expr, hidden: float) -> Tensor:
        score = inside(pair).double()
        return torch.where(visible, score, hidden)

    match node:
        case Softmax():
            sink = None if node.sink is None else values.at(node.sink, "row").double()
            weight, total = _softmax(shown(node.logit, -torch.inf), visible, sink)
            values.log_sums[id(node)] = total
        case WeightedSum():
            weight = shown(node.weight, 0.0)
        case Ratio():
            total = shown(node.denominator, 0.0).sum(3, keepdim=True).abs()
            total = maximum(total, torch.full_like(total, node.at_least))
            alive = visible.any(3, keepdim=True)
            weight = shown(node.numerator, 0.0) / torch.where(alive, total, 1.0)
        case StickBreaking():
            weight = _sticks(inside, shown(node.logit, 0.0), visible, node.order)
    heads = torch.broadcast_shapes(weight.shape[:2], v.shape[:2])
    return (weight.expand(*heads, -1, -1) @ v)[:, :, :, None]


def _softmax(score: Tensor, visible: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """The weights and the log of the whole denominator, the sink's term included."""
    most = score.detach().amax(3, keepdim=True)
    if sink is not None:
        most = torch.maximum(most, sink.detach())
    most = torch.where(torch.isfinite(most), most, 0.0)
    weight = torch.exp(score - most)
    total = weight.sum(3, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - most)
    alive = (total > 0) & visible.any(3, keepdim=True)
    total = torch.where(alive, total, 1.0)
    log_sum = torch.where(alive, most + torch.log(total), -torch.inf)
    return weight / total, log_sum


def _sticks(values: Values, score: Tensor, visible: Tensor, order: str) -> Tensor:
    """sigmoid(s_ij) times the product of 1 - sigmoid(s_il) over visible l strictly nearer."""
    rest = torch.where(visible, log_sigmoid(-score), 0.0)
    if order == "right_to_left":
        total = rest.flip(3).cumsum(3).flip(3)
        nearer = torch.cat([total[..., 1:], torch.zeros_like(total[..., :1])], 3)
    else:
        away = values.call.offsets().abs()
        shells = rest.new_zeros(*rest.shape[:3], int(away.max()) + 2)
        shells = shells.scatter_add(3, (away + 1).expand_as(rest), rest)
        nearer = shells.cumsum(3).gather(3, away.expand_as(rest))
    return torch.where(visible, torch.exp(log_sigmoid(score) + nearer), 0.0)

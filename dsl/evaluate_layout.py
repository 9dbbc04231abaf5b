"""How the oracle lays out values, and how a value is read at a query or at a key.

Each value is a tensor [batch | 1, head | 1, time_q | 1, time_k | 1, *axes]. A token value lies on
the key axis; there it has max(time_q, time_k) entries, of which the last time_k are the keys and
the last time_q the queries. Values per key head are repeated for their query heads on entry.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gnomon.dsl.errors import InputError
from gnomon.dsl.nodes import Expr, Mask, Place, Width

LEADING = 4


@dataclass(frozen=True)
class Call:
    """The tensors of one call, in the layout above, and its sizes."""

    inputs: dict[str, Tensor]
    positions: dict[str | None, Tensor]
    sizes: dict[str, int]
    device: torch.device

    @property
    def time_q(self) -> int:
        """How many queries there are."""
        return self.sizes["time_q"]

    @property
    def time_k(self) -> int:
        """How many keys there are."""
        return self.sizes["time_k"]

    def query_index(self) -> Tensor:
        """The key on which each query stands; negative where it stands before all keys."""
        return torch.arange(self.time_q, device=self.device) + self.time_k - self.time_q

    def key_index(self) -> Tensor:
        """0, 1, ... time_k - 1."""
        return torch.arange(self.time_k, device=self.device)

    def offsets(self) -> Tensor:
        """The offset i - j in memory, [time_q, time_k]; the last query stands on the last key."""
        return self.query_index()[:, None] - self.key_index()[None, :]

    def read(self, value: Tensor, own: Place, place: Place) -> Tensor:
        """A value of the place `own` read at `place`: a token value at the query or at the key."""
        if own == "token" and place == "row":
            return value[:, :, :, value.shape[3] - self.time_q :].transpose(2, 3)
        if own == "token" and place == "column":
            return value[:, :, :, value.shape[3] - self.time_k :]
        if own == "column" and place == "token":
            before = max(self.time_q - self.time_k, 0)
            empty = value.new_zeros(*value.shape[:3], before, *value.shape[4:])
            return torch.cat([empty, value], 3)
        return value


class Values(Protocol):
    """What evaluates nodes: `gnomon.dsl.evaluate_formula.Evaluator`."""

    call: Call
    log_sums: dict[int, Tensor]

    def __call__(self, node: Expr) -> Tensor:
        """The value of a node."""

    def at(self, node: Expr, place: Place) -> Tensor:
        """The value of a node, read at a place."""

    def under(self, mask: Mask) -> "Values":
        """The same call, seen by an attention with this mask."""

    def visible(self) -> Tensor:
        """Which pairs the mask shows, [batch | 1, head | 1, time_q, time_k]."""

    def size(self, width: Width) -> int:
        """The number of channels of a symbolic width."""


def align(values: list[Tensor]) -> list[Tensor]:
    """Scalars stand beside vectors and matrices: axes of size 1 are added at their end."""
    most = max(value.ndim for value in values)
    return [value.reshape(*value.shape, *(1,) * (most - value.ndim)) for value in values]


def look_up(table: Tensor, index: list[Tensor]) -> Tensor:
    """Entries of a table whose own batch, head and time axes go along with the index.

    An index outside the table reads the nearest entry. InputError where it is not whole.
    """
    if any(entry.is_floating_point() for entry in index):
        raise InputError("positions", "integers, because they choose entries of a table", "reals")
    shape = torch.broadcast_shapes(table.shape[:LEADING], *(entry.shape for entry in index))
    own = []
    for axis, size in enumerate(table.shape[:LEADING]):
        steps = torch.arange(size, device=table.device)
        own.append(steps.reshape(-1, *(1,) * (LEADING - 1 - axis)).expand(shape))
    rows = [
        entry.clamp(0, table.shape[LEADING + axis] - 1).expand(shape)
        for axis, entry in enumerate(index)
    ]
    return table[(*own, *rows)]


def evaluate_mask(values: Values, mask: Mask) -> Tensor:
    """Which pairs a mask shows; in memory order, never in positions.

    `negligible` hides only what may be left out within its bound, so here it shows everything.
    """
    offset = values.call.offsets()[None, None]
    key = values.call.key_index()[None, None, None]
    match mask.rule, mask.operands:
        case "causal", operands:
            return offset > 0 if operands and operands[0] is True else offset >= 0
        case "window", (int() as size, *_):
            return offset.abs() < size
        case "everything" | "negligible", _:
            return torch.ones_like(offset, dtype=torch.bool)
        case "first_keys", (int() as count, *_):
            return (key < count).expand_as(offset)
        case "same_document", (Expr() as ids, *_):
            return values.at(ids, "row") == values.at(ids, "column")
        case "selected_blocks", (Expr() as listed, int() as size, *_):
            return (values.at(listed, "row") == (key // size)[..., None]).any(-1)
        case "and", (Mask() as left, Mask() as right):
            return evaluate_mask(values, left) & evaluate_mask(values, right)
        case "or", (Mask() as left, Mask() as right):
            return evaluate_mask(values, left) | evaluate_mask(values, right)
        case _:
            raise TypeError(f"no mask {mask.rule!r} of {len(mask.operands)} operands")

"""What a call must look like, checked before anything is lowered or launched."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gnomon.dsl.errors import InputError
from gnomon.dsl.nodes import Builtin, Variant, walk
from gnomon.dsl.signature import (
    call_inputs,
    check_call,
    coordinates,
    needs_ordered_positions,
)
from gnomon.lowering.pipelines import to_program

EXACT = 2**24
"""fp32, in which kernels hold the positions of a call, has no whole numbers between those above."""


def check_tensors(variant: Variant, tensors: Mapping[str, Any], *, packed: bool) -> dict[str, int]:
    """The sizes of a call. InputError names the argument, what was expected and what came."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise InputError(name, "a torch tensor", f"a {type(x).__name__}")
        if x.layout is not torch.strided:
            raise InputError(name, "a strided tensor", f"one of layout {x.layout}")
    shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    dtypes = {name: str(x.dtype).removeprefix("torch.") for name, x in tensors.items()}
    sizes = check_call(variant, shapes, dtypes, packed=packed)
    for item in call_inputs(variant):
        device = tensors[item.name].device
        if device != tensors["q"].device:
            raise InputError(item.name, f"the device of q, {tensors['q'].device}", str(device))
    return sizes


def check_positions(
    variant: Variant, positions: object, sizes: Mapping[str, int], starts: Tensor | None
) -> None:
    """Positions are what the variant reads, finite, exact, and in order where a power needs it.

    `starts` are the offsets of packed sequences: order counts inside of each.
    """
    named = [name for name in coordinates(variant) if name is not None]
    given: dict[str, Any] = {}
    if isinstance(positions, Mapping):
        given = {f"positions[{name!r}]": x for name, x in positions.items()}
        missing = [name for name in named if name not in positions]
        if missing or not named:
            wanted = f"a dict of the coordinates {', '.join(named)}" if named else "one tensor"
            raise InputError("positions", wanted, f"a dict of {', '.join(map(repr, positions))}")
    elif named:
        wanted = f"a dict of the coordinates {', '.join(named)}"
        raise InputError("positions", wanted, f"a {type(positions).__name__}")
    else:
        given = {"positions": positions}
    ordered, held = needs_ordered_positions(variant), _kernels_hold_positions(variant)
    for label, x in given.items():
        _check_one(label, x, sizes, held=held)
        if ordered:
            _check_order(label, x, starts)


@lru_cache(maxsize=256)
def _kernels_hold_positions(variant: Variant) -> bool:
    """Whether positions go to a kernel as they are; those of rotations end in the prologue."""
    program = to_program(variant, positions=True)
    return any(
        isinstance(node, Builtin) and node.which == "position"
        for attention in program.attentions
        for stream in attention.streams
        if stream.role != "dot"
        for node in walk(stream.value)
    )


def _check_one(label: str, x: object, sizes: Mapping[str, int], *, held: bool) -> None:
    shape = [sizes["batch"], sizes["time_k"]]
    if not isinstance(x, Tensor):
        raise InputError(label, f"a tensor [batch {shape[0]}, time_k {shape[1]}]", repr(x)[:40])
    if list(x.shape) != shape:
        expected = f"the shape [batch {shape[0]}, time_k {shape[1]}]"
        raise InputError(label, expected, f"{list(x.shape)}")
    if x.dtype == torch.bool or x.is_complex():
        raise InputError(label, "integers or real numbers", str(x.dtype).removeprefix("torch."))
    limit = EXACT if held else math.inf
    if x.numel() and not bool((x.abs() < limit).all()):  # NaN is not below either
        expected = "finite numbers below 2^24, since kernels hold them in fp32"
        raise InputError(label, expected if held else "finite numbers", f"{float(x.abs().max())}")


def _check_order(label: str, x: Tensor, starts: Tensor | None) -> None:
    """A real power of a distance has no value where the distance is negative."""
    falls = x.diff(dim=1) < 0
    if starts is not None:
        inner = starts[(starts > 0) & (starts < x.shape[1])].long()
        falls[:, inner - 1] = False
    if bool(falls.any()):
        raise InputError(
            label,
            "positions that never fall inside a sequence, for the formula has a real power of "
            "their difference",
            "falling ones",
            "write abs(gn.distance()) in the variant",
        )

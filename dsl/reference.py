"""The oracle: any variant in plain PyTorch float64, O(T^2), with autograd.

    out = reference(variant, q, k, v, **inputs)

It evaluates the declaration itself, node by node, and shares nothing with the kernels: no tiles,
no online softmax, no factored products, no derivative table.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, overload

import torch
from torch import Tensor

from gnomon.dsl.errors import InputError
from gnomon.dsl.evaluate_formula import Evaluator
from gnomon.dsl.evaluate_layout import Call
from gnomon.dsl.nodes import ATTENTIONS, Input, Softmax, Variant, walk
from gnomon.dsl.signature import (
    call_inputs,
    check_call,
    coordinates,
    needs_ordered_positions,
    too_many_queries,
)
from gnomon.dsl.trace import Declaration

Positions = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Cut:
    """One stretch of a call: all batches of it, or one packed sequence."""

    queries: slice
    keys: slice


@overload
def reference(
    variant: Variant | Declaration,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    positions: Positions | None = None,
    return_lse: Literal[False] = False,
    **inputs: Tensor,
) -> Tensor: ...


@overload
def reference(
    variant: Variant | Declaration,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    positions: Positions | None = None,
    return_lse: Literal[True],
    **inputs: Tensor,
) -> tuple[Tensor, Tensor]: ...


def reference(
    variant: Variant | Declaration,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    positions: Positions | None = None,
    return_lse: bool = False,
    **inputs: Tensor,
) -> Tensor | tuple[Tensor, Tensor]:
    """The output [batch, time_q, head, d_v] in float64, and the log-sum-exp [batch, time_q, head].

    q [batch, time_q, head, d], k [batch, time_k, kv_head, d], v [batch, time_k, kv_head, d_v];
    inputs as declared. `cu_seqlens` packs sequences of one batch: positions, sums and products
    restart in each; `cu_seqlens_q` and `cu_seqlens_k` go together where queries and keys differ.
    `positions` [batch, time_k], or one such tensor a coordinate. Where time_q != time_k the last
    query stands on the last key. `return_lse` wants a variant with a single softmax; a sink's term
    is part of it, and a row without keys has -inf.

    Raises:
        InputError: an argument is not what the variant declares.
    """
    node = variant.node if isinstance(variant, Declaration) else variant
    tensors = {"q": q, "k": k, "v": v, **inputs}
    softmax = _single_softmax(node) if return_lse else None
    packed = any(x is not None for x in (cu_seqlens, cu_seqlens_q, cu_seqlens_k))
    sizes = _check(node, tensors, packed)
    given = _positions(node, positions, sizes)
    if packed:
        cuts = list(_packed_cuts(cu_seqlens, cu_seqlens_q, cu_seqlens_k, sizes))
    else:
        cuts = [Cut(slice(0, sizes["time_q"]), slice(0, sizes["time_k"]))]
    results = [_evaluate(node, tensors, given, sizes, cut, softmax) for cut in cuts]
    out = torch.cat([out for out, _ in results], 1)
    if not return_lse:
        return out
    return out, torch.cat([lse for _, lse in results if lse is not None], 1)


def _check(variant: Variant, tensors: dict[str, Tensor], packed: bool) -> dict[str, int]:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise InputError(name, "a torch tensor", f"a {type(tensor).__name__}")
    shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    dtypes = {name: str(x.dtype).removeprefix("torch.") for name, x in tensors.items()}
    sizes = check_call(variant, shapes, dtypes, packed=packed)
    device = tensors["q"].device
    for name, tensor in tensors.items():
        if tensor.device != device:
            raise InputError(name, f"the device of q, {device}", f"{tensor.device}")
    return sizes


def _single_softmax(variant: Variant) -> Softmax:
    """The softmax whose log-sum-exp is asked for."""
    found = [node for node in walk(variant.output) if isinstance(node, ATTENTIONS)]
    if len(found) != 1 or not isinstance(found[0], Softmax):
        names = ", ".join(type(node).__name__ for node in found)
        raise InputError("return_lse", "a variant with a single softmax", f"one with {names}")
    return found[0]


def _positions(
    variant: Variant, given: Positions | None, sizes: dict[str, int]
) -> dict[str | None, Tensor] | None:
    """The positions by coordinate, each [batch, time_k], or None for 0, 1, 2, ..."""
    names = [name for name in coordinates(variant) if name is not None]
    if isinstance(given, Tensor):
        found: dict[str | None, Tensor] = {None: given}
        came = "one tensor"
    else:
        found = {}
        found.update(given or {})
        came = f"the coordinates {', '.join(map(str, found))}" if found else "none"
    missing = [name for name in names if name not in found]
    extra = [name for name in found if name is not None and name not in names]
    if missing or extra:
        expected = f"a dict of the coordinates {', '.join(names)}" if names else "one tensor"
        raise InputError("positions", expected, came)
    for name, tensor in found.items():
        label = "positions" if name is None else f"positions[{name!r}]"
        _check_positions(label, tensor, sizes)
    return found or None


def _check_positions(label: str, tensor: Tensor, sizes: dict[str, int]) -> None:
    shape = [sizes["batch"], sizes["time_k"]]
    if list(tensor.shape) != shape:
        raise InputError(
            label, f"the shape [batch {shape[0]}, time_k {shape[1]}]", f"{list(tensor.shape)}"
        )
    if tensor.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise InputError(label, "integers or float32", f"{tensor.dtype}".removeprefix("torch."))


def _packed_cuts(
    both: Tensor | None, queries: Tensor | None, keys: Tensor | None, sizes: dict[str, int]
) -> Iterator[Cut]:
    if both is not None and (queries is not None or keys is not None):
        raise InputError("cu_seqlens", "no cu_seqlens_q or cu_seqlens_k beside it", "both")
    if both is None and (queries is None or keys is None):
        name = "cu_seqlens_q" if queries is None else "cu_seqlens_k"
        raise InputError(name, "cu_seqlens_q and cu_seqlens_k together", "only the other one")
    q_name, k_name = ("cu_seqlens",) * 2 if both is not None else ("cu_seqlens_q", "cu_seqlens_k")
    q_bounds = _bounds(q_name, both if queries is None else queries, sizes["time_q"], "time_q")
    k_bounds = _bounds(k_name, both if keys is None else keys, sizes["time_k"], "time_k")
    if len(q_bounds) != len(k_bounds):
        raise InputError(
            k_name, f"{len(q_bounds) - 1} sequences, as in {q_name}", f"{len(k_bounds) - 1}"
        )
    for index in range(len(q_bounds) - 1):
        yield Cut(
            slice(q_bounds[index], q_bounds[index + 1]), slice(k_bounds[index], k_bounds[index + 1])
        )


def _bounds(name: str, tensor: Tensor | None, total: int, axis: str) -> list[int]:
    """The starts of the sequences and the end of the last one."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in (torch.int32, torch.int64):
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InputError(name, "a tensor of int32 or int64", str(got).removeprefix("torch."))
    if tensor.ndim != 1 or tensor.numel() < 1:
        raise InputError(name, "one axis, with a 0 and an end a sequence", f"{list(tensor.shape)}")
    bounds: list[int] = tensor.tolist()
    rising = all(a <= b for a, b in pairwise(bounds))
    if bounds[0] != 0 or bounds[-1] != total or not rising:
        raise InputError(
            name, f"0, then ends that never fall, the last {axis} = {total}", f"{bounds}"
        )
    return bounds


def _evaluate(
    variant: Variant,
    tensors: dict[str, Tensor],
    positions: dict[str | None, Tensor] | None,
    sizes: dict[str, int],
    cut: Cut,
    softmax: Softmax | None,
) -> tuple[Tensor, Tensor | None]:
    """The output, and the log-sum-exp of `softmax`, for one stretch."""
    own = {
        **sizes,
        "time_q": cut.queries.stop - cut.queries.start,
        "time_k": cut.keys.stop - cut.keys.start,
    }
    laid_out = {
        item.name: _lay_out(item, tensors[item.name], own, cut) for item in call_inputs(variant)
    }
    call = Call(
        laid_out,
        _timelines(variant, positions, own, cut, tensors["q"].device),
        own,
        tensors["q"].device,
    )
    _check_stretch(variant, call, positions is not None)
    evaluator = Evaluator(call)
    shape = (own["batch"], own["Head"], own["time_q"])
    out = evaluator(variant.output)[:, :, :, 0].expand(*shape, own["d_v"]).transpose(1, 2)
    if softmax is None:
        return out, None
    lse = evaluator.log_sums[id(softmax)].expand(*shape, 1)
    return out, lse[..., 0].transpose(1, 2)


def _lay_out(item: Input, tensor: Tensor, sizes: dict[str, int], cut: Cut) -> Tensor:
    """[batch, time, heads, *axes] -> [batch, head, time_q, time_k, *axes], heads repeated."""
    tensor = tensor.long() if item.element == "int" else tensor.double()
    if item.place == "constant":
        tensor = tensor[None, None]
    else:
        tensor = tensor[:, cut.queries if item.place == "row" else cut.keys]
    if item.heads is None:
        tensor = tensor.unsqueeze(2)
    elif item.heads == "KVHead":
        tensor = tensor.repeat_interleave(sizes["Head"] // sizes["KVHead"], 2)
    tensor = tensor.transpose(1, 2)
    return tensor.unsqueeze(3 if item.place in ("row", "constant") else 2)


def _timelines(
    variant: Variant,
    positions: dict[str | None, Tensor] | None,
    sizes: dict[str, int],
    cut: Cut,
    device: torch.device,
) -> dict[str | None, Tensor]:
    """The positions of each coordinate along the tokens, [batch | 1, 1, 1, time]."""
    length = max(sizes["time_q"], sizes["time_k"])
    plain = torch.arange(length, device=device) + sizes["time_k"] - length
    lines: dict[str | None, Tensor] = {None: plain[None, None, None]}
    for name, tensor in (positions or {}).items():
        line = tensor[:, cut.keys].to(device)[:, None, None]
        lines[name] = line.double() if line.is_floating_point() else line.long()
    return lines


def _check_stretch(variant: Variant, call: Call, has_positions: bool) -> None:
    """What can be said only about each sequence: its length, and the order of its positions."""
    tokens = [item.name for item in variant.inputs if item.place == "token"]
    tokens += ["positions"] * has_positions
    if tokens and call.time_q > call.time_k:
        raise too_many_queries(tokens, call.sizes)
    if has_positions and needs_ordered_positions(variant):
        for line in call.positions.values():
            if bool((line.diff(dim=3) < 0).any()):
                raise InputError(
                    "positions",
                    "positions that never fall inside a sequence, for the formula has a real "
                    "power of their difference",
                    "falling ones",
                    "write abs(gn.distance()) in the variant",
                )

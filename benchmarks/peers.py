"""The peers: what else computes a variant, called as its own authors call it.

A peer is asked for in `make` only, so that one that is not installed costs nothing. What is not a
package, the official FoX kernel and TAPA's release, is imported from a folder of the user's.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from gnomon.benchmarks.calls import Call, Inputs
from gnomon.benchmarks.targets import PLAIN
from gnomon.benchmarks.timing import Absent

TAPA_ALPHA = {"tapa": 0.1, "tapa_no_turns": 0.5}
TAPA_TURN = {"tapa": 2 * torch.pi, "tapa_no_turns": 1.0}
TAPA_MATRICES = {"fwd": 6, "fwd_bwd": 10}
"""How many [B, H, T, T] tensors plain TAPA holds at once, about."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a peer is asked for: a variant on inputs, in a pass; `folders` by the peer's name."""

    variant: str
    which: str
    inputs: Inputs
    folders: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class Peer:
    """One implementation. `make` raises Absent where it is not here or cannot do the pass."""

    name: str
    variants: tuple[str, ...]
    devices: tuple[str, ...]
    make: Callable[[Query], Call]


# ---- torch


def sdpa(backend: SDPBackend, query: Query) -> Call:
    """Torch's SDPA on plain causal attention, held to one back end; all query heads."""
    *tensors, do = query.inputs.all_heads_first()

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    return Call(forward, tensors, do)


def flex(query: Query, *, compiled: bool = True) -> Call:
    """FlexAttention, compiled for the shape; FoX's prefix sums are made inside of the call.

    The sum of the query is left out of FoX's score: it is the same for all keys of a row, and two
    reads of one tensor that has a gradient are refused.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    inputs = query.inputs
    length, shared = inputs.q.shape[1], inputs.q.shape[2] != inputs.k.shape[2]
    mask: Any = create_block_mask(_causal, None, None, length, length, device=inputs.q.device)

    def plain(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=shared)

    def gated(q: Tensor, k: Tensor, v: Tensor, sums: Tensor, mask: Any) -> Any:
        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s - sums[b, h, j]

        return flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=shared)

    is_fox = query.variant == "fox"
    kernel: Any = gated if is_fox else plain
    if compiled:  # fullgraph: an error rather than a slow detour without fusion
        kernel = torch.compile(kernel, fullgraph=True, dynamic=False)

    def forward(q: Tensor, k: Tensor, v: Tensor, *log_f: Tensor) -> Tensor:
        sums = [x.transpose(1, 2).contiguous().cumsum(2) for x in log_f]
        out: Tensor = kernel(q, k, v, *sums, mask)
        return out

    heads = [x.transpose(1, 2).contiguous() for x in (inputs.q, inputs.k, inputs.v)]
    gates = [inputs.extra["log_f"]] if is_fox else []
    return Call(forward, [*heads, *gates], inputs.cotangent.transpose(1, 2).contiguous())


def _causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def plain_tapa(query: Query) -> Call:
    """TAPA in plain PyTorch, in the dtype of its inputs; every [T, T] matrix stands in memory."""
    q, k, v, do = query.inputs.all_heads_first()
    batch, heads, length, dim = q.shape
    one = batch * heads * length**2 * q.element_size()
    needed = TAPA_MATRICES[query.which] * one
    if q.is_cuda and needed > _free_memory():
        gib = f"{needed / 2**30:.0f} GiB"
        raise Absent(f"its [B, H, T, T] matrices take about {gib}, more than is free")
    place = torch.arange(length, device=q.device)
    distance = (place[:, None] - place).clamp(min=0).float()
    turns = (TAPA_TURN[query.variant] * distance ** TAPA_ALPHA[query.variant]).to(q.dtype)
    later = place[:, None] < place

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        qa, qp = q.chunk(2, 3)
        ka, kp = k.chunk(2, 3)
        scale = (dim / 2) ** -0.5
        amplitude = (qa * scale) @ ka.transpose(2, 3)
        phase = ((qp * scale) @ kp.transpose(2, 3)) * turns
        logit = (amplitude * phase.cos()).masked_fill(later, -torch.inf)
        return torch.matmul(logit.softmax(3), v)

    return Call(forward, [q, k, v], do)


def _free_memory() -> int:
    """Bytes that torch could still hand out."""
    kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(torch.cuda.mem_get_info()[0]) + kept


def forget_compiled() -> None:
    """Drop what torch.compile has made: it compiles a function for a few shapes only."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


# ---- flash-linear-attention


def fla(backend: str, query: Query) -> Call:
    """FLA's attention, or its forgetting attention, in Triton or in TileLang.

    FLA reads FLA_TILELANG at every call, and takes Triton without a word where TileLang is missing.
    """
    attn = importlib.import_module("fla.ops.attn")
    forgetting = importlib.import_module("fla.ops.forgetting_attn")
    switch = "1" if backend == "tilelang" else "0"
    if backend == "tilelang":
        if os.environ.get("FLA_DISABLE_BACKEND_DISPATCH") == "1":
            raise Absent("FLA_DISABLE_BACKEND_DISPATCH=1 in the environment")
        found = importlib.import_module("fla.ops.attn.backends.tilelang")
        if not found.AttnTileLangBackend.is_available():
            raise Absent("FLA finds no tilelang, or no nvcc for it")
    inputs, is_fox = query.inputs, query.variant == "fox"
    function = forgetting.parallel_forgetting_attn if is_fox else attn.parallel_attn

    def forward(*given: Tensor) -> Tensor:
        os.environ["FLA_TILELANG"] = switch  # the backward pass of this call reads it too
        out: Tensor = function(*given)
        return out

    gates = [inputs.extra["log_f"]] if is_fox else []
    return Call(forward, [inputs.q, inputs.k, inputs.v, *gates], inputs.cotangent)


def fla_path(query: Query) -> Call:
    """FLA's PaTH attention, with its gate for path_fox; w in fp32, as it asks for."""
    module = importlib.import_module("fla.ops.path_attn")
    inputs = query.inputs
    names = [name for name in ("w", "beta", "log_f") if name in inputs.extra]

    def forward(*given: Tensor) -> Tensor:
        out: Tensor = module.parallel_path_attn(*given)[0]
        return out

    extra = [inputs.extra[name].float() for name in names]
    return Call(forward, [inputs.q, inputs.k, inputs.v, *extra], inputs.cotangent)


@contextmanager
def kept_environment() -> Iterator[None]:
    """Puts back what the choice of FLA's back end changes."""
    before = os.environ.get("FLA_TILELANG")
    try:
        yield
    finally:
        os.environ.pop("FLA_TILELANG", None)
        if before is not None:
            os.environ["FLA_TILELANG"] = before


# ---- from a folder of the user's


def fox_official(query: Query) -> Call:
    """The kernel of the FoX paper, with its adaptive pruning for fox_pruned; all query heads."""
    module = from_folder(query, "fox_official", "forgetting_attention.py")
    q, k, v, do = query.inputs.all_heads_first()
    pruning = {"adaptive_threshold": "auto"} if query.variant == "fox_pruned" else {}

    def forward(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor) -> Tensor:
        gates = log_f.transpose(1, 2).contiguous()
        out: Tensor = module.forgetting_attention(q, k, v, gates, head_first=True, **pruning)
        return out

    return Call(forward, [q, k, v, query.inputs.extra["log_f"]], do)


def tapa_release(query: Query) -> Call:
    """The kernel released with the TAPA paper: forward only, its phase without the 2 pi."""
    if query.which != "fwd":
        raise Absent("the release has a forward pass only")
    module = from_folder(query, "tapa_release", "attention_triton.py")
    *tensors, do = query.inputs.all_heads_first()
    options = {"theta": 0.5, "alpha": TAPA_ALPHA[query.variant], "causal": True}

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = module.tapa_attention_triton(q, k, v, **options)
        return out

    return Call(forward, tensors, do)


def from_folder(query: Query, name: str, file: str) -> ModuleType:
    """The module of a file that lies somewhere in the folder given for a peer."""
    folder = query.folders.get(name)
    if folder is None:
        raise Absent(f"no folder given: --{name.replace('_', '-')} DIR")
    paths = sorted(folder.rglob(file), key=lambda path: len(path.parts))
    if not paths:
        raise Absent(f"no {file} in the folder of --{name.replace('_', '-')}")
    label = f"gnomon_peer_{name}"
    if label not in sys.modules:
        spec = importlib.util.spec_from_file_location(label, paths[0])
        if spec is None or spec.loader is None:
            raise Absent(f"{file} is no Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[label] = module
    return sys.modules[label]


TAPAS = tuple(TAPA_ALPHA)
PEERS = (
    Peer("cudnn", (PLAIN,), ("cuda",), partial(sdpa, SDPBackend.CUDNN_ATTENTION)),
    Peer("flash", (PLAIN,), ("cuda",), partial(sdpa, SDPBackend.FLASH_ATTENTION)),
    Peer("math", (PLAIN,), ("cpu",), partial(sdpa, SDPBackend.MATH)),
    Peer("flex", (PLAIN, "fox"), ("cuda",), flex),
    Peer("fla_triton", (PLAIN, "fox"), ("cuda",), partial(fla, "triton")),
    Peer("fla_tilelang", (PLAIN, "fox"), ("cuda",), partial(fla, "tilelang")),
    Peer("fla_path", ("path", "path_fox"), ("cuda",), fla_path),
    Peer("fox_official", ("fox", "fox_pruned"), ("cuda",), fox_official),
    Peer("torch", TAPAS, ("cuda", "cpu"), plain_tapa),
    Peer("tapa_release", TAPAS, ("cuda",), tapa_release),
)
"""Every peer that is known, with the device on which it is asked for unless it is named."""

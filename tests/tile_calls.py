"""A whole call through tile programs run in numpy; the oracle's evaluator makes the streams."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tile_interpreter import Array, run
from torch import Tensor

from gnomon.dsl import reference as oracle
from gnomon.dsl.evaluate_formula import Evaluator
from gnomon.dsl.evaluate_layout import Call
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import At, Variant
from gnomon.dsl.signature import call_inputs
from gnomon.lowering.core import Attention, Stream
from gnomon.lowering.made import Powers, Reach, SumByTile
from gnomon.lowering.pipelines import Kernels, to_kernels, to_program
from gnomon.lowering.tile import Kernel, Scalar, Tunable
from gnomon.lowering.tile import Tensor as Memory

PLACE_TIME = {"row": "time_q", "column": "time_k"}


@dataclass
class Tiles:
    """The tunables of a run."""

    BM: int = 8
    BN: int = 8


@dataclass
class Result:
    """Output, log-sum-exp (softmax) and the gradient of every real input, in float64."""

    out: Tensor
    lse: Tensor | None
    grads: dict[str, Tensor]


class Launch:
    """One attention of one call."""

    def __init__(
        self,
        kernels: Kernels,
        streams: dict[str, Tensor],
        v: Tensor,
        tiles: Tiles,
        cu: tuple[list[int], list[int]] | None,
        sizes: dict[str, int],
    ) -> None:
        self.kernels, self.streams, self.v, self.tiles, self.cu = kernels, streams, v, tiles, cu
        self.memory: dict[str, Array] = {
            name: x.detach().float().numpy() if x.dtype == torch.float32 else x.detach().numpy()
            for name, x in streams.items()
        }
        self.memory["v"] = v.detach().float().numpy()
        self.axes: dict[str, int] = {"one": 1, "head": sizes["Head"], "kv_head": sizes["KVHead"]}
        self.axes |= {"batch": sizes["batch"], "sequence": sizes["batch"], "DV": v.shape[3]}
        self.axes |= {"time_q": sizes["time_q"], "time_k": sizes["time_k"]}
        self.longest = sizes["time_q"], sizes["time_k"]
        if cu is not None:
            for name, bounds in zip(("cu_seqlens_q", "cu_seqlens_k"), cu, strict=True):
                self.memory[name] = np.array(bounds)
            self.axes |= {"offset": len(cu[0]), "sequence": len(cu[0]) - 1}
            queries, keys = (int(np.diff(bounds).max(initial=0)) for bounds in cu)
            self.longest = queries, keys
        self.axes["block"] = -(-self.longest[0] // tiles.BM)
        self.scalars: dict[str, float] = {}

    def run(self, kernel: Kernel) -> None:
        """Allocate the outputs (NaN where the kernel must write all of it) and run."""
        numbers: dict[str, Any] = {}
        for param in kernel.params:
            if isinstance(param, Memory) and param.mode == "made":
                (made,) = (each for each in kernel.made if each.tensor == param.name)
                assert not isinstance(made, Powers)
                found = self.made(made) if isinstance(made, SumByTile) else self.reach(made)
                self.memory[param.name] = found
            if isinstance(param, Memory) and param.mode in ("in", "made"):
                for axis, size in zip(param.axes, self.memory[param.name].shape, strict=True):
                    assert self.axes.setdefault(axis, size) == size, (param.name, axis)
        for param in kernel.params:
            if isinstance(param, Memory) and param.mode in ("out", "inout"):
                self.memory[param.name] = self.output(param)
            elif isinstance(param, Scalar):
                numbers[param.name] = self.number(param.name)
            elif isinstance(param, Tunable):
                numbers[param.name] = self.tunable(kernel, param.name)
        numbers["B"] = self.axes["sequence"]
        run(kernel, self.memory, numbers)

    def made(self, made: SumByTile) -> Array:
        """A prefix sum from each token to the first or last of its tile, in units of log 2."""
        x = self.memory[made.high].astype(np.float64) + self.memory[made.low]
        rows = self.tunable_of(made.extent)
        anchors = np.arange(x.shape[1]) // rows * rows
        if made.anchor == "last":
            anchors = np.minimum(anchors + rows, x.shape[1]) - 1
            return ((x[:, anchors] - x) / math.log(2.0)).astype(np.float32)
        apart = (self.memory[made.high][:, anchors] - x) / math.log(2.0)
        base = self.memory[made.base]
        return (base + apart.repeat(base.shape[2] // x.shape[2], 2)).astype(np.float32)

    def reach(self, made: Reach) -> Array:
        """Everything weighs: no tile is skipped."""
        queries, keys = self.axes["time_q"], self.axes["time_k"]
        first = made.tensor == "first_key"
        tiles = -(-queries // self.tiles.BM) if first else -(-keys // self.tiles.BN)
        shape = self.axes["batch"], self.axes["head"], tiles
        last = -(-queries // self.tiles.BM) * self.tiles.BM
        return np.full(shape, 0 if first else last, np.int32)

    def tunable_of(self, extent: str) -> int:
        return {"BM": self.tiles.BM, "BN": self.tiles.BN}[extent]

    def output(self, param: Memory) -> Array:
        """Zeros where the kernel adds, NaN where it must write everything."""
        shape = [math.prod(self.axes[x] for x in axis.split("*")) for axis in param.axes]
        return np.full(shape, 0.0 if param.mode == "inout" else np.nan, np.float32)

    def number(self, name: str) -> float:
        heads = {"H": self.axes["head"], "G": self.axes["head"] // self.axes["kv_head"]}
        times = {"T_q": self.axes["time_q"], "T_k": self.axes["time_k"]}
        times["shift"] = times["T_k"] - times["T_q"]
        blocks = {"NM": self.axes["block"], "NN": -(-self.longest[1] // self.tiles.BN)}
        known = {**heads, **times, **blocks, **self.scalars}
        return known[name] if name in known else self.axes[name]

    def tunable(self, kernel: Kernel, name: str) -> int:
        given = {"BM": self.tiles.BM, "BN": self.tiles.BN}
        if name in given:
            return given[name]
        size = int(self.number(dict(kernel.widths)[name]))
        return 1 << (size - 1).bit_length()


def evaluate_streams(
    attention: Attention, evaluators: list[Evaluator], sizes: dict[str, int]
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The tensors of the streams, and the numbers of the launch."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, float] = {}
    for stream in attention.streams:
        if stream.role == "host":
            numbers[stream.name] = float(evaluators[0](stream.value).reshape(-1)[0])
        elif stream.role not in ("version", "near"):
            tensors[stream.name] = _tensor(stream, evaluators, sizes)
    return tensors, numbers


def _tensor(stream: Stream, evaluators: list[Evaluator], sizes: dict[str, int]) -> Tensor:
    value = stream.value
    parts = []
    for evaluate in evaluators:
        own = kind(value).place
        inner = value.x if isinstance(value, At) else value
        x = evaluate.at(inner, stream.place) if own != "constant" else evaluate(value)
        x = x.transpose(2, 3) if stream.place == "column" else x
        x = x[:, :, :, 0].transpose(1, 2)  # [batch, time, head, *axes]
        if stream.place != "constant":
            time = evaluate.call.sizes[PLACE_TIME[stream.place]]
            x = x.expand(sizes["batch"], time, *x.shape[2:])
        parts.append(x)
    x = torch.cat(parts, 1) if stream.place != "constant" else parts[0][0, 0]
    axis = 2 if stream.place != "constant" else 0
    heads = {None: 1, "KVHead": sizes["KVHead"], "Head": sizes["Head"]}[stream.heads]
    if x.shape[axis] == 1:
        x = x.expand(*x.shape[:axis], heads, *x.shape[axis + 1 :])
    elif x.shape[axis] != heads:  # the oracle repeats key heads
        x = x.unflatten(axis, (heads, -1)).select(axis + 1, 0)
    return x.long() if stream.dtype == "i32" else x


def attend(
    variant: Variant,
    tensors: dict[str, Tensor],
    do: Tensor,
    *,
    dlse: Tensor | None = None,
    tiles: Tiles | None = None,
    cu: tuple[list[int], list[int]] | None = None,
    positions: Any = None,
) -> Result:
    """The call in float32 tiles; variants with one attention and no epilogue, all gradients."""
    tiles = tiles or Tiles()
    program = to_program(variant, positions=positions is not None)
    (attention,) = program.attentions
    kernels = to_kernels(attention, packed=cu is not None)
    leaves = wide_leaves(tensors)
    evaluators, sizes = evaluators_of(variant, leaves, positions, cu)
    streams, numbers = evaluate_streams(attention, evaluators, sizes)
    narrow = {n: _narrowed(x, attention, n) for n, x in streams.items()}
    launch = Launch(kernels, narrow, leaves["v"], tiles, cu, sizes)
    launch.scalars = numbers
    launch.run(kernels.fwd)
    out = torch.from_numpy(launch.memory["o"]).double()
    lse = torch.from_numpy(launch.memory["lse"]).double() if "lse" in launch.memory else None
    delta = (do.double() * out).sum(-1)
    if dlse is not None:
        delta = delta - dlse.double()
    launch.memory |= {"do": do.numpy(), "delta": delta.float().numpy()}
    if lse is not None:
        shift = lse.masked_fill(lse == -torch.inf, torch.inf) / math.log(2)
        launch.memory["lse_log2"] = shift.float().numpy()
    for kernel in (kernels.bwd_rows, kernels.bwd_columns):
        if kernel is not None:
            launch.run(kernel)
    grads = _chain(attention, streams, launch, leaves)
    return Result(out, lse, grads)


def wide_leaves(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The real tensors in float64, each a leaf that collects its gradient."""
    return {
        n: x.double().requires_grad_() if x.is_floating_point() else x for n, x in tensors.items()
    }


def evaluators_of(
    variant: Variant,
    leaves: dict[str, Tensor],
    positions: Any,
    cu: tuple[list[int], list[int]] | None = None,
) -> tuple[list[Evaluator], dict[str, int]]:
    """The oracle's evaluator of each sequence, and the sizes of the call."""
    sizes = oracle._check(variant, leaves, cu is not None)
    cuts = _cuts(cu, sizes)
    return [_evaluator(variant, leaves, positions, sizes, cut) for cut in cuts], sizes


def _narrowed(x: Tensor, attention: Attention, name: str) -> Tensor:
    (stream,) = (s for s in attention.streams if s.name == name)
    x = x.detach()
    if stream.role == "low":
        x = x - x.float()
    return x if stream.dtype == "i32" else x.float()


def _cuts(cu: tuple[list[int], list[int]] | None, sizes: dict[str, int]) -> list[oracle.Cut]:
    if cu is None:
        return [oracle.Cut(slice(0, sizes["time_q"]), slice(0, sizes["time_k"]))]
    starts = zip(cu[0][:-1], cu[0][1:], cu[1][:-1], cu[1][1:], strict=True)
    return [oracle.Cut(slice(a, b), slice(c, d)) for a, b, c, d in starts]


def _evaluator(
    node: Variant, tensors: dict[str, Tensor], given: Any, sizes: dict[str, int], cut: oracle.Cut
) -> Evaluator:
    own = {
        **sizes,
        "time_q": cut.queries.stop - cut.queries.start,
        "time_k": cut.keys.stop - cut.keys.start,
    }
    laid = {i.name: oracle._lay_out(i, tensors[i.name], own, cut) for i in call_inputs(node)}
    positions = oracle._positions(node, given, sizes)
    lines = oracle._timelines(node, positions, own, cut, tensors["q"].device)
    return Evaluator(Call(laid, lines, own, tensors["q"].device))


def _chain(
    attention: Attention,
    streams: dict[str, Tensor],
    launch: Launch,
    leaves: dict[str, Tensor],
) -> dict[str, Tensor]:
    """Gradients of streams, as the generated module must combine them, to gradients of inputs."""
    outputs, cotangents = [], []
    for stream in attention.streams:
        name = f"d_{stream.name}"
        if stream.role == "host" or name not in launch.memory:
            continue
        g = torch.from_numpy(launch.memory[name]).double()
        target = streams[stream.name]
        if stream.place == "constant":
            g = g.sum((0, 1))
            heads = target.shape[0]
            g = g.unflatten(0, (heads, -1)).sum(1) if heads > 1 else g.sum(0, keepdim=True)
        elif g.shape[2] != target.shape[2]:
            g = g.unflatten(2, (target.shape[2], -1)).sum(3)
        outputs.append(target)
        cotangents.append(g.reshape(target.shape))
    dv = torch.from_numpy(launch.memory["dv"]).double()
    inputs = {n: x for n, x in leaves.items() if x.requires_grad and n != "v"}
    found = torch.autograd.grad(
        outputs, list(inputs.values()), cotangents, allow_unused=True, retain_graph=True
    )
    grads = dict(zip(inputs, found, strict=True))
    return {
        **{n: torch.zeros_like(inputs[n]) if g is None else g for n, g in grads.items()},
        "v": dv,
    }

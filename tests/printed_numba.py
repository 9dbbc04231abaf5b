"""Printed CPU kernels as modules, and the tensors and numbers of a small launch."""

import types
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnomon.lowering.emit.numba import Io
from gnomon.lowering.tile import Kernel, Tensor

Array = npt.NDArray[Any]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SIZES = {"T_q": 11, "T_k": 19, "H": 4, "G": 2, "D0": 8, "DV": 12, "N_t": 6, "E0": 5, "scale": 0.25}
AXES = {"batch": 2, "time_q": 11, "time_k": 19, "head": 4, "kv_head": 2, "one": 1}


def case(kernel: Kernel, tiles: tuple[int, int] = (8, 4), **other: int) -> tuple[Any, Any]:
    """Random tensors (outputs full of NaN) and the numbers of a launch."""
    numbers: dict[str, Any] = {**SIZES, "BM": tiles[0], "BN": tiles[1], **other}
    numbers |= {"NM": -(-numbers["T_q"] // tiles[0]), "NN": -(-numbers["T_k"] // tiles[1])}
    numbers |= {padded: numbers[width] for padded, width in kernel.widths}
    sizes = {**AXES, **numbers, "time_q": numbers["T_q"], "time_k": numbers["T_k"]}
    sizes["block"] = numbers["NM"]
    random = np.random.default_rng(3)
    tensors = {}
    for param in kernel.params:
        if isinstance(param, Tensor):
            shape = [sizes[axis] for axis in param.axes]
            made = random.standard_normal(shape).astype(np.float32)
            empty = {"in": made, "out": np.full_like(made, np.nan), "inout": np.zeros_like(made)}
            tensors[param.name] = empty[param.mode]
    return tensors, {**numbers, "B": AXES["batch"]}


def rounded(kernel: Kernel, tensors: dict[str, Array], io: Io) -> dict[str, Array]:
    """The tensors as a kernel of that dtype sees them, in fp32."""
    made = {}
    for param in kernel.params:
        if isinstance(param, Tensor):
            x = torch.from_numpy(tensors[param.name].copy())
            narrow = param.dtype == "io" and param.mode == "in"
            made[param.name] = (x.to(DTYPES[io]).float() if narrow else x).numpy()
    return made


def bits(kernel: Kernel, tensors: dict[str, Array], io: Io) -> dict[str, Array]:
    """The tensors as a launch passes them: 16-bit dtypes as integers."""
    made = {name: x.copy() for name, x in tensors.items()}
    for param in kernel.params:
        if not isinstance(param, Tensor) or param.mode != "in" or io == "f32":
            continue
        if param.dtype == "io":
            narrow = torch.from_numpy(tensors[param.name]).to(DTYPES[io])
            made[param.name] = narrow.view(torch.uint16).numpy()
    return made


def load(text: str, name: str) -> types.ModuleType:
    """The printed text as a module."""
    module = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def launch(module: types.ModuleType, kernel: Kernel, tensors: Any, numbers: Any) -> None:
    args = [tensors[p.name] if isinstance(p, Tensor) else numbers[p.name] for p in kernel.params]
    for worker in range(2):
        getattr(module, kernel.name)(worker, 2, *args)

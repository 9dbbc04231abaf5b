"""What a process of Triton's interpreter runs: a printed module of transport stages, both ways."""

from types import ModuleType
from typing import Any

HEAD = """\
from contextlib import nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor
"""


def call(path: str, inputs: list[Any], weights: list[Any], descriptors: bool) -> list[Any]:
    """qv, kv, loc and the gradients of the inputs for these weights of the three."""
    import importlib.util

    import torch

    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("gnomon_transport", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not descriptors:
        module.__dict__["has_descriptors"] = lambda *_: False
    leaves = [x.clone().requires_grad_() for x in inputs]
    outs = module.Transport.apply(*leaves)
    grads = torch.autograd.grad(outs, leaves, weights)
    return [x.detach() for x in (*outs, *grads)]

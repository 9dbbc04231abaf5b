"""One call of a function under test, its results by name; the interpreter's process runs it too."""

import importlib.util
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Results = dict[str, Tensor]


@dataclass(frozen=True)
class Problem:
    """Tensors (leaves that require grad collect gradients), keywords, and cotangents by a seed.

    has_lse   whether the function has a log-sum-exp to return
    lse       whether that has a gradient too
    """

    tensors: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    has_lse: bool = False
    lse: bool = True
    seed: int = 1


def results(function: Callable[..., Any], problem: Problem) -> Results:
    """out, lse where there is one, and d_<name> of every leaf; 0 where nothing leads to it."""
    lse = {"return_lse": True} if problem.has_lse else {}
    made = function(**problem.tensors, **problem.options, **lse)
    named = dict(zip(("out", "lse"), made if lse else (made,), strict=False))
    random = torch.Generator().manual_seed(problem.seed)
    total = torch.zeros((), dtype=torch.float64)
    for name, x in named.items():
        weights = torch.randn(x.shape, generator=random, dtype=torch.float64)
        if name == "out" or problem.lse:
            total = total + (x.double().masked_fill(x.isinf(), 0.0) * weights).sum()
    leaves = {name: x for name, x in problem.tensors.items() if x.requires_grad}
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    zipped = zip(leaves.items(), found, strict=True)
    grads = {f"d_{n}": torch.zeros_like(x) if g is None else g for (n, x), g in zipped}
    return {name: x.detach() for name, x in named.items()} | grads


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """Where modules lie until the process ends."""
    return tempfile.TemporaryDirectory(prefix="gnomon-")


def interpreted(source: str, name: str, problem: Problem) -> Results:
    """The results of a Triton module; TRITON_INTERPRET=1 is set where this runs."""
    torch.set_num_threads(1)
    path = Path(folder().name) / f"module_{len(sys.modules)}.py"
    path.write_text(source)  # Triton reads the text of its kernels from the file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with warnings.catch_warnings():
        # it computes what is not chosen too, with numpy
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        spec.loader.exec_module(module)
        return results(getattr(module, name), problem)

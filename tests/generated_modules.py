"""What tests of generated text share: texts run as modules, two precisions, formatting."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gnomon.dsl.reference import reference
from gnomon.dsl.trace import Declaration
from gnomon.lowering.emit.module import Module
from gnomon.lowering.pipelines import to_kernels, to_program

ROOT = Path(__file__).parents[1]
SMALL = {"BM": 8, "BN": 8}


def execute(text: str, name: str = "gnomon_generated") -> ModuleType:
    """The text as a module; its name starts with gnomon, so that its memory is poisoned."""
    module = ModuleType(name)
    exec(compile(text, f"<{name}>", "exec"), module.__dict__)
    return module


def plain_python(
    variant: Declaration, *, padded: bool = True, packed: bool = True, **options: Any
) -> Module:
    """A module whose Numba kernels run as plain Python with small tiles."""
    program = to_program(variant.node, positions=options.pop("positions", False))
    forms = [[to_kernels(a, packed=form) for a in program.attentions] for form in (False, True)]
    config = {k.name: SMALL for kernels in forms[0] for k in kernels.all()}
    given = {"target": "numba", "jit": False, "config": config, **options}
    return Module(program, forms[0] if padded else [], forms[1] if packed else [], **given)


def doubled(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same call in float64."""

    def double(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        return x.detach().double().requires_grad_(x.requires_grad)

    return {name: double(x) for name, x in tensors.items()}


def gradients(out: Tensor, tensors: Mapping[str, Any], seed: int = 7) -> dict[str, Tensor]:
    """The gradient of every tensor that wants one, for a random cotangent; zeros for none."""
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).double()
    leaves = {n: x for n, x in tensors.items() if isinstance(x, Tensor) and x.requires_grad}
    total = (out.double() * weights.masked_fill(out.isinf(), 0)).nan_to_num(posinf=0, neginf=0)
    found = torch.autograd.grad(total.sum(), list(leaves.values()), allow_unused=True)
    zipped = zip(leaves.items(), found, strict=True)
    return {n: torch.zeros_like(x) if g is None else g for (n, x), g in zipped}


def oracle(variant: Declaration, tensors: Mapping[str, Any], **options: Any) -> Any:
    """The declaration evaluated in float64."""
    return reference(variant, **tensors, **options)


def assert_formatted(texts: Mapping[str, str], folder: Path, *, lint: bool = True) -> None:
    """Ruff would change nothing in these files, and finds nothing to say."""
    place = folder / "kernels_generated"
    place.mkdir(exist_ok=True)
    for name, text in texts.items():
        (place / name).write_text(text)
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(place)]
    for command in (["format", "--diff"], ["check", "--ignore", "C901,D,ERA,N"])[: 1 + lint]:
        ruff = [sys.executable, "-m", "ruff", *command, *options]
        run = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr

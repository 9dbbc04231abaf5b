"""Each stage of a transport on a GPU: is it right, how long does it take, with which tiles.

    python3 -m gnomon.benchmarks.transport_stages [--width 128] [--out FILE]

From a checkout: the oracle is tests/transport_oracle.py, float64, token by token. Variants of tiles
are compiled side by side, then timed one after another; a line of the table is one kernel, in ms,
each from CUDA graphs. It prints text and, with --out, writes the records as JSON.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import TritonError

from gnomon.lowering.emit.torch_library import functions
from gnomon.lowering.emit.transport_kernels import LIBRARY, TransportKernels
from gnomon.lowering.schedules.transport.precision import DEFAULT, Precision
from gnomon.lowering.schedules.transport.stage import Plan

ROOT = Path(__file__).resolve().parents[1]
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
KERNELS = [x.kernel.name for x in TransportKernels(Plan()).launches().values()]
VARIANTS: Mapping[str, Mapping[str, int]] = {
    "default": {},
    "warps 4": {"num_warps": 4},
    "warps 8": {"num_warps": 8},
    "ahead 2, 1": {},
    "ahead 4, 2": {},
    "stages 2": {"num_stages": 2},
    "registers 168": {"num_warps": 4, "maxnreg": 168},
    "registers 128": {"num_warps": 4, "maxnreg": 128},
    "half a product": {"BR": 64, "num_warps": 4},
    "one digit": {},
}
AHEAD = {"ahead 2, 1": (2, 1), "ahead 4, 2": (4, 2)}
"""How far ahead loops over rows, and over blocks, read."""
SHAPES = {"MHA": (2, 8192, 1), "GQA": (2, 8192, 4), "short": (8, 2048, 1)}
"""batch, tokens, query heads a key head."""


def plan_of(variant: str, width: int, block: int = 64) -> Plan:
    """What the kernels of a variant are made for."""
    precision = Precision(path="f16") if variant == "one digit" else DEFAULT
    return Plan(block=block, whole=width & (width - 1) == 0, precision=precision)


def write_module(folder: Path, variant: str, width: int, block: int = 64) -> Path:
    """The module of a variant of tiles as a file."""
    tiles = dict.fromkeys(KERNELS, VARIANTS[variant])
    stages = AHEAD.get(variant, (3, 2))
    text = TransportKernels(plan_of(variant, width, block), width, stages, tiles)
    library = functions(LIBRARY)
    path = folder / f"transport_{variant.replace(' ', '_')}_{width}.py"
    path.write_text("\n\n\n".join([HEAD.strip(), *library, *text.parts()]) + "\n")
    return path


def load(path: Path) -> ModuleType:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(shape: tuple[int, int, int, int, int], device: str, dtype: torch.dtype) -> list[Tensor]:
    """q, k, w and beta of (batch, tokens, heads, key heads, width); beta in [0, 2)."""
    batch, tokens, heads, key_heads, width = shape
    generator = torch.Generator(device).manual_seed(0)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, device=device)

    q, k = draw(batch, tokens, heads, width), draw(batch, tokens, key_heads, width)
    w = torch.nn.functional.normalize(draw(batch, tokens, key_heads, width), dim=-1)
    beta = 2 * torch.rand(batch, tokens, key_heads, generator=generator, device=device)
    return [q.to(dtype), k.to(dtype), w, beta]


def run_both(module: ModuleType, given: list[Tensor], weights: list[Tensor] | None) -> list[Tensor]:
    """Versions, logits and gradients of the inputs, for weights or for ones."""
    leaves = [x.detach().requires_grad_() for x in given]
    outs = module.Transport.apply(*leaves)
    weights = weights or [torch.ones_like(x) for x in outs]
    return [*(x.detach() for x in outs), *torch.autograd.grad(outs, leaves, weights)]


def check(module: ModuleType, tokens: int, width: int, device: str, block: int) -> dict[str, float]:
    """Relative errors against the oracle; "repeat" is 0 where a second run gives the same bits."""
    sys.path.append(str(ROOT / "tests"))
    oracle = importlib.import_module("transport_oracle")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    given = inputs((1, tokens, 2, 1, width), device, dtype)
    q, k, w, beta = leaves = [x.double().requires_grad_() for x in given]
    with torch.device(device):
        wanted = oracle.expected(q, k, w, w, beta, 2 * block)
    weights = [(x != 0) * torch.randn_like(x).to(x.dtype) for x in wanted]
    dtypes = (dtype, dtype, torch.float32)
    rounded = [x.to(d) for x, d in zip(weights, dtypes, strict=True)]
    total = sum((x * d.double()).sum() for x, d in zip(wanted, rounded, strict=True))
    wanted = [*wanted, *torch.autograd.grad(total, leaves)]
    found, again = (run_both(module, given, rounded) for _ in range(2))
    names = ("qv", "kv", "loc", "dq", "dk", "dw", "dbeta")
    errors = {}
    for name, x, y in zip(names, found, (x.detach() for x in wanted), strict=True):
        x = torch.where(y != 0, x.double(), 0.0)
        errors[name] = float((x - y).norm() / y.norm().clamp(min=1e-30))
    shown = [wanted[n] != 0 for n in range(len(names))]
    same = [torch.equal(a[s], b[s]) for a, b, s in zip(found, again, shown, strict=True)]
    return {**errors, "repeat": float(not all(same))}


def replayed(run: Callable[[], Any], milliseconds: float = 40.0) -> float:
    """The milliseconds of one run, from a CUDA graph replayed many times."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def time(count: int) -> float:
        begin.record()
        for _ in range(count):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / count

    return time(max(3, int(milliseconds / max(time(3), 1e-3))))


def stage_times(module: ModuleType, given: list[Tensor]) -> dict[str, float]:
    """Each launch of one forward and backward pass alone, levels together."""
    calls: dict[str, list[tuple[Callable[..., Any], tuple[Any, ...]]]] = {}
    launches = {n: f for n, f in vars(module).items() if n.startswith("launch_")}

    def record(name: str, launch: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            calls.setdefault(name.removeprefix("launch_transport_"), []).append((launch, args))
            return launch(*args)

        return noted

    for name, launch in launches.items():
        setattr(module, name, record(name, launch))
    try:
        run_both(module, given, None)
    finally:
        for name, launch in launches.items():
            setattr(module, name, launch)
    times = {}
    for name, made in calls.items():
        times[name] = replayed(lambda made=made: [f(*args) for f, args in made])  # type: ignore[misc]
    times["forward"] = sum(t for n, t in times.items() if not n.startswith("d_"))
    times["backward"] = sum(t for n, t in times.items() if n.startswith("d_"))
    return times


def compile_all(folder: Path, width: int) -> None:
    """Every variant compiled, in as many processes: the kernels land in Triton's cache."""
    command = [sys.executable, "-m", "gnomon.benchmarks.transport_stages", "--width", str(width)]
    jobs = {
        variant: subprocess.Popen(
            [*command, "--compile", variant, "--folder", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for variant in VARIANTS
    }
    for variant, job in jobs.items():
        text, _ = job.communicate()
        if job.returncode:
            print(f"{variant}: {text[-600:]}", flush=True)


def measured(folder: Path, width: int) -> list[dict[str, Any]]:
    """The records of every variant and shape."""
    records = []
    for variant in VARIANTS:
        module = load(write_module(folder, variant, width))
        for name, (batch, tokens, group) in SHAPES.items():
            if variant != "default" and name != "MHA":
                continue
            heads = 2048 // width
            shape = (batch, tokens, heads, heads // group, width)
            try:
                times = stage_times(module, inputs(shape, "cuda", torch.bfloat16))
            except (RuntimeError, TritonError) as error:  # it needs more than there is
                print(f"{variant} {name}: {str(error)[:200]}", flush=True)
                torch.cuda.synchronize()
                continue
            records.append({"variant": variant, "shape": name, "width": width, "ms": times})
            shown = " ".join(f"{k} {v:.3f}" for k, v in times.items())
            print(f"D{width} {name} {variant}: {shown}", flush=True)
    return records


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--tokens", type=int, nargs="*", default=[640, 1024])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--compile", default="")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="gnomon-"))
    if given.compile:
        module = load(write_module(folder, given.compile, given.width))
        run_both(module, inputs((2, 1024, 4, 4, given.width), "cuda", torch.bfloat16), None)
        return
    if given.device == "cuda":
        compile_all(folder, given.width)
    module = load(write_module(folder, "default", given.width, given.block))
    errors = {}
    for tokens in given.tokens:
        errors[tokens] = check(module, tokens, given.width, given.device, given.block)
        shown = " ".join(f"{name} {x:.1e}" for name, x in errors[tokens].items())
        print(f"D{given.width} T{tokens}: {shown}", flush=True)
    records = measured(folder, given.width) if given.device == "cuda" else []
    if given.out:
        given.out.write_text(json.dumps({"errors": errors, "records": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What a process with TileLang runs: printed programs lowered to CUDA, or run on the CPU."""

import importlib.util
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_folder = tempfile.TemporaryDirectory(prefix="gnomon-")
_FLAGS = ["-cubin", "-std=c++17", "-O3", "-DENABLE_BF16", "--expt-relaxed-constexpr", "-Xptxas=-v"]


def _program(source: str, name: str, sizes: dict[str, int], symbols: list[str]) -> Any:
    """The program that the builder of that name in a module makes."""
    from tilelang.language import dynamic

    path = Path(_folder.name) / f"kernels_{abs(hash(source))}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, name)(**sizes, **{symbol: dynamic(symbol) for symbol in symbols})


def lower(source: str, name: str, sizes: dict[str, int], symbols: list[str], arch: str) -> str:
    """The CUDA source of a program, for a GPU that is not there."""
    import tilelang
    from tilelang import tvm

    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    with target:
        lowered = tilelang.lower(_program(source, name, sizes, symbols), target=target)
    return str(lowered.kernel_source)


def assemble(cuda: str, arch: str) -> dict[str, int]:
    """Registers and spilled bytes of a thread, as nvcc reports them; nothing without nvcc."""
    import tilelang

    compiler = shutil.which("nvcc")
    if compiler is None:
        return {}
    package = Path(tilelang.__file__).parent
    path = Path(_folder.name) / "kernel.cu"
    path.write_text(cuda)
    include = [f"-I{package / 'src'}", f"-I{package / '3rdparty/cutlass/include'}"]
    files = [str(path), "-o", str(path.with_suffix(".cubin"))]
    command = [compiler, f"-arch={arch}", *_FLAGS, *include, *files]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        "registers": max(int(n) for n in re.findall(r"Used (\d+) registers", log)),
        "spills": sum(int(n) for n in re.findall(r"(\d+) bytes spill", log)),
    }


def run(source: str, name: str, sizes: dict[str, int], arguments: list[Any]) -> list[Any]:
    """Runs a program that was printed for the CPU; returns its arguments as it leaves them."""
    import tilelang
    import torch

    logging.disable(logging.INFO)
    program = _program(source, name, sizes, [])
    kernel = tilelang.compile(program, target={"kind": "c"})
    tensors = [torch.from_numpy(x) if hasattr(x, "shape") else x for x in arguments]
    kernel(*tensors)
    return [x.numpy() if isinstance(x, torch.Tensor) else x for x in tensors]

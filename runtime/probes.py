"""Small trials of each target, each in a process of its own: what works here, and why not.

`python probes.py NAME` prints one line that says what was done; a failure is an exception. The file
imports nothing of gnomon, so that a broken installation can still be looked at.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

TRITON = """
import triton
import triton.language as tl


@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + o, tl.load(x + o, mask=o < n) + 1, mask=o < n)
"""

GLUON = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def add_one(x, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    o = gl.arange(0, BLOCK, layout=layout)
    gl.store(x + o, gl.load(x + o) + 1)
"""

TILELANG = """
import tilelang.language as T


@T.prim_func
def add_one(x: T.Tensor((128,), T.float32)):
    with T.Kernel(1, threads=128) as i:
        for j in T.Parallel(128):
            x[j] = x[j] + 1
"""


def _module(name: str, text: str) -> ModuleType:
    """A module with a file: the compilers read the source of their kernels there."""
    folder = tempfile.mkdtemp(prefix="gnomon-")
    path = Path(folder) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def numba() -> str:
    """A loop over threads, and a matrix product through SciPy's BLAS."""
    import numba as nb
    import numpy as np

    @nb.njit(parallel=True)
    def multiply(a, b, c):  # type: ignore[no-untyped-def]
        for i in nb.prange(2):
            np.dot(a[i], b[i], c[i])

    a = np.arange(8.0, dtype=np.float32).reshape(2, 2, 2)
    made = np.zeros_like(a)
    multiply(a, a, made)
    assert (made == a @ a).all()
    return f"a kernel ran on {nb.get_num_threads()} threads"


def triton() -> str:
    """Compile for sm_90, with or without a GPU."""
    return _compiled("triton_probe", TRITON, {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"})


def gluon() -> str:
    """Compile for sm_90, with or without a GPU."""
    return _compiled("gluon_probe", GLUON, {"x": "*fp32", "BLOCK": "constexpr"})


def _compiled(name: str, text: str, signature: dict[str, str]) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = _module(name, text).add_one
    made: type = ASTSource
    if name.startswith("gluon"):
        from triton.experimental.gluon._runtime import GluonASTSource

        made = GluonASTSource
    source = made(fn=kernel, signature=signature, constexprs={"BLOCK": 128})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert len(compiled.asm["cubin"]) > 0
    return "a kernel was compiled for sm_90"


def interpreter() -> str:
    """Run in Triton's interpreter (TRITON_INTERPRET=1)."""
    import torch

    x = torch.zeros(128)
    _module("triton_probe", TRITON).add_one[(1,)](x, 128, BLOCK=128)
    assert bool((x == 1).all())
    return "a kernel ran on the CPU, interpreted: for tests"


def cuda() -> str:
    """Run a Triton kernel on the GPU."""
    import torch

    if not torch.cuda.is_available():
        why = (
            f"is for CUDA {torch.version.cuda}, sees no device"
            if torch.version.cuda
            else ("is a build without CUDA")
        )
        raise RuntimeError(f"torch {torch.__version__} {why}")
    x = torch.zeros(128, device="cuda")
    _module("triton_probe", TRITON).add_one[(1,)](x, 128, BLOCK=128)
    assert bool((x == 1).all())
    return f"a kernel ran on {torch.cuda.get_device_name()}"


def tilelang() -> str:
    """Lower to CUDA source for sm_90a, with or without a GPU."""
    import tilelang
    from tilelang import tvm

    kernel = _module("tilelang_probe", TILELANG).add_one
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        made = tilelang.lower(kernel, target=target)
    assert "__global__" in made.kernel_source
    return "a kernel was lowered to CUDA source for sm_90a"


PROBES: dict[str, Callable[[], str]] = {
    "numba": numba,
    "triton": triton,
    "triton on a GPU": cuda,
    "triton interpreter": interpreter,
    "tilelang": tilelang,
    "gluon": gluon,
}

if __name__ == "__main__":
    print(PROBES[sys.argv[1]]())

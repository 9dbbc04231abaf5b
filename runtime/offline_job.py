"""What a compiling process runs: one kernel for one target, without a device and without torch."""

import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

_folder = tempfile.TemporaryDirectory(prefix="gnomon-")
_modules: dict[str, ModuleType] = {}


def compile_source(
    source: str,
    kernel: str,
    signature: dict[str, str],
    constexprs: dict[str, Any],
    divisible: list[str],
    target: tuple[str, int | str, int],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Shared memory, registers, spills, instructions and seconds of the compiled kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(_module(source), kernel)
    places = {name: place for place, name in enumerate(function.arg_names)}
    compilable = ASTSource(
        fn=function,
        signature={name: signature[name] for name in function.arg_names},
        constexprs=constexprs,
        attrs={(places[name],): [["tt.divisibility", 16]] for name in divisible},
    )
    begin = time.perf_counter()
    compiled = triton.compile(compilable, target=GPUTarget(*target), options=options)
    seconds = time.perf_counter() - begin
    read = _resources_of_cuda if target[0] == "cuda" else _resources_of_hip
    fuses = options["enable_fp_fusion"]
    found = read(compiled.asm, target[1], fuses=fuses)
    return {"shared": compiled.metadata.shared, "seconds": seconds, **found}


def _module(source: str) -> ModuleType:
    """The module; Triton reads the text of its kernels from the file."""
    if source not in _modules:
        path = Path(_folder.name) / f"kernels_{len(_modules)}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        _modules[source] = module
    return _modules[source]


def _resources_of_cuda(
    asm: dict[str, Any], architecture: int | str, *, fuses: bool
) -> dict[str, Any]:
    """Registers of a thread and spilled bytes, as the assembler reports them."""
    from triton.backends.nvidia.compiler import get_ptxas

    ptx = asm["ptx"]
    found = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    assert found is not None
    path = Path(_folder.name) / "kernel.ptx"
    path.write_text(ptx)
    out = Path(_folder.name) / "kernel.cubin"
    command = [get_ptxas(int(architecture)).path, "-v", f"--gpu-name={found[1]}", path, "-o", out]
    command += [] if fuses else ["--fmad=false"]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    kinds = {
        "wgmma": "wgmma.mma_async",
        "mma": "mma.sync",
        "tcgen05": "tcgen05.mma",
        "tma": "cp.async.bulk",
    }
    return {
        "registers": sum(int(n) for n in re.findall(r"Used (\d+) registers", log)),
        "spills": sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", log)),
        "kinds": sorted(kind for kind, text in kinds.items() if text in ptx),
        "warnings": sorted(set(re.findall(r"\((C\d+)\)", log))),
        "assembly": ptx,
    }


def _resources_of_hip(
    asm: dict[str, Any], architecture: int | str, *, fuses: bool
) -> dict[str, Any]:
    """Vector registers of a thread (accumulators included), and those spilled to memory, in bytes.

    Scalar registers spill to lanes of vector registers, which are counted there.
    """
    text = asm["amdgcn"]

    def count(name: str) -> int:
        return sum(int(n) for n in re.findall(rf"\.{name}:\s+(\d+)", text))

    return {
        "registers": count("vgpr_count"),
        "spills": 4 * count("vgpr_spill_count"),
        "kinds": sorted(kind for kind in ("mfma", "wmma") if f"v_{kind}" in text),
        "warnings": [],
        "assembly": text,
    }

"""What a process with Triton runs: a printed Gluon kernel compiled for a GPU that is not there."""

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

_folder = tempfile.TemporaryDirectory(prefix="gnomon-")


def compile_source(
    source: str,
    kernel: str,
    signature: dict[str, str],
    constexprs: dict[str, Any],
    divisible: list[str],
    num_warps: int,
) -> dict[str, Any]:
    """PTX, shared memory and launched warps of a kernel compiled for sm_90."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    path = Path(_folder.name) / "kernels.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    function = getattr(module, kernel)
    places = {name: place for place, name in enumerate(function.arg_names)}
    compilable = GluonASTSource(
        fn=function,
        signature={name: signature[name] for name in function.arg_names},
        constexprs=constexprs,
        attrs={(places[name],): [["tt.divisibility", 16]] for name in divisible},
    )
    target = GPUTarget("cuda", 90, 32)
    compiled = triton.compile(compilable, target=target, options={"num_warps": num_warps})
    return {"ptx": compiled.asm["ptx"], "shared": compiled.metadata.shared}

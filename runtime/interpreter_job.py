"""What the process of the Triton interpreter runs; TRITON_INTERPRET=1 is set before it starts."""

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

Call = tuple[str, int, dict[str, Any]]
_folder = tempfile.TemporaryDirectory(prefix="gnomon-")
_modules: dict[str, ModuleType] = {}


def run(source: str, calls: list[Call]) -> list[dict[str, Any]]:
    """Launches the kernels of a module one after another; the tensors of each call afterwards."""
    import torch

    torch.set_num_threads(1)
    module = _module(source)
    results = []
    for name, programs, arguments in calls:
        given = {k: _described(*x) if isinstance(x, tuple) else x for k, x in arguments.items()}
        getattr(module, name)[(programs,)](**given)
        held = {k: x[0] if isinstance(x, tuple) else x for k, x in arguments.items()}
        results.append({k: x for k, x in held.items() if isinstance(x, torch.Tensor)})
    return results


def _described(x: Any, *extents: int) -> Any:
    """A descriptor of tiles of one head of x [batch, time, head, ...], or of one matrix of many."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    leading = x.dim() - len(extents)
    x = x.transpose(1, 2) if leading == 2 else x
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1] * leading + list(extents))


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

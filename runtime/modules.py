"""Generated source on disk, imported as a module: Numba and Triton read the file they compile.

A module's file name holds the digest of its text, so that equal text is one file, and a file once
written never changes. Files appear whole (written beside, then renamed), so several processes may
race. Where the folder cannot be written, a folder of this process takes its place, with a warning.
"""

import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from gnomon.runtime.settings import logger, settings

_PACKAGE = "gnomon_generated"
_LOADED: dict[Path, ModuleType] = {}
_LOCK = threading.Lock()


def load(name: str, source: str) -> ModuleType:
    """The module of a generated source; equal sources are one module in a process."""
    path = _write(name, source)
    with _LOCK:
        if path not in _LOADED:
            _LOADED[path] = _import(path)
        return _LOADED[path]


def _write(name: str, source: str) -> Path:
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    file = f"{name}_{digest}.py"
    given = settings().kernel_dir
    if given is not None and (given / file).is_file():
        logger().warning("using %s instead of the generated kernel", given / file)
        return given / file
    folder = settings().cache / "kernels"
    try:
        return _place(folder / file, source)
    except OSError as error:
        spare = _spare_folder(str(folder), str(error))
        return _place(spare / file, source)


def _place(path: Path, source: str) -> Path:
    text = source.encode()  # UTF-8, whatever the locale says: formulas have Greek letters
    if path.is_file() and path.read_bytes() == text:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    return path


@lru_cache(maxsize=8)
def _spare_folder(folder: str, reason: str) -> Path:
    """A folder of this process, made once for a folder that cannot be written."""
    logger().warning(
        "%s cannot be written (%s): kernels of this process are kept elsewhere", folder, reason
    )
    return Path(tempfile.mkdtemp(prefix="gnomon-"))


def _import(path: Path) -> ModuleType:
    # the name says whose module it is: tests poison the memory that modules of gnomon ask for
    name = f"{_PACKAGE}.{path.stem}"
    if _PACKAGE not in sys.modules:
        sys.modules[_PACKAGE] = ModuleType(_PACKAGE, "The modules that this process generated.")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickling, and Triton's look-up of sources, go by this table
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

"""Tiles that were timed with another compiler may not compile with this one: then the default runs.

The launch functions of a generated module are names of that module, looked up at each call, so that
a guard can stand in front of them. A launch allocates what it writes: it can be done again.
"""

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from gnomon.runtime.settings import logger

_COMPILER = frozenset(
    {"OutOfResources", "CompilationError", "CompileTimeAssertionFailure", "PTXASError"}
)
_WORDS = ("PassManager::run failed", "out of resource", "ptxas", "failed to translate module")


def guard(module: ModuleType, spare: Callable[[], ModuleType]) -> None:
    """Launch by the module that `spare` makes, where the tiles of this one do not compile here."""
    for name, launch in list(vars(module).items()):
        if name.startswith("launch_"):
            setattr(module, name, _guarded(module, name, launch, spare))


def _guarded(
    module: ModuleType, name: str, launch: Callable[..., Any], spare: Callable[[], ModuleType]
) -> Callable[..., Any]:
    @wraps(launch)
    def run(*args: Any) -> Any:
        try:
            result = launch(*args)
        except Exception as error:
            if not is_of_the_compiler(error):
                raise
            first = str(error).strip().partition("\n")[0][:200]
            logger().warning(
                "%s: its tuned tiles do not compile here (%s: %s); the default is used",
                name,
                type(error).__name__,
                first,
            )
            instead: Callable[..., Any] = getattr(spare(), name)
            setattr(module, name, instead)
            return instead(*args)
        setattr(module, name, launch)  # it compiles: nothing to guard any more
        return result

    return run


def is_of_the_compiler(error: Exception) -> bool:
    """Whether an error says that a kernel cannot be made, rather than that a call is wrong."""
    if type(error).__name__ in _COMPILER:
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)

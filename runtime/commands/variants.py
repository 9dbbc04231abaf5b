"""The variant that a command is about: `fox`, or `file.py:name` of the user."""

import difflib
import importlib.util
import linecache
import sys
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Annotated

import typer

from gnomon.dsl.errors import GnomonError, InputError, VariantError
from gnomon.dsl.nodes import Where
from gnomon.dsl.trace import Declaration

Variant = Annotated[
    str,
    typer.Argument(
        metavar="VARIANT",
        help="A name of the catalogue, or [cyan]file.py:name[/].",
        show_default=False,
    ),
]


def find(text: str) -> Declaration:
    """The declaration that the text names.

    Raises InputError with near names where there is none, the user's own VariantError, or a
    VariantError at the line of the user's file that failed.
    """
    path, _, name = text.rpartition(":")
    if text.endswith(".py"):
        path, name = text, ""
    if not path:
        from gnomon.dsl import catalogue

        return catalogue.find(text)
    file = Path(path)
    if not file.is_file():
        raise InputError("VARIANT", "an existing file before the colon", repr(path))
    return _pick(_load(file), file, name)


def _pick(module: ModuleType, file: Path, name: str) -> Declaration:
    found = {x.name: x for x in vars(module).values() if isinstance(x, Declaration)}
    own = [n for n, x in found.items() if x.function.__module__ == module.__name__]
    if not name and len(own) == 1:
        return found[own[0]]
    chosen = getattr(module, name, None) if name else None
    if isinstance(chosen, Declaration):
        return chosen
    if chosen is not None:
        fix = "decorate it with @gn.variant" if callable(chosen) else ""
        raise InputError("VARIANT", "a declared variant", f"{name}, a {_kind(chosen)}", fix)
    near = difflib.get_close_matches(name, found, 3)
    has = f"{file} declares {', '.join(own)}" if own else f"{file} declares no variant"
    expected = "a variant of the file after the colon"
    fix = f"did you mean {' or '.join(near)}?" if near else has
    raise InputError("VARIANT", expected, repr(name) if name else "none", fix)


def _kind(value: object) -> str:
    return "function" if callable(value) else type(value).__name__


def _load(file: Path) -> ModuleType:
    """The module of a user's file; its neighbours can be imported."""
    name = f"gnomon_user_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise InputError("VARIANT", "a Python file", str(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except GnomonError:
        raise
    except SyntaxError as error:
        raise _syntax_error(error) from None
    except (Exception, SystemExit) as error:  # whatever a user's file does when it is imported
        raise _failed(error, file) from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module


def _syntax_error(error: SyntaxError) -> VariantError:
    where = Where(error.filename or "", error.lineno or 1, (error.text or "").strip(), "<module>")
    return VariantError(f"{type(error).__name__}: {error.msg}", "", where)


def _failed(error: BaseException, file: Path) -> VariantError:
    """The error at the last line of the user's file that was running."""
    place = Where(str(file.resolve()), 1, "", "<module>")
    step: TracebackType | None = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if Path(code.co_filename) == file.resolve():
            line = linecache.getline(code.co_filename, step.tb_lineno).strip()
            place = Where(code.co_filename, step.tb_lineno, line, code.co_name)
        step = step.tb_next
    return VariantError(f"{type(error).__name__}: {error}", "", place)

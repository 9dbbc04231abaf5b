"""What all commands share: consoles, JSON, and errors as text with an exit code."""

import json
import sys
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from gnomon.dsl.errors import GnomonError
from gnomon.runtime.settings import settings

FAILED, REFUSED = 1, 2
"""Exit codes: something that was checked is wrong; the question itself was."""


def console() -> Console:
    """The console of results; a pipe gets 120 columns."""
    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 120)


def progress_console() -> Console:
    """The console of what happens meanwhile; a result that is read by a program stays clean."""
    return Console(stderr=True, highlight=False)


def write(text: str) -> None:
    """Text as it is, with one line end."""
    sys.stdout.write(text.rstrip("\n") + "\n")


def write_json(value: object) -> None:
    """One JSON value, indented."""
    write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def examples(*lines: tuple[str, str]) -> str:
    """The foot of a help page: command, what it does."""
    width = max(len(command) for command, _ in lines)
    rows = [f"[cyan]{command.ljust(width)}[/]  [dim]{what}[/]" for command, what in lines]
    return "\n".join(["[bold]Examples[/]", *rows])


class Commands(TyperGroup):
    """The group of commands: an error of ours is text on stderr and exit code 2, no traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            settings()
        except ValueError as error:
            raise refused(str(error)) from None
        try:
            return super().invoke(ctx)
        except GnomonError as error:
            raise refused(str(error)) from None
        except OSError as error:
            if error.filename is None:  # a closed pipe, say
                raise
            raise refused(f"{error.filename}: {error.strerror}") from None


def refused(text: str) -> typer.Exit:
    """Print an error; what is returned ends the process."""
    Console(stderr=True, highlight=False).print(text, style="red", markup=False, soft_wrap=True)
    return typer.Exit(REFUSED)

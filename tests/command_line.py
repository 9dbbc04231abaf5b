"""Runs a command in this process."""

from typing import Any

from typer.testing import CliRunner

from gnomon.runtime.commands import app


def run(*arguments: str) -> Any:
    """The result: exit_code, stdout, stderr. An unforeseen exception is raised here."""
    environment = {"COLUMNS": "100", "TERM": "dumb"}
    return CliRunner().invoke(app, arguments, catch_exceptions=False, env=environment)


def text(*arguments: str) -> str:
    """What a command that succeeds prints."""
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


def refusal(*arguments: str) -> str:
    """What a command that is refused says; it prints nothing else."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    return str(result.stderr)

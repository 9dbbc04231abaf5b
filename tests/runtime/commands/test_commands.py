"""The command line as a whole: help, exit codes, start-up, the console entry."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import refusal, run, text

COMMANDS = ("list", "show", "lower", "check", "bench", "export", "demo", "doctor")


def test_the_help_has_one_line_for_each_command() -> None:
    lines = [re.sub(r"[│ ]+", " ", line).strip() for line in text("--help").splitlines()]
    for name in COMMANDS:
        (line,) = (line for line in lines if line.startswith(f"{name} "))
        assert line.endswith("."), f"{name}: {line} goes on"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples(name: str) -> None:
    shown = text(name, "--help")
    foot = shown[shown.index("Examples") :].splitlines()[1:]
    examples = [line for line in foot if line.strip()]
    assert len(examples) >= 2
    assert examples[0].strip().startswith(f"gnomon {name}")


def test_an_unknown_command_has_near_ones() -> None:
    assert "Did you mean 'list'?" in refusal("lst")


def test_a_wrong_setting_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNOMON_LOG", "loud")
    assert refusal("show", "fox") == (
        "GNOMON_LOG: expected one of debug, info, warning, error; got 'loud'\n"
    )


def test_the_version_is_shown() -> None:
    assert re.fullmatch(r"gnomon \S+\n", text("--version"))


def test_the_console_entry_lists_without_importing_a_compiler() -> None:
    """Start-up is quick because torch, triton and numba are not imported."""
    command = [sys.executable, "-X", "importtime", "-m", "gnomon", "list", "--json"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert len(json.loads(done.stdout)) >= 80
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "gnomon.dsl.catalogue" in imported
    assert imported.isdisjoint({"torch", "triton", "numba", "scipy", "tilelang", "matplotlib"})


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gnomon.runtime.commands.show.find", interrupted)
    result = run("show", "fox")
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr

"""Which commit the results name."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from gnomon.benchmarks import machine


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    return tmp_path


def test_a_clean_and_a_changed_checkout(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "--short=12", "HEAD")
    (checkout / "untracked").write_text("")
    assert machine.commit() == head
    (checkout / "file").write_text("2")
    assert machine.commit() == f"{head}-dirty"


def test_a_copy_says_it_by_a_variable(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(checkout / ".git")
    assert machine.commit() == "unknown"
    monkeypatch.setenv("GNOMON_COMMIT", "0123abc")
    assert machine.commit() == "0123abc"


def test_a_copy_inside_of_another_repository(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "copy").mkdir()
    monkeypatch.setattr(machine, "ROOT", checkout / "copy")
    assert machine.commit() == "unknown"


def test_versions_of_what_is_there_and_of_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", {"a": "no-such-package-at-all"})
    monkeypatch.setattr(machine, "_output", lambda _: "570.1\n570.1\n")
    found = machine.versions()
    assert (found["torch"], found["driver"], found["a"]) == (torch.__version__, "570.1", None)

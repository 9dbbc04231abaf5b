"""`gnomon doctor`: trials of the targets, and what is said of those that fail."""

import json
import sys
from pathlib import Path

import pytest
import torch
from command_line import run, text

from gnomon.runtime import probes
from gnomon.runtime.commands import doctor


@pytest.fixture
def two_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that compiles a kernel, and one that fails where there is no GPU."""
    chosen = {name: probes.PROBES[name] for name in ("triton", "triton on a GPU")}
    monkeypatch.setattr(probes, "PROBES", chosen)
    monkeypatch.setattr(doctor, "NEEDED", ("triton",))


@pytest.mark.usefixtures("two_probes")
def test_an_object_for_a_program() -> None:
    found = json.loads(text("doctor", "--json"))
    assert found["installed"]["torch"] == torch.__version__
    assert found["installed"]["python"] == sys.version.split()[0]
    assert found["targets"]["triton"] == {
        "works": True,
        "what": "a kernel was compiled for sm_90",
    }
    gpu = found["targets"]["triton on a GPU"]
    assert gpu["works"] == torch.cuda.is_available()
    assert gpu["works"] or gpu["what"].startswith(f"RuntimeError: torch {torch.__version__}")
    assert "openblas" in " ".join(found["machine"]["blas"])
    assert found["settings"]["GNOMON_LOG"] == "warning"


def test_a_missing_target_is_told_and_fails_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = {"numba": (False, "ModuleNotFoundError: No module named 'numba'")}
    monkeypatch.setattr(doctor, "attempt", lambda name: tried.get(name, (True, "a kernel ran")))
    result = run("doctor")
    assert result.exit_code == 1
    (line,) = (line for line in result.stdout.splitlines() if "ModuleNotFoundError" in line)
    assert line.split()[:2] == ["numba", "no"]
    assert [line.split()[-3:] for line in result.stdout.splitlines() if "tilelang" in line][1] == [
        "a",
        "kernel",
        "ran",
    ]


def test_a_probe_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = tmp_path / "probes.py"
    dying.write_text("import os\n\nos.abort()\n")
    monkeypatch.setattr(probes, "__file__", str(dying))
    assert doctor.attempt("numba") == (False, "the process died with exit status -6")
    dying.write_text("import time\n\ntime.sleep(60)\n")
    monkeypatch.setattr(doctor, "PATIENCE", 0.2)
    assert doctor.attempt("numba") == (False, "no answer in 0.2 s")


def test_every_target_has_a_probe() -> None:
    assert {"numba", "triton", "tilelang", "gluon"} <= set(probes.PROBES)

"""What a process with a GPU does, in Triton's interpreter on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__)


@pytest.mark.parametrize("name", ["fox"])
def test_a_candidate_is_launched_and_checked_with_its_tiles(name: str) -> None:
    """First launch, the gate, and a gate that sees wrong numbers and unsteady ones."""
    root = HERE.parents[2]
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(root / ".pyroot"), str(root / "tests")]),
    }
    job = HERE.with_name("gpu_job_in_interpreter.py")
    done = subprocess.run(
        [sys.executable, str(job), name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    kernels = [f"{name}_{role}" for role in ("fwd", "bwd_rows", "bwd_columns")]
    assert found["kernels"] == kernels
    assert found["seen"] == [[kernel, 16, 32] for kernel in kernels]
    assert set(found["errors"]) == {"out", "lse", "dq", "dk", "dv", "dlog_f"}
    assert max(found["errors"].values()) < 1e-4
    assert found["wrong"].startswith("out 1.0e-02 of 1e-05")
    assert found["unsteady"].startswith("out differs from run to run")

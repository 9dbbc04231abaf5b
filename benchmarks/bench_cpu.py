"""The CPU kernels beside torch's SDPA: `make bench`.

B = 1, H = 8, T = 2048, d = 64, fp32, causal, one and two threads; BLAS has one thread on either
side. SDPA runs in a process of its own, before and after ours; its figure is the median of all its
rounds. The records land in benchmarks/results/cpu.json.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gnomon as gn
from gnomon.benchmarks import machine

HERE = Path(__file__).parent
ROUNDS = 9
SHAPE = (1, 2048, 8, 64)
LIMITS = {"fwd": 2.5, "fwd_bwd": 3.0}


def without_openblas() -> dict[str, str]:
    """The environment without what would tie OpenBLAS to another machine's kernels."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}


def sdpa(threads: int) -> dict[str, list[float]]:
    """The seconds of SDPA's rounds."""
    command = [sys.executable, str(HERE / "sdpa_cpu.py"), str(threads), str(ROUNDS)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=without_openblas(), timeout=300
    )
    times: dict[str, list[float]] = json.loads(done.stdout)
    return times


@pytest.fixture(scope="module")
def records() -> Iterator[list[dict[str, Any]]]:
    """What was measured; written to the results when all is done."""
    found: list[dict[str, Any]] = []
    yield found
    versions = {"python": platform.python_version(), "torch": torch.__version__, "gnomon": "0.1.0"}
    device = {"processor": machine.processor(), "cores": os.cpu_count()}
    result = {"device": device, "versions": versions, "commit": machine.commit(), "records": found}
    path = HERE / "results" / "cpu.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def call(name: str, which: str) -> Callable[[], Any]:
    """One call of ours, forward or forward and backward, compiled and warm."""
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(SHAPE) for _ in range(4))
    extra: dict[str, Any] = {}
    if name == "fox":
        extra["log_f"] = torch.nn.functional.logsigmoid(torch.randn(1, 2048, 8) + 4)
    attention = gn.compile(getattr(gn.catalogue, name))
    if which == "fwd":
        return lambda: attention(q, k, v, **extra)
    leaves = [x.requires_grad_() for x in (q, k, v, *extra.values())]
    return lambda: torch.autograd.grad(attention(q, k, v, **extra), leaves, do)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("which", ["fwd", "fwd_bwd"])
@pytest.mark.parametrize("name", ["fox", "rope", "tapa"])
def test_beside_sdpa(
    benchmark: Any, records: list[dict[str, Any]], name: str, which: str, threads: int
) -> None:
    """Ours against SDPA; the ratio is a record, a miss of the limit is printed and no failure."""
    before = sdpa(threads)[which]
    torch.set_num_threads(threads)
    benchmark.pedantic(call(name, which), rounds=ROUNDS, warmup_rounds=2)
    ours = benchmark.stats.stats.median
    peer = statistics.median([*before, *sdpa(threads)[which]])
    record = {
        "variant": name,
        "implementation": "gnomon",
        "B": 1,
        "T": 2048,
        "H": 8,
        "D": 64,
        "dtype": "fp32",
        "threads": threads,
        "pass": which,
        "median_ms": round(1e3 * ours, 2),
        "spread_ms": round(1e3 * benchmark.stats.stats.iqr, 2),
        "sdpa_ms": round(1e3 * peer, 2),
        "ratio_to_sdpa": round(ours / peer, 3),
    }
    records.append(record)
    benchmark.extra_info.update(record)
    if name != "tapa" and record["ratio_to_sdpa"] > LIMITS[which]:
        print(f"{name} {which}: {record['ratio_to_sdpa']} of SDPA, the limit is {LIMITS[which]}")

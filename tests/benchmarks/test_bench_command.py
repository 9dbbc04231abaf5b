"""`gnomon bench`: the table, the file, the exit code, what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import refusal, run, text

from gnomon.benchmarks.run import Plan
from gnomon.runtime.commands import bench

RECORD = {
    "variant": "fox",
    "implementation": "gnomon",
    "B": 2,
    "T": 8192,
    "H": 16,
    "groups": 1,
    "D": 128,
    "dtype": "bf16",
    "pass": "fwd",
    "median_ms": 1.2345,
    "spread": 0.01,
    "ratio_to_cudnn": 1.23,
    "peak_mib": 64.5,
}
NOT_TIMED = {"median_ms": None, "spread": None, "ratio_to_cudnn": None, "peak_mib": None}
PEER = {**RECORD, **NOT_TIMED, "implementation": "flex", "absent": "not here"}
WRONG = {**RECORD, **NOT_TIMED, "error": "WrongKernelError: dq 3e-2"}
LEFT = {"B": 1, "T": 32768, "H": 8, "groups": 4, "D": 128, "pass": "fwd", "reason": "too late"}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that were run; each has two sets."""
    seen: list[Plan] = []

    def fake(plan: Plan) -> Iterator[dict[str, Any]]:
        seen.append(plan)
        document: dict[str, Any] = {"device": {"name": "H200"}, "commit": "0123abc"}
        document |= {"records": [], "left_out": []}
        for record in (PEER, WRONG if "tapa" in [v.name for v in plan.variants] else RECORD):
            document["records"] += [record]
            yield document
        document["left_out"].append(LEFT)
        yield document

    monkeypatch.setattr("gnomon.benchmarks.run.run", fake)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return seen


def test_what_is_planned_by_default(plans: list[Plan]) -> None:
    run("bench")
    (plan,) = plans
    assert [v.name for v in plan.variants] == ["fox", "tapa", "alibi", "rope", "nope"]
    assert (plan.device, plan.dtype, plan.rounds, plan.groups) == ("cuda", "bf16", 5, 1)
    assert [str(p) for p in plan.problems()][:3] == [
        "T=2048 D=128 B=8 H=16",
        "T=2048 D=64 B=8 H=32",
        "T=8192 D=128 B=2 H=16",
    ]
    assert (plan.sample_ms, plan.warm_ms, plan.budget) == (250.0, 60.0, None)
    assert {"cudnn", "flash", "flex", "fla_triton", "fla_tilelang", "fox_official", "torch"} < {
        peer.name for peer in plan.chosen_peers()
    }


def test_every_option_reaches_the_plan(plans: list[Plan], tmp_path: Path) -> None:
    text(
        *("bench", "fox", "rope", "--lengths", "4096, 8192", "--dims", "64", "--passes", "fwd"),
        *("--groups", "4", "--rounds", "7", "--sample-ms", "50", "--peers", "cudnn,flex"),
        *("--fox-official", str(tmp_path), "--tapa-release", str(tmp_path), "--budget", "480"),
    )
    (plan,) = plans
    assert [v.name for v in plan.variants] == ["fox", "rope"]
    assert (plan.lengths, plan.dims, plan.passes) == ([4096, 8192], [64], ["fwd"])
    assert (plan.groups, plan.rounds, plan.sample_ms, plan.budget) == (4, 7, 50.0, 480.0)
    assert plan.peers == ["cudnn", "flex"]
    assert plan.folders == {"fox_official": tmp_path, "tapa_release": tmp_path}


@pytest.mark.usefixtures("plans")
def test_the_table_and_the_progress() -> None:
    result = run("bench", "fox")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert ["H200,", "commit", "0123abc"] in lines
    assert ["fox", "gnomon", "1.234", "0.010", "1.23", "64"] in lines
    assert ["fox", "flex", "not", "here"] in lines
    assert "T=8192 D=128 B=2 H=16 fwd: 0 of 1 timed" in result.stderr
    assert "T=8192 D=128 B=2 H=16 fwd: 1 of 1 timed" in result.stderr
    assert "left out: T=32768 D=128 B=1 H=8 groups=4 fwd: too late" in result.stderr


@pytest.mark.usefixtures("plans")
def test_the_file_and_the_object(tmp_path: Path) -> None:
    out = tmp_path / "results" / "h200.json"
    result = run("bench", "fox", "--out", str(out), "--json")
    assert json.loads(out.read_text()) == json.loads(result.stdout)
    assert json.loads(out.read_text())["records"] == [PEER, RECORD]
    assert [path.name for path in out.parent.iterdir()] == ["h200.json"]


@pytest.mark.usefixtures("plans")
def test_a_wrong_kernel_has_exit_code_1() -> None:
    result = run("bench", "tapa")
    assert result.exit_code == 1
    assert "WrongKernelError: dq 3e-2" in result.stdout


def test_a_run_that_ends_early_leaves_its_sets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def dying(_: Plan) -> Iterator[dict[str, Any]]:
        yield {"records": [RECORD], "left_out": []}
        raise KeyboardInterrupt

    monkeypatch.setattr("gnomon.benchmarks.run.run", dying)
    plan: Any = None
    with pytest.raises(KeyboardInterrupt):
        bench.measured(plan, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["records"] == [RECORD]


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what is said without a GPU")
def test_no_gpu() -> None:
    version = torch.__version__
    assert refusal("bench", "fox") == (
        f"--device: expected a CUDA device; got cuda; torch {version} has none\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rounds", "4"), "--rounds: expected at least 5; got 4"),
        (("--lengths", "2k"), "--lengths: expected numbers above 0, as in 2048,8192; got '2k'"),
        (("--dims", "0"), "--dims: expected numbers above 0"),
        (("--dims", ""), "--dims: expected numbers above 0"),
        (("--peers", "cudn", "--device", "cpu", "--lengths", "64", "--dims", "16"), "got cudn"),
        (("foxx",), "fox"),
    ],
)
def test_questions_that_make_no_sense(arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal("bench", *arguments)

"""`gnomon tune`: what is refused, what is written, and what it says; a fake compiler and GPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import refusal, run, text
from fake_gpu import FAST, HERE, TOOLS, FakeBench, FakeClock, FakeCompiler

from gnomon.autotune import bench, compiling, fleet
from gnomon.autotune.store import Store
from gnomon.runtime import here
from gnomon.runtime.commands import tune_options
from gnomon.runtime.tuned import Table


class Compiler(FakeCompiler):
    def __init__(self, *args: Any) -> None:
        super().__init__(FakeClock(), lambda task, point: (60_000, 128, 0))

    def compile(self, jobs: Any, deadline: float, now: Any) -> Any:
        return super().compile(jobs, 1e9, self.clock)

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "Processes", Compiler)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that is not there, and the bench of it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(here, "device_of", lambda device: HERE)
    monkeypatch.setattr(here, "toolchain", lambda: TOOLS)
    monkeypatch.setattr(fleet, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(bench, "GpuBench", lambda *args, **given: FakeBench(FakeClock()))


def test_offline_writes_picks_and_a_report(no_gpu: None, tmp_path: Path) -> None:
    plot = tmp_path / "land.svg"
    out = text("tune", "fox", "--gpu", "a100", "--offline", "--store", str(tmp_path / "s"),
               "--plot", str(plot))  # fmt: skip
    assert "fox T=8192 D=128 bf16 on a100 (sm_80), offline" in out
    assert "dropped" in out
    assert "shared memory" in out
    assert plot.read_text().startswith("<?xml")
    picks = Table.read(tmp_path / "s").picks
    assert {(p.key.role, p.device.id, p.source) for p in picks} == {
        ("fwd", "a100", "modelled"),
        ("bwd_rows", "a100", "modelled"),
        ("bwd_columns", "a100", "modelled"),
    }


@pytest.mark.parametrize(
    "card", ["a100", "a10g", "rtx3090", "rtx4090", "l40s", "h100", "h200", "b200", "rtx-pro-6000",
             "mi300x"]
)  # fmt: skip
def test_every_card_of_the_list_is_known(no_gpu: None, tmp_path: Path, card: str) -> None:
    out = run("tune", "nope", "--gpu", card, "--offline", "--store", str(tmp_path), "--json")
    assert out.exit_code == 0
    assert "offline" in out.stdout


def test_online_measures_and_a_look_up_then_explains(gpu: None, tmp_path: Path) -> None:
    store = str(tmp_path)
    out = text("tune", "fox", "--gpu", "auto", "--store", store)
    assert "128 x 64, 8 warps, 3 stages" in out
    assert "1.000 ms" in out
    explained = text("tune", "explain", "fox", "--store", store)
    assert "timed for this kernel, shape, device and toolchain" in explained
    assert "of its time" in explained


def test_rows_that_share_a_kernel_are_tuned_once(gpu: None, tmp_path: Path) -> None:
    out = text("tune", "nope", "rope", "yarn", "--store", str(tmp_path))
    assert "nope T=8192" in out
    assert "rope" not in out
    assert len(list(Store(tmp_path).records("pick"))) == 3


def test_no_gpu_is_refused_with_what_works(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert refusal("tune", "fox") == (
        "--gpu: expected a CUDA device; got auto; torch finds none\n"
        "    --gpu h200 --offline compiles and ranks without one\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fox", "--gpu", "h2000", "--offline"), "--gpu: expected one of a100"),
        (("fox", "--gpu", "h200", "--offline", "--dims", "x"), "--dims: expected whole numbers"),
        (("fox", "--gpu", "h200", "--offline", "--lengths", "100"), "--lengths: expected one of"),
        (("foxx", "--gpu", "h200", "--offline"), "did you mean fox"),
        (("formats", "--as", "vllm", "--to", "x"), "--as: expected triton or fla; got 'vllm'"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal("tune", *arguments)


def test_another_card_than_the_one_here_is_refused(gpu: None, tmp_path: Path) -> None:
    said = refusal("tune", "fox", "--gpu", "a100", "--store", str(tmp_path))
    assert said == "--gpu: expected auto or h200, which is here; got 'a100'\n"
    said = refusal("tune", "fox", "--executor", "slurm", "--store", str(tmp_path))
    assert said == "--executor: expected local or ray; got 'slurm'\n"


def test_a_variant_without_a_lowering_is_named_and_passed_over(gpu: None, tmp_path: Path) -> None:
    done = run("tune", "cope", "nope", "--store", str(tmp_path))
    assert done.exit_code == 0
    assert "cope: " in done.stderr
    assert len(list(Store(tmp_path).records("pick"))) == 3


def test_the_store_commands(gpu: None, tmp_path: Path) -> None:
    a, b, out = (str(tmp_path / name) for name in "abc")
    text("tune", "fox", "--store", a)
    assert "records added" in text("tune", "merge", b, a)
    assert text("tune", "merge", b, a).startswith("0 records added")
    assert text("tune", "diff", a, b) == "0 keys differ\n"
    assert "records stay" in text("tune", "gc", b)
    assert text("tune", "table", "--store", a, "--to", out).strip().endswith("nvidia-h200.jsonl")
    table = Table.read(Path(out))
    assert [p.tiles for p in table.picks if p.key.role == "fwd"] == [FAST]
    for kind, count in (("triton", 3), ("fla", 3)):
        made = text("tune", "formats", "--as", kind, "--store", a, "--to", str(tmp_path / kind))
        assert len(made.splitlines()) == count
        assert all(json.loads(Path(line).read_text()) for line in made.splitlines())


def test_help_names_the_commands() -> None:
    shown = text("tune", "--help")
    for name in ("merge", "diff", "explain", "gc", "table", "formats"):
        assert name in shown
    assert tune_options.MAIN[0] in text("tune", "run", "--help")

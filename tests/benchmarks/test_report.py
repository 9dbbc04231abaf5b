"""GPU results as a table, targets and plots; with and without the file."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_clock import FakeClock, Work

from gnomon.benchmarks import report
from gnomon.benchmarks.gpu_tables import gpu_section, lines_of, times
from gnomon.benchmarks.plots import plot, write_plots
from gnomon.benchmarks.run import records
from gnomon.benchmarks.shapes import problem_of
from gnomon.benchmarks.timing import Absent, Job, interleaved

MS = {
    ("fox", "gnomon"): 1.2,
    ("nope", "gnomon"): 1.3,
    ("nope", "cudnn"): 1.0,
    ("fox", "flex"): 1.6,
}


def one_set(length: int, dim: int, which: str) -> list[Any]:
    """Records as a run makes them, one peer absent and one in error."""
    scale = length / 8192 * (4 if which == "fwd_bwd" else 1)

    def make(name: str, ms: float) -> Any:
        return lambda: Work(name, ms * scale)

    def absent() -> Any:
        raise Absent("FLA finds no tilelang")

    jobs = [Job(variant, name, make(name, ms)) for (variant, name), ms in MS.items()]
    jobs.append(Job("fox", "fla_tilelang", absent))
    broken = Work("fla_triton", 1.0, fails_at=1)
    jobs.append(Job("fox", "fla_triton", lambda: broken))
    interleaved(jobs, FakeClock(), sample_ms=5, warm_ms=1)
    return records(jobs, problem_of(length, dim), which, "bf16")


@pytest.fixture
def found() -> dict[str, Any]:
    sets = [(n, d, w) for n in (2048, 8192) for d in (64, 128) for w in ("fwd", "fwd_bwd")]
    left = {**problem_of(32768, 64).fields(), "pass": "fwd", "reason": "the budget was over"}
    return {
        "device": {"name": "NVIDIA H200"},
        "versions": {"torch": "2.11.0", "triton": "3.6.0", "driver": None},
        "commit": "0123abc",
        "protocol": {"rounds": 5, "sample_ms": 250.0, "warm_ms": 60.0},
        "records": [record for each in sets for record in one_set(*each)],
        "left_out": [left],
    }


def test_the_table_of_times(found: dict[str, Any]) -> None:
    lines = times(found["records"]).splitlines()
    assert lines[0] == "At T = 8192, ms (ratio), and MiB of one call:"
    assert [cell.strip() for cell in lines[2].split("|")[3:-1]] == [
        "D = 128, forward",
        "D = 128, forward + backward",
        "D = 64, forward",
        "D = 64, forward + backward",
    ]
    assert lines[4].startswith(
        "| fox | **gnomon** | 1.20 (1.20), 12 MiB | 4.80 (1.20), 12 MiB | 1.20 (1.20), 12 MiB |"
    )
    assert "| fox | fla_tilelang | absent | absent | absent | absent |" in lines
    assert "| fox | fla_triton | failed | failed | failed | failed |" in lines
    assert len(lines) == 4 + len(MS) + 2


def test_the_longest_length_is_shown_where_8192_is_not(found: dict[str, Any]) -> None:
    few = [record for record in found["records"] if record["T"] == 2048]
    assert times(few).startswith("At T = 2048,")
    assert times([]) == "No shape was measured."


def test_targets_and_what_has_no_time(found: dict[str, Any]) -> None:
    text = gpu_section(found, "name")
    assert "one NVIDIA H200, bf16, causal; torch 2.11.0, triton 3.6.0, commit `0123abc`" in text
    assert "Targets, 8 of 12 met" in text
    met = "| fox | forward | 1.20 of 1.20, met | 1.20 of 1.20, met |"
    missed = "| nope | forward | **1.30 of 1.20, missed by 0.10** |"
    assert met in text
    assert missed in text
    assert "- fla_tilelang (fox) absent: FLA finds no tilelang\n" in text
    assert "- fla_triton (fox) error: ValueError: first line\n" in text
    assert "- not measured: T = 32768, D = 64, forward: the budget was over" in text
    pictures = [line for line in text.splitlines() if line.startswith("![")]
    assert pictures == [
        f"![{name}: time and ratio to cuDNN](benchmarks/results/name_{name}.png)"
        for name in ("fox", "nope")
    ]


def test_a_result_without_any_record(found: dict[str, Any]) -> None:
    text = gpu_section({**found, "records": []}, "name")
    assert "No shape was measured." in text
    assert "Targets" not in text


def test_the_lines_of_a_plot(found: dict[str, Any]) -> None:
    assert lines_of(found["records"], "fox") == [
        ("fox", "gnomon"),
        ("fox", "flex"),
        ("nope", "cudnn"),
    ]
    figure = plot(found["records"], "fox", "NVIDIA H200")
    assert figure is not None
    assert len(figure.axes) == 8
    above, below = figure.axes[0], figure.axes[4]
    assert above.get_title() == "D = 128, forward"
    lines: list[Any] = [*above.lines, *below.lines]
    points = [line.get_xydata().tolist() for line in lines]
    assert [[int(x) for x, _ in line] for line in points] == [[2048, 8192]] * 6
    assert [line[1][1] for line in points] == [1.2, 1.6, 1.0, 1.2, 1.6, 1.0]


def test_a_plot_for_each_variant_of_ours(found: dict[str, Any], tmp_path: Path) -> None:
    paths = write_plots(found, tmp_path, "name")
    assert [path.name for path in paths] == ["name_fox.png", "name_nope.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
    for record in found["records"]:
        record["median_ms"] = record["ratio_to_cudnn"] = None
    assert write_plots(found, tmp_path, "none") == []


def test_the_report_with_and_without_gpu_results(found: dict[str, Any], tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}old\n{report.END}after\n")
    report.main(readme, tmp_path)
    without = readme.read_text()
    assert without.startswith(f"before\n{report.BEGIN}No GPU figure is claimed yet")
    assert without.endswith(f"{report.END}after\n")
    assert "old" not in without
    assert list(tmp_path.glob("*.png")) == []
    (tmp_path / f"{report.GPU}.json").write_text(json.dumps(found))
    report.main(readme, tmp_path)
    text = readme.read_text()
    assert "No GPU figure" not in text
    assert report.figures(tmp_path) in text
    for name in ("fox", "nope"):
        assert f"benchmarks/results/{report.GPU}_{name}.png" in text
        assert (tmp_path / f"{report.GPU}_{name}.png").exists()


def test_the_table_of_state_tracking() -> None:
    def run(variant: str, seed: int, wrong: int) -> dict[str, Any]:
        error = {"train": 0.0, "sparse": wrong / 2000, "dense": 0.5}
        reads = {"train": 3000, "sparse": 2000, "dense": 4000}
        return {"variant": variant, "seed": seed, "seconds": 7.6, "error": error, "reads": reads}

    wrongs = {"path": (0, 1, 40), "rope": (700, 600, 650)}
    options = {"length": 64, "batch": 32, "steps": 400, "warm_up": 100, "rate": 0.003, "seeds": 3}
    found: dict[str, Any] = {
        "device": {"name": "Some CPU", "threads": 1},
        "versions": {"torch": "2.13.0"},
        "commit": "0123abc",
        "options": {**options, "heads": 2, "width": 64},
        "runs": [run(name, seed, w[seed]) for name, w in wrongs.items() for seed in range(3)],
    }
    text = report.tracking_table(found, "state_tracking_cpu")
    command = (
        "`python examples/state_tracking.py --device cpu --variants path rope --length 64 "
        "--batch 32 --steps 400 --warm-up 100 --rate 0.003 --seeds 3`"
    )
    assert command in text
    assert "at least 2000 of each set" in text
    assert "| path | 8 | 0.000% (0.000%) | 0.050% (2.000%) | 50.000% (50.000%) |" in text
    assert "| rope | 8 | 0.000% (0.000%) | 32.500% (35.000%) | 50.000% (50.000%) |" in text
    assert text.endswith("(benchmarks/results/state_tracking_cpu.png)")
    found["device"]["capability"] = "sm_90"
    assert "--device cuda" in report.tracking_command(found)

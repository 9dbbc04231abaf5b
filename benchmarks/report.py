"""The figures of the README, made from benchmarks/results: `python -m gnomon.benchmarks.report`.

Writes what stands between the two markers of README.md, and the plots of the GPU results; a test
compares README.md with the results.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

from gnomon.benchmarks.gpu_tables import gpu_section

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
GPU = "h200_pointwise"
MORE = ("h200_backward", "h200_short")
"""Further files of `gnomon bench`, each of one run: what the first one had no time for."""
TRACKING = ("state_tracking_cuda", "state_tracking_cpu")
NO_GPU = (
    "No GPU figure is claimed yet: the Triton kernels were run on an H200 for their errors, "
    "and are not tuned."
)
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def result(name: str, folder: Path = RESULTS) -> Any:
    """One file of results; None where it is not there."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def cpu_table(found: Any) -> str:
    """Ours beside SDPA on the CPU."""
    device, versions = found["device"], found["versions"]
    head = (
        "**CPU kernels beside torch's SDPA** (plain causal attention), B = 1, H = 8, T = 2048, "
        f"d = 64, fp32; {device['processor']}, {device['cores']} cores, torch {versions['torch']}, "
        f"commit `{found['commit']}`, `make bench`: medians of 9 rounds."
    )
    lines = [head, "", "| variant | pass | threads | ms | SDPA ms | ratio |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for r in found["records"]:
        which = "forward" if r["pass"] == "fwd" else "forward + backward"
        numbers = f"{r['median_ms']:.0f} | {r['sdpa_ms']:.0f} | {r['ratio_to_sdpa']:.2f}"
        lines.append(f"| {r['variant']} | {which} | {r['threads']} | {numbers} |")
    return "\n".join(lines)


def byte_table(found: Any) -> str:
    """The byte-level models."""
    o, machine = found["options"], found["machine"]
    head = (
        f"**A byte-level model trained through the CPU kernels** ({o['layers']} layers, width "
        f"{o['width']}, {o['heads']} heads, {o['batch']} x {o['length']} bytes a step) on the "
        "Python standard library's sources and licence, judged on held-out files: "
        f"`python examples/byte_lm.py --steps {o['steps']}`, {machine['threads']} threads, torch "
        f"{machine['torch']}. Bits a byte before training, at the training length, and at four "
        "times it."
    )
    titles = f"| variant | seconds | before | at {o['length']} | at {4 * o['length']} |"
    lines = [head, "", titles, "| --- | --- | --- | --- | --- |"]
    for r in found["runs"]:
        bits = f"{r['first_bits']:.2f} | {r['bits']:.3f} | {r['bits_far']:.3f}"
        lines.append(f"| {r['variant']} | {r['seconds']:.0f} | {bits} |")
    picture = "![bits a byte by place in the text](benchmarks/results/byte_lm.png)"
    return "\n".join([*lines, "", picture])


def tracking_table(found: Any, name: str) -> str:
    """The models of examples/state_tracking.py on one device: median of the seeds, the worst."""
    o, runs = found["options"], found["runs"]
    reads = min(count for run in runs for count in run["reads"].values())
    head = (
        f"**The flip-flop language** (one layer, {o['heads']} heads, width {o['width']}): bits are "
        "written, read back and mixed with bits that mean nothing. Wrong bits of those read back, "
        f"at least {reads} of each set, median of {o['seeds']} seeds (worst); trained where 80 % "
        "of the instructions mean nothing, sparse has 98 %, dense 10 %. "
        f"{found['device']['name']}, torch {found['versions']['torch']}, commit "
        f"`{found['commit']}`, `{tracking_command(found)}`; seconds are those of training."
    )
    lines = [head, "", "| variant | seconds | as trained | sparse | dense |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for variant in _variants(runs):
        own = [run for run in runs if run["variant"] == variant]
        cells = [f"{median(run['seconds'] for run in own):.0f}"]
        for part in ("train", "sparse", "dense"):
            errors = [run["error"][part] for run in own]
            cells.append(f"{median(errors):.3%} ({max(errors):.3%})")
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    picture = f"![wrong read bits by steps of training](benchmarks/results/{name}.png)"
    return "\n".join([*lines, "", picture])


def tracking_command(found: Any) -> str:
    """The command that trains the same models, whatever the defaults of its day are."""
    # a GPU has a capability
    device = "cuda" if "capability" in found["device"] else "cpu"
    options = [f"--device {device}", f"--variants {' '.join(_variants(found['runs']))}"]
    for name in ("length", "batch", "steps", "warm_up", "rate", "seeds"):
        options.append(f"--{name.replace('_', '-')} {found['options'][name]}")
    return " ".join(["python examples/state_tracking.py", *options])


def _variants(runs: Any) -> list[str]:
    return list(dict.fromkeys(run["variant"] for run in runs))


def figures(folder: Path = RESULTS) -> str:
    """Everything between the markers; `folder` has the GPU results, which need not be there."""
    gpu = result(GPU, folder)
    parts = [
        NO_GPU if gpu is None else gpu_section(gpu, GPU),
        *(gpu_section(more, name) for name in MORE if (more := result(name, folder)) is not None),
        cpu_table(result("cpu")),
        byte_table(result("byte_lm")),
    ]
    tracked = {name: result(name) for name in TRACKING}
    parts += [tracking_table(found, name) for name, found in tracked.items() if found is not None]
    return "\n\n".join(parts) + "\n"


def main(readme: Path = ROOT / "README.md", folder: Path = RESULTS) -> None:
    """Write the README anew, and the plots."""
    before, _, rest = readme.read_text().partition(BEGIN)
    readme.write_text(before + BEGIN + figures(folder) + END + rest.partition(END)[2])
    for name in (GPU, *MORE):
        found = result(name, folder)
        if found is not None:
            from gnomon.benchmarks.plots import write_plots

            write_plots(found, folder, name)


if __name__ == "__main__":
    main()

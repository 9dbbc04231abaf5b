"""The plot of examples/state_tracking.py: wrong read bits against steps, a panel for each set.

python examples/tracking_plot.py benchmarks/results/state_tracking_cpu.json
"""

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from flip_flop import SETS
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = {"path": "#c2571a", "rope": "#3b6fb6", "path_fox": "#8a4fa3", "fox": "#2a8a4a"}


def plot(found: Any, path: Path) -> None:
    """The median of the seeds as a line, all of them as a band; `found` is the whole JSON."""
    options, runs = found["options"], found["runs"]
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the user's matplotlib is set to
    for axis, name in zip(figure.subplots(1, len(SETS), sharey=True), SETS, strict=True):
        for variant in dict.fromkeys(run["variant"] for run in runs):
            own = [run for run in runs if run["variant"] == variant]
            _draw(axis, own, name, lowest(options["check_reads"]))
        axis.axhline(lowest(options["check_reads"]), color="0.6", lw=0.8, ls=":", zorder=0)
        axis.set_yscale("log")
        axis.set_title(f"{name}: {SETS[name]:.0%} ignored", fontsize=10)
        axis.set_xlabel("steps")
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("share of wrong read bits")
    figure.axes[0].annotate(
        f"none of {options['check_reads']}",
        (options["steps"], lowest(options["check_reads"])),
        (0, 4),
        textcoords="offset points",
        ha="right",
        color="0.4",
        fontsize=8,
    )
    figure.axes[-1].legend(frameon=False)
    title = f"flip-flop language, {options['length']} tokens, one layer, {options['heads']} heads"
    figure.suptitle(f"{title}; {found['device']['name']}", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def lowest(reads: int) -> float:
    """Where no error at all is drawn on an axis without a 0: half of one error."""
    return 0.5 / reads


def _draw(axis: Axes, runs: list[Any], name: str, low: float) -> None:
    steps = [check["step"] for check in runs[0]["checks"]]
    seeds = [[max(check["error"][name], low) for check in run["checks"]] for run in runs]
    by_step = list(zip(*seeds, strict=True))
    variant = runs[0]["variant"]
    (line,) = axis.plot(
        steps,
        [median(errors) for errors in by_step],
        marker="o",
        ms=3,
        lw=1.8,
        color=COLOURS.get(variant),
        label=variant,
    )
    worst, best = [max(e) for e in by_step], [min(e) for e in by_step]
    axis.fill_between(steps, best, worst, color=line.get_color(), alpha=0.15, lw=0)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        plot(json.loads(Path(argument).read_text()), Path(argument).with_suffix(".png"))

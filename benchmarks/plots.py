"""One plot a variant: time against T above, the ratio to cuDNN's plain attention below."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gnomon.benchmarks.gpu_tables import PASSES, is_a_line, lines_of, variants
from gnomon.benchmarks.targets import Record

COLOURS = {"gnomon": "#c2571a", "cudnn": "0.3", "flash": "#3b6fb6", "flex": "#2a8a4a"}
ROWS = (("median_ms", "ms"), ("ratio_to_cudnn", "time / cuDNN's plain attention"))


def write_plots(found: Any, folder: Path, name: str) -> list[Path]:
    """One PNG for each variant with a kernel of ours; none of a single length, or of no time."""
    records, paths = found["records"], []
    for variant in variants(records) if is_a_line(records) else ():
        figure = plot(records, variant, found["device"]["name"])
        if figure is not None:
            paths.append(folder / f"{name}_{variant}.png")
            figure.savefig(paths[-1], dpi=90)
    return paths


def plot(records: Sequence[Record], variant: str, device: str) -> Figure | None:
    """The figure of a variant, a column for each width and pass; None where nothing was timed."""
    shown = lines_of(records, variant)
    timed = [r for r in records if (r["variant"], r["implementation"]) in shown]
    timed = [r for r in timed if r["median_ms"] is not None]
    columns = sorted(
        {(r["D"], r["pass"]) for r in timed}, key=lambda c: (-int(c[0]), list(PASSES).index(c[1]))
    )
    if not columns:
        return None
    figure = Figure(figsize=(3.6 * len(columns), 6.4), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the user's matplotlib is set to
    grid = figure.subplots(2, len(columns), sharex=True, squeeze=False)
    for axes, (field, label) in zip(grid, ROWS, strict=True):
        axes[0].set_ylabel(label)
        for axis, (dim, which) in zip(axes, columns, strict=True):
            here = [r for r in timed if (r["D"], r["pass"]) == (dim, which)]
            draw(axis, here, shown, field)
            if field == ROWS[0][0]:
                axis.set_title(f"D = {dim}, {PASSES[which]}", fontsize=10)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(f"{variant}, {device}")
    return figure


def draw(
    axis: Any, records: Sequence[Record], shown: Sequence[tuple[str, str]], field: str
) -> None:
    """A line for each implementation."""
    for variant, implementation in shown:
        key = variant, implementation
        points = sorted(
            (r["T"], r[field])
            for r in records
            if (r["variant"], r["implementation"]) == key and r[field] is not None
        )
        is_ours = implementation == "gnomon"
        axis.plot(
            [length for length, _ in points],
            [value for _, value in points],
            marker="o",
            ms=4,
            lw=2.4 if is_ours else 1.2,
            ls="--" if implementation == "cudnn" else "-",
            color=COLOURS.get(implementation),
            label="cudnn, plain" if implementation == "cudnn" else implementation,
        )
    lengths = sorted({r["T"] for r in records})
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in lengths])
    axis.minorticks_off()
    if field == "median_ms":
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.grid(visible=True, alpha=0.3)

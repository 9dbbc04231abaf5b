"""A byte-level language model trained on the CPU through compiled kernels.

    python examples/byte_lm.py                                  RoPE, FoX and TAPA, one plot
    python examples/byte_lm.py --variants alibi --seconds 60    any variant of the catalogue

The text is on every machine: the Python standard library with its licence, file by file in a fixed
order; every tenth file is held out. A model is trained at one length and judged there and at four
times that length, in bits a byte.
"""

import argparse
import json
import math
import platform
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib as mpl
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import gnomon as gn
from gnomon.runtime.layers import AttentionLayer

mpl.use("Agg")
from matplotlib import pyplot as plt

COLOURS = {"rope": "#3b6fb6", "fox": "#c2571a", "tapa": "#2a8a4a"}
BUCKETS = 16


@dataclass(frozen=True)
class Options:
    """The model and the run."""

    length: int = 256
    width: int = 128
    layers: int = 2
    heads: int = 4
    batch: int = 8
    rate: float = 3e-3
    steps: int = 0
    seconds: float = 60.0
    seed: int = 0


@dataclass
class Run:
    """What came of one variant; bits a byte at the training length and at four times it."""

    variant: str
    steps: int
    seconds: float
    first_bits: float
    bits: float
    bits_far: float
    curve: list[float] = field(default_factory=list)
    """Bits a byte by place in a text of four times the length, in 16 stretches."""
    history: list[tuple[float, float]] = field(default_factory=list)
    """(seconds, bits a byte of a training batch)."""


def corpus() -> tuple[Tensor, Tensor]:
    """The bytes to train on and the held-out ones: sources and licence of the standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py")) + sorted(folder.glob("LICENSE*"))
    if len(files) < 20:
        raise FileNotFoundError(f"{folder} holds {len(files)} sources; a standard library has more")
    kept = [bytearray(), bytearray()]
    for number, file in enumerate(files):
        kept[number % 10 == 0] += file.read_bytes() + b"\n"
    train, held_out = (torch.frombuffer(text, dtype=torch.uint8).long() for text in kept)
    return train, held_out


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside a residual path."""

    def __init__(self, variant: gn.Declaration, options: Options) -> None:
        super().__init__()
        width = options.width
        sizes = {"ValueDim": width // options.heads}
        self.attention = AttentionLayer(
            variant, width, options.heads, sizes=_sizes(variant, sizes, options)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time, width] -> the same."""
        x = x + self.attention(self.norms[0](x))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


def _sizes(variant: gn.Declaration, known: dict[str, int], options: Options) -> dict[str, int]:
    """A size for every axis that the variant's parameters have: tables reach four lengths."""
    sizes = dict(known)
    for item in variant.node.inputs:
        for axis in item.axes:
            for symbol, _ in axis.parts:
                if "." in symbol:
                    sizes[symbol] = 4 * options.length
                elif symbol not in ("d", "d_v", "1"):
                    sizes.setdefault(symbol, 16)
    return sizes


class ByteModel(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, variant: gn.Declaration, options: Options) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, options.width)
        self.blocks = nn.Sequential(*(Block(variant, options) for _ in range(options.layers)))
        self.norm = nn.RMSNorm(options.width)
        self.head = nn.Linear(options.width, 256, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time] of bytes -> [batch, time, 256]."""
        return self.head(self.norm(self.blocks(self.embed(x))))


def batches(text: Tensor, length: int, batch: int, random: torch.Generator) -> Iterator[Tensor]:
    """Random stretches of the text, [batch, length + 1]."""
    offsets = torch.arange(length + 1)
    while True:
        starts = torch.randint(len(text) - length - 1, (batch, 1), generator=random)
        yield text[starts + offsets]


def bits_by_place(model: ByteModel, text: Tensor, length: int, count: int) -> Tensor:
    """Bits a byte at each place of evenly spread held-out stretches, [length]."""
    starts = torch.linspace(0, len(text) - length - 2, count).long()[:, None]
    stretches = text[starts + torch.arange(length + 1)]
    total = torch.zeros(length)
    with torch.no_grad():
        for row in stretches.split(4):
            logits = model(row[:, :-1])
            total += functional.cross_entropy(
                logits.transpose(1, 2), row[:, 1:], reduction="none"
            ).sum(0)
    return total / count / math.log(2)


def train(
    variant: gn.Declaration,
    options: Options,
    report: Callable[[float, float], None] = lambda share, bits: None,
) -> tuple[ByteModel, Run]:
    """Train one variant for a number of steps, or of seconds where `steps` is 0."""
    torch.manual_seed(options.seed)
    text, held_out = corpus()
    model = ByteModel(variant, options)
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.95))
    random = torch.Generator().manual_seed(options.seed)
    stream = batches(text, options.length, options.batch, random)
    model(next(stream)[:, :-1]).sum().backward()  # compiles forward and backward: no training time
    run = Run(variant.name, 0, 0.0, 0.0, 0.0, 0.0)
    start = time.perf_counter()
    share = 0.0
    while share < 1:
        run.seconds = time.perf_counter() - start
        share = (run.steps + 1) / options.steps if options.steps else run.seconds / options.seconds
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min(1.0, (run.steps + 1) / 20, 1.1 - min(share, 1.0))
        bits = step(model, optimiser, next(stream))
        run.steps += 1
        if run.steps % 10 == 1:
            run.history.append((round(run.seconds, 2), round(bits, 4)))
        run.first_bits = run.first_bits or bits
        report(min(share, 1.0), bits)
    judge(model, run, held_out, options)
    return model, run


def step(model: ByteModel, optimiser: torch.optim.Optimizer, batch: Tensor) -> float:
    """One step; the batch's bits a byte."""
    optimiser.zero_grad(set_to_none=True)
    logits = model(batch[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return float(loss.detach()) / math.log(2)


def judge(model: ByteModel, run: Run, held_out: Tensor, options: Options) -> None:
    """Held-out bits a byte at the training length and at four times it."""
    run.bits = round(float(bits_by_place(model, held_out, options.length, 128).mean()), 4)
    far = bits_by_place(model, held_out, 4 * options.length, 32)
    run.bits_far = round(float(far.mean()), 4)
    run.curve = [round(float(part.mean()), 4) for part in far.chunk(BUCKETS)]


def plot(runs: list[Run], options: Options, path: Path) -> None:
    """Bits a byte against the place in the text; the training length is marked."""
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    places = [(n + 0.5) * 4 * options.length / BUCKETS for n in range(BUCKETS)]
    for run in runs:
        colour = COLOURS.get(run.variant)
        axes.plot(places, run.curve, marker="o", ms=4, lw=1.8, color=colour, label=run.variant)
    axes.axvline(options.length, color="0.5", lw=1, ls="--")
    axes.annotate(
        "training length",
        (options.length, axes.get_ylim()[0]),
        (6, 6),
        textcoords="offset points",
        color="0.4",
        fontsize=9,
    )
    axes.set_xlabel("place in the text (bytes)")
    axes.set_ylabel("bits a byte, held out")
    axes.set_title(f"trained at {options.length} bytes, read at {4 * options.length}", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def table(runs: list[Run], options: Options) -> Table:
    """The result of each run."""
    made = Table(title="bits a byte on held-out text")
    for name in (
        "variant",
        "steps",
        "seconds",
        "before",
        f"at {options.length}",
        f"at {4 * options.length}",
    ):
        made.add_column(name, justify="left" if name == "variant" else "right")
    for run in runs:
        row = (run.steps, f"{run.seconds:.1f}", f"{run.first_bits:.2f}", f"{run.bits:.3f}")
        made.add_row(run.variant, *map(str, row), f"{run.bits_far:.3f}")
    return made


def train_with_progress(
    variants: list[gn.Declaration], options: Options, console: Console
) -> list[Run]:
    """Train each variant in turn, with a bar each."""
    runs = []
    columns = (TextColumn("{task.description:<12}"), BarColumn())
    bits = TextColumn("{task.fields[bits]:.3f} bits a byte")
    with Progress(*columns, bits, TimeElapsedColumn(), console=console) as progress:
        for variant in variants:
            task = progress.add_task(variant.name, total=1.0, bits=8.0)

            def report(share: float, now: float, task: TaskID = task) -> None:
                progress.update(task, completed=share, bits=now)

            _, run = train(variant, options, report)
            runs.append(run)
    return runs


def main(arguments: list[str] | None = None) -> list[Run]:
    """Train, print a table, save a plot and the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", default=["rope", "fox", "tapa"], metavar="NAME")
    parser.add_argument(
        "--out", type=Path, default=Path("byte_lm"), help="where plot and figures go"
    )
    for name, value in asdict(Options()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    given = vars(parser.parse_args(arguments))
    names, out = given.pop("variants"), given.pop("out")
    options, console = Options(**given), Console()
    runs = train_with_progress([gn.catalogue.find(name) for name in names], options, console)
    console.print(table(runs, options))
    plot(runs, options, out.with_suffix(".png"))
    record = {
        "machine": machine(),
        "options": asdict(options),
        "runs": [asdict(run) for run in runs],
    }
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"plot {out.with_suffix('.png')}, figures {out.with_suffix('.json')}")
    return runs


if __name__ == "__main__":
    main()

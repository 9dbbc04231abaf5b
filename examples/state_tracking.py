"""State tracking: one layer learns the flip-flop language with PaTH, and fails with RoPE.

    python examples/state_tracking.py                        minutes on a GPU, or smaller on the CPU
    python examples/state_tracking.py --variants path,path_fox,nope --seeds 1

The model has one layer, two heads and width 64. A key carries the bit of its own token and not the
instruction before it; so RoPE cannot tell bits that were written from the rest. PaTH sees the
instruction in its steps: w is made of three tokens, and H_s = I - beta w w^T acts on all keys
before s. Three steps solve the language exactly (tests/examples/test_state_tracking.py has them):

    the key of a bit begins as e1; what a query looks for is e2
    the token after a bit that was not written erases e1: w = e1, beta = 1
    the token after a written bit swaps e1 and e2: w = (e1 - e2) / sqrt(2), beta = 2
    a written bit itself erases e2, the memory before it: w = e2, beta = 1

The swap is a reflection, with an eigenvalue of -1, and loses nothing. With beta = 1 in its place
half of the new key is lost and traces of old ones stay, which short texts forgive; so the strength
is 2 sigmoid(x), as in the paper.

Only read bits count in the loss: no model can know the other tokens.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from flip_flop import READ, SETS, VOCABULARY, sample, score
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from tracking_plot import plot

import gnomon as gn
from gnomon.benchmarks import machine
from gnomon.dsl.errors import InputError
from gnomon.runtime.layers import AttentionLayer


@dataclass(frozen=True)
class Options:
    """The model and the run; as it stands, for a GPU.

    length  tokens of a text, two of a pair          reads        read bits of each set at the end
    steps   of training, `warm_up` of them warm-up   checks       times that errors are measured
    seeds   models of each variant, seeds 0, 1, ...  check_reads  read bits of each of these checks
    """

    length: int = 512
    width: int = 64
    heads: int = 2
    batch: int = 64
    steps: int = 2000
    warm_up: int = 100
    rate: float = 1e-2
    decay: float = 0.1
    seeds: int = 3
    reads: int = 100_000
    checks: int = 20
    check_reads: int = 5000


CPU = Options(length=64, batch=32, steps=300, reads=10_000, checks=8, check_reads=300)
SMOKE = {"length": 32, "batch": 8, "steps": 20, "warm_up": 5, "seeds": 1, "reads": 100}
SMOKE |= {"checks": 2, "check_reads": 100}


@dataclass
class Check:
    """One look at a model in training: the mean loss of a read bit since the last look, in nats."""

    step: int
    seconds: float
    loss: float
    error: dict[str, float]


@dataclass
class Run:
    """What came of one variant and seed; seconds of training, without compiling and tests."""

    variant: str
    seed: int
    steps: int = 0
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    error: dict[str, float] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)


class Directions(nn.Module):
    """w of PaTH: a linear map, a convolution of each channel over three tokens, SiLU; in fp32.

    The attention layer brings it to length 1 for each head. [batch, time, width] -> the same.
    """

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 3, groups=inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """No token sees a later one: two zeros stand in front."""
        x = functional.pad(self.linear(x).transpose(1, 2), (2, 0))
        return functional.silu(self.conv(x)).transpose(1, 2).float()


class Tracker(nn.Module):
    """Tokens in, logits of the next token out: one layer of attention, one of two linear maps."""

    def __init__(self, variant: gn.Declaration, options: Options) -> None:
        super().__init__()
        width = options.width
        self.embed = nn.Embedding(VOCABULARY, width)
        self.attention = AttentionLayer(variant, width, options.heads)
        if "w" in self.attention.maps:
            self.attention.maps["w"] = Directions(width, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, texts: Tensor) -> Tensor:
        """[batch, time] -> [batch, time, vocabulary]; products in bf16 on a GPU."""
        on_gpu = texts.device.type == "cuda"
        with torch.autocast(texts.device.type, torch.bfloat16, enabled=on_gpu):
            x = self.embed(texts)
            x = x + self.attention(self.norms[0](x))
            x = x + self.down(functional.gelu(self.up(self.norms[1](x))))
            logits: Tensor = self.head(self.norms[2](x))
        return logits.float()


def loss_of(model: nn.Module, texts: Tensor) -> Tensor:
    """Nats of a read bit; no number leaves the device."""
    reads = texts[:, :-1] == READ
    nats = functional.cross_entropy(
        model(texts)[:, :-1].transpose(1, 2), texts[:, 1:], reduction="none"
    )
    return (nats * reads).sum() / reads.sum().clamp(min=1)


def train(
    variant: gn.Declaration,
    seed: int,
    options: Options,
    device: torch.device,
    report: Callable[[Check], None] = lambda check: None,
) -> Run:
    """Train one model and measure its errors; `report` sees each look at it."""
    torch.manual_seed(seed)
    model = Tracker(variant, options).to(device)
    optimiser = torch.optim.AdamW(
        model.parameters(), options.rate, weight_decay=options.decay, fused=device.type == "cuda"
    )
    random = torch.Generator(device).manual_seed(seed)
    one = sample(options.batch, options.length, SETS["train"], random)
    loss_of(model, one).backward()  # compiles forward and backward: no training time
    run, looks = Run(variant.name, seed), _looks(options)
    total, since = torch.zeros((), device=device), 0
    start = _now(device)
    for number in range(options.steps):
        total += step(model, optimiser, number, options, random)
        if number + 1 in looks:
            run.seconds += _now(device) - start
            loss = float(total) / (number + 1 - since)
            error = _errors(model, run, options.check_reads, options, device)
            run.checks.append(Check(number + 1, round(run.seconds, 2), round(loss, 6), error))
            report(run.checks[-1])
            total, since, start = torch.zeros_like(total), number + 1, _now(device)
    run.steps, run.seconds = options.steps, round(run.seconds, 2)
    run.error = _errors(model, run, options.reads, options, device)
    return run


def step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    number: int,
    options: Options,
    random: torch.Generator,
) -> Tensor:
    """One step on new texts, the rate rising over the warm-up and falling to 0; its loss."""
    share = min((number + 1) / max(options.warm_up, 1), 1 - number / options.steps)
    for group in optimiser.param_groups:
        group["lr"] = options.rate * share
    optimiser.zero_grad(set_to_none=True)
    loss = loss_of(model, sample(options.batch, options.length, SETS["train"], random))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return loss.detach()


def _looks(options: Options) -> set[int]:
    """The steps after which errors are measured: dense at first, where most happens."""
    shares = ((n + 1) / options.checks for n in range(options.checks))
    return {max(1, round(options.steps * share**2)) for share in shares}


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@torch.no_grad()
def _errors(
    model: nn.Module, run: Run, reads: int, options: Options, device: torch.device
) -> dict[str, float]:
    """The share of wrong read bits of each set; the counts go to the run."""
    count = 8 * options.batch
    found = {
        name: score(model, name, reads, length=options.length, count=count, device=device)
        for name in SETS
    }
    run.wrong = {name: each.wrong for name, each in found.items()}
    run.reads = {name: each.reads for name, each in found.items()}
    return {name: each.error for name, each in found.items()}


# ---- the command


def checked(options: Options) -> Options:
    """The same options. Raises InputError, which names the option, where no run is possible."""
    if not 0 < options.rate < math.inf:
        raise InputError("--rate", "a number above 0", str(options.rate))
    least = {"length": 4, "warm_up": 0, "decay": 0, "rate": 0}
    for name, value in asdict(options).items():
        low = least.get(name, 1)
        if not value >= low:  # nan is not
            raise InputError(f"--{name.replace('_', '-')}", f"{low} or more", str(value))
    if options.length % 2:
        raise InputError("--length", "an even number of tokens", str(options.length))
    if options.width % (8 * options.heads):
        expected = f"a multiple of 8 for each of {options.heads} heads"
        raise InputError("--width", expected, str(options.width))
    return options


def variants_of(names: Iterable[str]) -> list[gn.Declaration]:
    """Variants by name. Raises InputError where one asks for integers, which no token here has."""
    found = [gn.catalogue.find(name) for part in names for name in part.split(",") if name]
    if not found:
        raise InputError("--variants", "one name or more", "none")
    for variant in found:
        whole = [item.name for item in variant.node.inputs if item.element == "int"]
        if whole:
            raise InputError("--variants", "variants without integers", f"{variant.name}: {whole}")
    return found


def device_of(name: str) -> torch.device:
    """cpu or cuda. Raises InputError where there is no such device."""
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise InputError("--device", "cpu: torch sees no GPU here", name)
    return torch.device(("cuda" if there else "cpu") if name == "auto" else name)


def arguments_of(arguments: list[str] | None) -> tuple[Options, dict[str, Any]]:
    """Options, and what is none of them: variants, device, out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", default=["path", "rope"], metavar="NAME")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--out", type=Path, default=Path("state_tracking"), help="folder of figures and plot"
    )
    parser.add_argument("--smoke", action="store_true", help="a run of seconds")
    for (name, gpu), cpu in zip(asdict(Options()).items(), asdict(CPU).values(), strict=True):
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(gpu), help=f"default {gpu}; on the CPU {cpu}")
    given = vars(parser.parse_args(arguments))
    given["device"] = device_of(given["device"])
    options = CPU if given["device"].type == "cpu" else Options()
    if given.pop("smoke"):
        options = replace(options, **SMOKE)
    named = {name: given.pop(name) for name in asdict(options)}
    options = replace(options, **{n: value for n, value in named.items() if value is not None})
    return checked(options), given


def table(runs: list[Run], options: Options) -> Table:
    """The median error of the seeds of each variant, and the worst."""
    made = Table(title=f"wrong read bits, median of {options.seeds} (worst)")
    for name in ("variant", "seconds", *SETS):
        made.add_column(name, justify="left" if name == "variant" else "right")
    for variant in dict.fromkeys(run.variant for run in runs):
        own = [run for run in runs if run.variant == variant]
        row = [f"{median(run.seconds for run in own):.0f}"]
        for name in SETS:
            errors = [run.error[name] for run in own]
            row.append(f"{median(errors):.3%} ({max(errors):.3%})")
        made.add_row(variant, *row)
    return made


def train_all(
    variants: list[gn.Declaration], options: Options, device: torch.device, console: Console
) -> Iterator[Run]:
    """Each variant with each seed, a line for each look at a model."""
    for seed in range(options.seeds):
        for variant in variants:

            def report(check: Check, name: str = f"{variant.name}, seed {seed}") -> None:
                errors = ", ".join(f"{own} {error:.3%}" for own, error in check.error.items())
                where = f"{name}, step {check.step}, {check.seconds:.0f} s"
                console.print(f"{where}: loss {check.loss:.4f}, wrong {errors}", highlight=False)

            yield train(variant, seed, options, device, report)


def main(arguments: list[str] | None = None) -> list[Run]:
    """Train, print a table, save the figures after each run and a plot at the end."""
    options, given = arguments_of(arguments)
    device, out, console = given["device"], given["out"], Console(width=100)
    variants = variants_of(given["variants"])
    if device.type == "cpu":
        torch.set_num_threads(1)  # tensors of this size gain nothing from more
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"state_tracking_{device.type}.json"
    record: dict[str, Any] = {
        "device": {**machine.device(device.type), "threads": torch.get_num_threads()},
        "versions": machine.versions(),
        "commit": machine.commit(),
        "options": asdict(options),
    }
    runs: list[Run] = []
    for run in train_all(variants, options, device, console):
        runs.append(run)
        record["runs"] = [asdict(each) for each in runs]
        path.write_text(json.dumps(record, indent=1) + "\n")
    console.print(table(runs, options))
    plot(record, path.with_suffix(".png"))
    console.print(f"plot {path.with_suffix('.png')}, figures {path}", soft_wrap=True)
    return runs


if __name__ == "__main__":
    main()

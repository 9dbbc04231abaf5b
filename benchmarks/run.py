"""One run: every implementation of every variant at every shape, on one device in one process.

    for document in run(Plan(variants, ...)):
        write(document)                          # after each set, so that nothing measured is lost

A set is a shape and a pass; all of its implementations are interleaved round by round, and the
ratios are to cuDNN's plain causal attention of the same set.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gnomon.benchmarks import machine
from gnomon.benchmarks.calls import Data, Inputs, fault, ours
from gnomon.benchmarks.peers import (
    PEERS,
    Peer,
    Query,
    forget_compiled,
    kept_environment,
)
from gnomon.benchmarks.shapes import CHANNELS, TOKENS, Problem, problem_of
from gnomon.benchmarks.targets import PLAIN, time_of
from gnomon.benchmarks.timing import (
    ROUNDS,
    SAMPLE_MS,
    WARM_MS,
    Clock,
    CpuClock,
    CudaClock,
    Job,
    Run,
    interleaved,
)
from gnomon.dsl import catalogue
from gnomon.dsl.errors import GnomonError, InputError
from gnomon.dsl.nodes import Variant
from gnomon.runtime.compile import Attention, compile

PASSES = ("fwd", "fwd_bwd")
VARIANTS = ("fox", "tapa", "alibi", "rope", PLAIN)
LENGTHS, DIMS = (2048, 8192, 16384, 32768), (128, 64)
Document = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What shall be measured, and how. Raises InputError for what makes no sense.

    peers    names; by default all that are for the device
    folders  peer -> where its code lies
    budget   seconds; no set begins after them
    tokens, channels  B * T and H * D (shapes.py): other sizes try the benchmark itself out
    """

    variants: Sequence[Variant]
    device: str = "cuda"
    lengths: Sequence[int] = LENGTHS
    dims: Sequence[int] = DIMS
    passes: Sequence[str] = PASSES
    groups: int = 1
    peers: Sequence[str] | None = None
    folders: Mapping[str, Path] = field(default_factory=dict)
    rounds: int = ROUNDS
    sample_ms: float = SAMPLE_MS
    warm_ms: float = WARM_MS
    budget: float | None = None
    dtype: str = "bf16"
    tokens: int = TOKENS
    channels: int = CHANNELS

    def __post_init__(self) -> None:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError(
                "--device", "a CUDA device", f"cuda; torch {torch.__version__} has none"
            )
        known = [peer.name for peer in PEERS]
        for option, given, allowed in (
            ("--device", [self.device], ("cuda", "cpu")),
            ("--passes", self.passes, PASSES),
            ("--peers", self.peers or (), known),
        ):
            unknown = [x for x in given if x not in allowed]
            if unknown:
                raise InputError(option, f"some of {', '.join(allowed)}", ", ".join(unknown))
        names = [variant.name for variant in self.variants]
        if len(set(names)) < len(names):
            raise InputError("VARIANTS", "a name once", ", ".join(names))
        for option, number in (("--rounds", self.rounds), ("--groups", self.groups)):
            if number < 1:
                raise InputError(option, "a number above 0", str(number))
        self.problems()

    def problems(self) -> list[Problem]:
        """The shapes, in their order."""
        return [
            problem_of(length, dim, self.groups, tokens=self.tokens, channels=self.channels)
            for length in self.lengths
            for dim in self.dims
        ]

    def chosen_peers(self) -> list[Peer]:
        """The peers that are asked for."""
        return [
            peer
            for peer in PEERS
            if (self.device in peer.devices if self.peers is None else peer.name in self.peers)
        ]


def run(
    plan: Plan, clock: Clock | None = None, now: Callable[[], float] = time.monotonic
) -> Iterator[Document]:
    """The results after each set, and at the end: the same object, longer each time."""
    clock = clock or (CudaClock() if plan.device == "cuda" else CpuClock())
    document = _heading(plan)
    begin, lost = now(), ""
    own = Ours(plan)
    with kept_environment():
        for problem in plan.problems():
            data: Data | None = None
            for which in plan.passes:
                why = f"the device was lost: {lost}" if lost else ""
                if plan.budget is not None and now() - begin >= plan.budget:
                    why = why or f"the budget of {plan.budget:g} s was over"
                if why:
                    left = {**problem.fields(), "pass": which, "reason": why}
                    document["left_out"].append(left)
                    continue
                data = data or Data(problem, plan.dtype, plan.device)
                jobs, lost = measure(plan, own, data, which, clock)
                document["records"] += records(jobs, problem, which, plan.dtype)
                yield document
            forget_compiled()
    yield document


def _heading(plan: Plan) -> Document:
    rule = {"rounds": plan.rounds, "sample_ms": plan.sample_ms, "warm_ms": plan.warm_ms}
    return {
        "device": machine.device(plan.device),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "protocol": rule,
        "records": [],
        "left_out": [],
    }


class Ours:
    """Our attention for each variant; compiled once, and checked once for each width."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.compiled: dict[str, Attention] = {}
        self.faults: dict[tuple[str, int], str] = {}

    def make(self, variant: Variant, problem: Problem, which: str, inputs: Inputs) -> Run:
        """The call that is timed. Raises GnomonError where the kernels are wrong."""
        if variant.name not in self.compiled:
            self.compiled[variant.name] = compile(variant)
        attention, key = self.compiled[variant.name], (variant.name, problem.D)
        if key not in self.faults:
            self.faults[key] = fault(attention, problem, self.plan.dtype, self.plan.device)
        if self.faults[key]:
            raise WrongKernelError(self.faults[key])
        return ours(attention, inputs).run(which)


class WrongKernelError(GnomonError):
    """A kernel of ours disagrees with the oracle: it is not timed."""


def measure(plan: Plan, own: Ours, data: Data, which: str, clock: Clock) -> tuple[list[Job], str]:
    """The jobs of one set, timed, and how the device was lost, or ""."""
    variants = {variant.name: variant for variant in plan.variants}

    def peer_run(peer: Peer, variant: Variant) -> Run:
        query = Query(variant.name, which, data.of(variant), plan.folders)
        return peer.make(query).run(which)

    def own_run(variant: Variant) -> Run:
        return own.make(variant, data.problem, which, data.of(variant))

    jobs = [Job(name, "gnomon", partial(own_run, node)) for name, node in variants.items()]
    plain = catalogue.find(PLAIN).node
    for peer in plan.chosen_peers():
        for name in peer.variants:
            node = variants.get(name, plain if (peer.name, name) == ("cudnn", PLAIN) else None)
            if node is not None:
                jobs.append(Job(name, peer.name, partial(peer_run, peer, node)))
    rule = {"sample_ms": plan.sample_ms, "warm_ms": plan.warm_ms}
    lost = interleaved(jobs, clock, rounds=plan.rounds, **rule)
    return jobs, lost


def records(jobs: Sequence[Job], problem: Problem, which: str, dtype: str) -> list[Document]:
    """A record for each job of a set; the times of one that failed are null, and it says why."""
    found = [
        {
            "variant": job.variant,
            "implementation": job.implementation,
            **problem.fields(),
            "dtype": dtype,
            "pass": which,
            "median_ms": _rounded(job.median_ms, 4),
            "spread": _rounded(job.spread_ms, 4),
            "ratio_to_cudnn": None,
            "peak_mib": _rounded(job.peak_mib, 1),
            **({"absent": job.absent} if job.absent else {}),
            **({"error": job.error} if job.error else {}),
        }
        for job in jobs
    ]
    for record in found:
        base = time_of(found, PLAIN, "cudnn", record)
        if record["median_ms"] is not None and base is not None:
            record["ratio_to_cudnn"] = _rounded(record["median_ms"] / base, 3)
    return found


def _rounded(number: float | None, digits: int) -> float | None:
    return None if number is None else round(number, digits)

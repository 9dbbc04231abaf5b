"""What a process with a GPU runs: one launch, one sample, one check of a candidate.

A module is printed once for a problem, with names where its launches have tiles: a candidate is a
few assignments, no text and no import. The arguments of every launch are recorded from one forward
and one backward pass on synthetic tensors, and a sample is that launch alone, replayed as a graph.
The process may be killed at any time; whatever fails here leaves as an error with its class.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any, Literal

import torch
from torch.nn import functional

from gnomon.autotune.plan import DTYPES as IO
from gnomon.autotune.plan import Problem
from gnomon.lowering.emit.module import Module, Provenance, print_module
from gnomon.lowering.pipelines import to_kernels, to_program
from gnomon.runtime import check
from gnomon.runtime.compile import copies_tiles, tiles_by_name
from gnomon.runtime.configs import default_config
from gnomon.runtime.grid import DTYPES, Case, On
from gnomon.runtime.here import device_of
from gnomon.runtime.modules import load
from gnomon.runtime.sample import Sampler, Shape, grid, roles_of

TUNABLES = ("BM", "BN", "num_warps", "num_stages")
TOKENS, CHANNELS = 16384, 2048
SMALL, CHECKED = 256, 384
"""Tokens of a first launch, and of a check: whole tiles, and tiles on the edge."""
GRAPHS = 24
DEVICE: Literal["cuda", "cpu"] = "cuda"
ON: On = "cuda"
"""Where it runs; a test has it run on the CPU, by the interpreter."""


class DeviceLostError(RuntimeError):
    """No call works in this process any more: another one is needed."""


class WrongResultError(RuntimeError):
    """A candidate's numbers are not those of the oracle, or not the same twice."""


@dataclass
class State:
    """A problem in this process: the module, and the launches with their arguments by kernel."""

    module: ModuleType
    defaults: Mapping[str, Mapping[str, int]]
    launches: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = field(default_factory=dict)
    graphs: "OrderedDict[tuple[Any, ...], Any]" = field(default_factory=OrderedDict)


_states: dict[str, State] = {}
_modules: dict[str, tuple[ModuleType, Mapping[str, Mapping[str, int]]]] = {}


def first_launch(problem: Problem, kernel: str, tiles: dict[str, int]) -> None:
    """Compile a candidate, by launching it on few tokens."""
    with _guarded():
        state = _state(problem, SMALL)
        _set(state, kernel, tiles)
        launch, args = state.launches[kernel]
        launch(*args)


def sample(problem: Problem, kernel: str, tiles: dict[str, int], milliseconds: float) -> float:
    """Microseconds of a launch: the mean of replays that last so long, after two to warm up."""
    with _guarded():
        state = _state(problem, problem.length)
        graph = _graph(state, kernel, tiles)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(2):
            graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        count = max(2, round(milliseconds / max(begin.elapsed_time(end), 1e-3)))
        begin.record()
        for _ in range(count):
            graph.replay()
        end.record()
        end.synchronize()
        return float(1e3 * begin.elapsed_time(end) / count)


def verify(problem: Problem, tiles: dict[str, dict[str, int]]) -> dict[str, float]:
    """The worst error of each tensor with these tiles, the other kernels by default.

    Output, log-sum-exp and every gradient against the float64 oracle, in memory full of NaN, on
    random data and where the far past matters; then the same bits a second time. Raises
    WrongResultError that names tensors, errors, bounds and cases.
    """
    with _guarded():
        module, defaults = _module(problem)
        for kernel, default in defaults.items():
            _assign(module, kernel, tiles.get(kernel, default))
        function = getattr(module, problem.variant.name)
        worst: dict[str, float] = {}
        for case in gate(problem):
            found = check.compare(function, problem.variant, case, on=ON)
            wrong = [r for r in found if not r.passed]
            if wrong:
                shown = "; ".join(
                    f"{r.tensor} {r.note or f'{r.error:.1e} of {r.bound:.0e}'} ({r.case})"
                    for r in wrong
                )
                raise WrongResultError(" ".join(shown.split()))
            for record in found:
                worst[record.tensor] = max(worst.get(record.tensor, 0.0), record.error)
            _repeat(function, problem, case)
        return worst


def gate(problem: Problem) -> list[Case]:
    """The calls that a finalist must get right."""
    heads = 2 * problem.groups
    shape = Shape(1, CHECKED, heads, 2, problem.dim)
    if problem.packed:
        lengths = (0, 150, 1, 233)
        return [Case("packed", replace(shape, time=384), problem.dtype, packed=(lengths, lengths))]
    cases = [Case(f"{CHECKED} tokens", shape, problem.dtype, lse=True)]
    cases.append(
        Case("200 queries, 333 keys", replace(shape, time=333, queries=200), problem.dtype)
    )
    if roles_of(problem.variant).far:
        cases.append(Case(f"far field, {CHECKED} tokens", shape, problem.dtype, far=True))
    return cases


def _repeat(function: Callable[..., Any], problem: Problem, case: Case) -> None:
    """The same bits in two runs."""
    asked = check.problem_of(problem.variant, case, DEVICE, 0, {})
    with check.poisoned_memory():
        first, second = (check.results(function, asked.leaves, asked) for _ in range(2))
    for name, x in first.items():
        y = second[name]
        if x is not None and (y is None or not torch.equal(x, y)):
            raise WrongResultError(f"{name} differs from run to run ({case.name})")


# ---- the module and its launches


def _module(problem: Problem) -> tuple[ModuleType, Mapping[str, Mapping[str, int]]]:
    """The module of a variant, dtype and width, whose tiles are names; and the default tiles."""
    io: Any = IO[problem.dtype]
    identity = f"{problem.variant!r} {problem.dim} {io} {problem.packed}"
    if identity not in _modules:
        program = to_program(problem.variant)
        kernels = tuple(to_kernels(a, packed=problem.packed) for a in program.attentions)
        widths = problem.dim, problem.dim
        here = device_of(torch.device(DEVICE, 0)) if DEVICE == "cuda" else None
        config = default_config(kernels, widths, io, device=here).config
        defaults = tiles_by_name(kernels, config, "triton")
        names: Any = {k: {t: f"{k}_{t}" for t in TUNABLES} for k in defaults}
        by_descriptor = not problem.packed and io != "f32"
        by_descriptor = by_descriptor and copies_tiles(torch.device(DEVICE, 0))
        padded, packed = ((), kernels) if problem.packed else (kernels, ())
        origin = Provenance("", "gnomon.compile", "")
        text = print_module(
            Module(program, padded, packed, "triton", io, names, origin, descriptors=by_descriptor)
        )
        _modules[identity] = load(problem.variant.name, text), defaults
    return _modules[identity]


def _assign(module: ModuleType, kernel: str, tiles: Mapping[str, int]) -> None:
    for name, value in tiles.items():
        setattr(module, f"{kernel}_{name}", value)


def _set(state: State, kernel: str, tiles: Mapping[str, int]) -> None:
    """The tiles of a candidate, and of every other kernel the default."""
    for name, default in state.defaults.items():
        _assign(state.module, name, tiles if name == kernel else default)


def _state(problem: Problem, length: int) -> State:
    """The recorded launches of a problem at a length; of large ones the last alone is kept."""
    identity = f"{problem!r} {length}"
    if identity not in _states:
        for other in [name for name in _states if not name.endswith(f" {SMALL}")]:
            del _states[other]
        torch.cuda.empty_cache()
        module, defaults = _module(problem)
        state = State(module, defaults)
        _record(state, problem, length)
        _states[identity] = state
    return _states[identity]


def _record(state: State, problem: Problem, length: int) -> None:
    """One forward and one backward pass with the default tiles, every launch written down."""
    for name, default in state.defaults.items():
        _assign(state.module, name, default)
    originals = {name: getattr(state.module, f"launch_{name}") for name in state.defaults}
    for name, launch in originals.items():
        setattr(state.module, f"launch_{name}", partial(_write_down, state, name, launch))
    try:
        leaves, options = tensors(problem, length)
        out = getattr(state.module, problem.variant.name)(**leaves, **options)
        real = [x for x in leaves.values() if x.requires_grad]
        torch.autograd.grad(out, real, torch.randn_like(out), allow_unused=True)
    finally:
        for name, launch in originals.items():
            setattr(state.module, f"launch_{name}", launch)
    _wait()


def _write_down(state: State, name: str, launch: Callable[..., Any], *args: Any) -> Any:
    state.launches[name] = launch, args
    return launch(*args)


def tensors(problem: Problem, length: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Synthetic inputs of a problem, never a caller's: normal q, k, v, gates near 1."""
    p, small, device = problem, length == SMALL, DEVICE
    tokens = SMALL if small else TOKENS
    batch = max(tokens // length, 1)
    heads = max(CHANNELS // p.dim, p.groups)
    if length > tokens:
        heads = max(heads * tokens // length // p.groups, 1) * p.groups
    shape = Shape(batch, length, heads, max(heads // p.groups, 1), p.dim)
    roles, random = roles_of(p.variant), torch.Generator().manual_seed(1)
    dtype = DTYPES[p.dtype]
    on_device = torch.Generator(device).manual_seed(0)

    def normal(count: int) -> torch.Tensor:
        size = (shape.batch, shape.time, count, p.dim)
        return torch.randn(size, generator=on_device, device=device).to(dtype)

    made: dict[str, Any] = {"q": normal(shape.heads)}
    made |= {name: normal(shape.kv_heads) for name in ("k", "v")}
    for given in p.variant.inputs:
        if given.name in made:
            continue
        x = Sampler(shape).draw(given, roles, random)
        if given.name in roles.decays:
            x = functional.logsigmoid(torch.randn(x.shape, generator=random) + 4)
        if x.is_floating_point():
            x = x.to(dtype if given.name in roles.narrow else torch.float32)
        made[given.name] = x.to(device)
    for x in made.values():
        x.requires_grad_(x.is_floating_point())
    options: dict[str, Any] = {}
    if roles.coordinates:
        places = grid(roles.coordinates, shape).items()
        options["positions"] = {name: x.to(device) for name, x in places}
    return _packed(made, batch, length) if p.packed else (made, options)


def _packed(made: dict[str, Any], batch: int, length: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sequences of a batch behind each other."""
    flat = {
        name: x.detach().flatten(0, 1)[None].requires_grad_(x.requires_grad)
        if x.ndim > 2 and x.shape[0] == batch
        else x
        for name, x in made.items()
    }
    offsets = torch.arange(batch + 1, device=DEVICE, dtype=torch.int32) * length
    return flat, {"cu_seqlens": offsets}


def _graph(state: State, kernel: str, tiles: Mapping[str, int]) -> Any:
    """The launch of a candidate as a graph; a few are kept."""
    identity = (kernel, *tiles.values())
    if identity in state.graphs:
        state.graphs.move_to_end(identity)
        return state.graphs[identity]
    _set(state, kernel, tiles)
    launch, args = state.launches[kernel]
    launch(*args)  # compiles, outside of the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(*args)
    state.graphs[identity] = graph
    if len(state.graphs) > GRAPHS:
        state.graphs.popitem(last=False)
    return graph


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class _guarded:  # noqa: N801  reads as a statement
    """Errors of a device surface with the candidate that caused them, not with the next."""

    def __enter__(self) -> None:
        """Nothing to open."""

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """Wait for the device. Raises DeviceLostError where it does not answer any more."""
        try:
            _wait()
        except Exception as lost:
            first = str(error or lost).strip().partition("\n")[0]
            raise DeviceLostError(f"{first}") from lost

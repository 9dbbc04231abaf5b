"""Is a compiled variant right: output, log-sum-exp and every gradient against the float64 oracle.

    function = function_under_test(variant, "cpu")
    for case in cases(variant, "cpu"):
        records = compare(function, variant, case)

The oracle gets the same rounded inputs. An error is rms(difference) / max(rms(oracle), 0.05).
"""

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gnomon.dsl.errors import InputError
from gnomon.dsl.nodes import Input, Variant
from gnomon.dsl.reference import reference
from gnomon.dsl.trace import Declaration
from gnomon.lowering.config import Config, Tiles
from gnomon.lowering.emit.signature_text import Signature
from gnomon.runtime.compile import Attention, compile
from gnomon.runtime.grid import DTYPES, Case, On, cases
from gnomon.runtime.sample import Sampler

Ranges = Mapping[str, tuple[float, float]]
FLOOR = 0.05
"""A tensor that is zero by nature is measured against this; inputs and cotangents have size 1.

In fp32 it leaves a gradient an error of 1e-6, which flash-linear-attention's tests allow too.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One tensor of one case: `error` is its relative RMS error, `note` what else is wrong."""

    case: str
    dtype: str
    tensor: str
    error: float
    bound: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within the bound; a NaN never is."""
        return not self.note and self.error <= self.bound


@dataclass(frozen=True, slots=True)
class Problem:
    """One call and what is asked of it.

    leaves      q, k, v and the declared inputs
    options     cu_seqlens and positions
    has_lse     whether there is a log-sum-exp
    do, dlse    gradients of out [batch, time_q, head, d_v] and lse [batch, time_q, head]; or None
    """

    leaves: dict[str, Tensor]
    options: dict[str, Any]
    has_lse: bool
    do: Tensor
    dlse: Tensor | None


def check(
    variant: Declaration | Variant,
    *,
    on: On = "cpu",
    quick: bool = False,
    seed: int = 0,
    ranges: Ranges | None = None,
) -> list[Record]:
    """The records of every case of the grid. Raises UnsupportedError where no lowering exists."""
    node = variant.node if isinstance(variant, Declaration) else variant
    function = function_under_test(node, on)
    return [
        record
        for case in cases(node, on, quick=quick)
        for record in compare(function, node, case, on=on, seed=seed, ranges=ranges)
    ]


def function_under_test(variant: Variant, on: On) -> Attention:
    """What `gnomon.compile` gives for a device; the interpreter has Triton's kernels, small tiles.

    Raises InputError where the device is not there, UnsupportedError where no lowering exists.
    """
    if on == "cuda" and not torch.cuda.is_available():
        raise InputError("on", "a device of this machine", "cuda; torch finds none")
    if on != "interpreter":
        return compile(variant)
    if os.environ.get("TRITON_INTERPRET") != "1":  # triton reads it when it is imported
        late = "; triton is imported already" if "triton" in sys.modules else ""
        raise InputError("on", "TRITON_INTERPRET=1 in the environment", f"none{late}")
    tiles = Tiles(16, 16, 1, 1)
    return compile(variant, target="triton", config=Config(tiles, tiles, tiles, leaf=16))


def compare(
    function: Callable[..., Any],
    variant: Variant,
    case: Case,
    *,
    on: On = "cpu",
    seed: int = 0,
    ranges: Ranges | None = None,
) -> list[Record]:
    """The records of one call: out, lse where there is one softmax, d<name> for each real input."""
    problem = problem_of(variant, case, "cuda" if on == "cuda" else "cpu", seed, ranges or {})
    wide = {
        name: x.detach().double() if x.is_floating_point() else x
        for name, x in problem.leaves.items()
    }
    wanted = results(partial(reference, variant), wide, problem)
    odd = [name for name, x in wanted.items() if x is not None and x.isnan().any()]
    if odd:
        note = "the formula itself gives NaN on these inputs; give their ranges"
        return [Record(case.name, case.dtype, odd[0], math.nan, 0.0, note)]
    try:
        with poisoned_memory():
            made = results(function, problem.leaves, problem)
    except Exception as error:  # noqa: BLE001  whatever is under test may fail: that is a finding
        note = f"{type(error).__name__}: {error}"
        return [Record(case.name, case.dtype, "call", math.inf, 0.0, note)]
    inputs = {x.name: x for x in variant.inputs}
    records = []
    for name, expected in wanted.items():
        given = inputs.get(name.removeprefix("d"))
        floor = FLOOR if given is None or given.place != "constant" else shared_floor(wanted["out"])
        ratio, note = difference(expected, made[name], floor)
        limit = bound(name, case.dtype, inputs)
        records.append(Record(case.name, case.dtype, name, ratio, limit, note))
    return records


def problem_of(variant: Variant, case: Case, device: str, seed: int, ranges: Ranges) -> Problem:
    """The tensors of a case: the same ones for the same seed."""
    dtype, random = DTYPES[case.dtype], torch.Generator().manual_seed(seed + 1)
    made = Sampler(case.shape, seed, case.far, ranges).tensors(variant, dtype)
    options: dict[str, Any] = {}
    if "positions" in made:
        options["positions"] = {name: x.to(device) for name, x in made.pop("positions").items()}
    if case.positions:
        gaps = torch.randint(1, 4, (case.shape.batch, case.shape.time), generator=random)
        options["positions"] = gaps.cumsum(1).to(device)
    if case.packed is not None:
        for side, lengths in zip("qk", case.packed, strict=True):
            ends = torch.tensor((0, *lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
            options[f"cu_seqlens_{side}"] = ends.to(device)
    leaves = {name: (in_poison(x) if case.strided else x).to(device) for name, x in made.items()}
    shape = (case.shape.batch, case.time_q, case.shape.heads)
    do = torch.randn(*shape, made["v"].shape[3], generator=random)
    do = do[:1, :1, :1].expand_as(do) if case.expanded else do
    has_lse = Signature(variant).has_lse
    dlse = torch.randn(shape, generator=random).to(device) if case.lse and has_lse else None
    return Problem(leaves, options, has_lse, do.to(dtype).to(device), dlse)


def results(
    function: Callable[..., Any], leaves: Mapping[str, Tensor], problem: Problem
) -> dict[str, Tensor | None]:
    """out, lse and the gradients of a call; None where autograd finds no way to an input."""
    leaves = {name: x.detach().requires_grad_(x.is_floating_point()) for name, x in leaves.items()}
    made = function(**leaves, **problem.options, return_lse=problem.has_lse)
    out, lse = made if problem.has_lse else (made, None)
    asked = [(out, problem.do.to(out.dtype))]
    if lse is not None and problem.dlse is not None:
        asked.append((lse, problem.dlse.to(lse.dtype)))
    real = {name: x for name, x in leaves.items() if x.requires_grad}
    outputs, cotangents = zip(*asked, strict=True)
    gradients = torch.autograd.grad(outputs, list(real.values()), cotangents, allow_unused=True)
    named = {"out": out, **({} if lse is None else {"lse": lse})}
    return named | {f"d{name}": x for name, x in zip(real, gradients, strict=True)}


def shared_floor(out: Tensor | None) -> float:
    """The floor of a parameter that all rows share: it and their roundings grow like sqrt(rows)."""
    return FLOOR if out is None else FLOOR * math.sqrt(max(out.shape[0] * out.shape[1], 1))


def difference(
    expected: Tensor | None, actual: Tensor | None, floor: float = FLOOR
) -> tuple[float, str]:
    """The relative RMS error, and what else is wrong: nothing there, another shape, NaN."""
    if expected is None or actual is None:
        return (
            (0.0, "") if actual is None and expected is None else _one_is_missing(expected, actual)
        )
    if actual.shape != expected.shape:
        return math.inf, f"the shape is {list(actual.shape)}, expected {list(expected.shape)}"
    a, e = actual.detach().double(), expected.detach().double()
    if a.isnan().any():
        return math.nan, f"{int(a.isnan().sum())} of {a.numel()} are NaN"
    infinite = a.isinf() | e.isinf()
    if not torch.equal(a[infinite], e[infinite]):
        return math.inf, "infinities stand in other places"
    a, e = a[~infinite], e[~infinite]
    return rms(a - e) / max(rms(e), floor), ""


def _one_is_missing(expected: Tensor | None, actual: Tensor | None) -> tuple[float, str]:
    """A None on one side alone; zeros, and rounding errors, stand for "no way to this input"."""
    if expected is None and actual is not None:
        return rms(actual.double()) / FLOOR, ""
    if expected is None or not expected.any():
        return 0.0, ""
    return math.inf, "there is no gradient"


def rms(x: Tensor) -> float:
    """The root of the mean square; 0 where there is nothing."""
    return math.sqrt(float(x.square().mean())) if x.numel() else 0.0


def bound(tensor: str, dtype: str, inputs: Mapping[str, Input]) -> float:
    """The largest relative RMS error allowed.

    fp32: 1e-5 of the output; 1e-4 of a gradient, since a learned slope makes logits of some 300
    here, three roundings of one are 300 * 3 * 2^-24 = 5e-5 of its weight, and a gradient multiplies
    two such numbers. 16 bits: what flash-linear-attention asks of its own kernels for PaTH and FoX,
    in relative RMS too.
    """
    is_gradient = tensor not in ("out", "lse")
    if dtype == "fp32":
        return 1e-4 if is_gradient else 1e-5
    if not is_gradient or dtype == "fp16":
        return 5e-3
    name = tensor.removeprefix("d")
    if name in ("q", "k", "v"):
        return 8e-3
    is_vector = bool(inputs[name].axes) and inputs[name].place != "constant"
    return 1.5e-2 if is_vector else 2e-2


def in_poison(x: Tensor) -> Tensor:
    """The same values with heads before time in memory, every second channel of NaN."""
    if not x.is_floating_point() or not x.ndim:
        return x
    y = x.transpose(1, 2) if x.ndim == 4 else x
    around = torch.full((*y.shape[:-1], 2 * y.shape[-1]), math.nan, dtype=x.dtype)
    inner = around[..., ::2].copy_(y)
    return inner.transpose(1, 2) if x.ndim == 4 else inner


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Torch hands out memory full of NaN: what a kernel forgets to write is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            # the interpreter runs both sides of tl.where, in numpy
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
        memory.fill_uninitialized_memory = fills

"""What the tests of compiled GPU kernels share: the device, the rows, calls beside the oracle.

They run on a CUDA device (marker `gpu`). With TRITON_INTERPRET=1 in the environment the same tests
run on the CPU in Triton's interpreter, on smaller sizes and without what only a GPU has:

    TRITON_INTERPRET=1 pytest tests/kernels
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

import compiled_calls
import pytest
from torch import Generator, Tensor, randint

from gnomon.dsl import catalogue
from gnomon.dsl.nodes import Input, Variant
from gnomon.dsl.reference import reference
from gnomon.dsl.trace import Declaration
from gnomon.runtime.check import (
    FLOOR,
    Record,
    bound,
    compare,
    difference,
    function_under_test,
    problem_of,
    rms,
)
from gnomon.runtime.check import results as oracle_results
from gnomon.runtime.compile import Attention
from gnomon.runtime.grid import DTYPES, Case, On
from gnomon.runtime.sample import Shape, roles_of

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON: On = "interpreter" if INTERPRETED else "cuda"
DEVICE = "cpu" if INTERPRETED else "cuda"
HALF = "fp16" if INTERPRETED else "bf16"
"""The narrow dtype: the interpreter computes bf16 wrongly without a word."""
HALF_DTYPE = DTYPES[HALF]

# the interpreter runs both sides of tl.where, in numpy
_quiet = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
kernel_test = [_quiet] if INTERPRETED else [pytest.mark.gpu]
"""The marks of a module: `pytestmark = kernel_test`."""
gpu_only = pytest.mark.skipif(INTERPRETED, reason="sizes or features that only a GPU has")

Judge = Callable[[list[Record]], None]
"""Keeps and prints figures, and fails where one is beyond its bound: the fixture `judge`."""
T = TypeVar("T")

WITHOUT_KERNELS = frozenset(
    ("ordered_rotations", "grape_ap", "cope", "stick_breaking", "geometric")
)
"""Rows that wait for scans of scores, and for exponentials of blocks of each token."""

HYPERPARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "sliding_window": {"size": 40},
    "streaming": {"size": 40, "sinks": 3},
    "prefix_lm": {"count": 20},
    "block_selection": {"size": 16},
    "rerope": {"window": 20},
    "self_extend": {"window": 20, "group": 4},
    "deberta": {"span": 24},
    "rope_dynamic_ntk": {"trained": 20},
    "log_n_scaling": {"trained": 20},
    "llama4_temperature": {"floor": 16},
}
"""Windows and the like that end inside of a short sequence."""

CORE = (
    *("fox", "tapa", "rope", "alibi_learned", "t5", "fire", "softpick", "learned_sink"),
    *("sliding_window", "streaming"),
)
"""The rows of the wide grid: each kind of stream, bias, mask and normaliser."""


def names() -> list[str]:
    """The rows of the catalogue that have kernels."""
    declared = [entry.name for entry in catalogue.ENTRIES if entry.declaration is not None]
    return [name for name in declared if name not in WITHOUT_KERNELS]


@cache
def row(name: str) -> Variant:
    """A row of the catalogue, with windows that are shorter than the sequences."""
    return catalogue.find(name).bind(**HYPERPARAMETERS.get(name, {}))


@cache
def compiled(variant: Variant) -> Attention:
    """One object a variant and process, so that each form is lowered once."""
    return function_under_test(variant, ON)


def pick(gpu: T, interpreted: T) -> T:
    """A size for the GPU, and one for the interpreter, which takes milliseconds an instruction."""
    return interpreted if INTERPRETED else gpu


def group(*words: object) -> pytest.MarkDecorator:
    """Tests of the same kernels stay in one process: each kernel is compiled once."""
    return pytest.mark.xdist_group("-".join(map(str, words)))


def width() -> int:
    """The usual number of channels."""
    return pick(64, 16)


def shape(time: int, **sizes: int | None) -> Shape:
    """Four query heads of one key head, the usual width."""
    usual: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 1, "dim": width(), "entries": 64}
    if INTERPRETED:
        usual |= {"batch": 1}
    return Shape(**{**usual, "time": time, **sizes})


def run_case(variant: Variant, case: Case) -> list[Record]:
    """Output, log-sum-exp and every gradient of a case beside the float64 oracle."""
    function = compiled(variant)
    if case.dtype == "fp32":
        return compare(function, variant, case, on=ON)
    return in_sixteen_bits(variant, case, compare(function, variant, case, on=ON, ranges=RANGES))


RANGES = {"slope": (0.01, 0.5)}
"""Where a slope grows with the distance, its gradient is the small difference of two large sums."""

WIDER = {"tapa_general": 8.0, "retention": 2.0, "softpick": 3.0}
"""Factors on the bounds of 16 bits for all tensors of a row.

tapa_general   its maps are rounded to 16 bits before they meet in a phase of some 10 radians
retention      so are its rotated queries and keys; nothing divides the sum of products
softpick       rows of few keys divide by |e^s - 1|, which may be near 0
"""
NOTHING = 1e-9
"""What float64 leaves of a sum that is 0."""
RUNNING_SUM = 4.0
"""A gate's gradient sums over all rows what rounding leaves of weights that add up to 1."""


def in_sixteen_bits(variant: Variant, case: Case, records: list[Record]) -> list[Record]:
    """The same records, as 16 bits allow it.

    A learned parameter is one sum over all pairs. It is measured against the size that it has when
    rows of random sign do not happen to cancel.
    """
    learned = {f"d{x.name}" for x in variant.inputs if x.place == "constant"}
    sums = {f"d{name}" for name in roles_of(variant).summed} - learned
    factor = WIDER.get(variant.name, 1.0)
    shares = not_cancelled(variant, case) if learned else {}
    return [
        replace(
            each,
            error=each.error * shares.get(each.tensor, 1.0),
            bound=each.bound * factor * (RUNNING_SUM if each.tensor in sums else 1.0),
        )
        for each in records
    ]


def not_cancelled(variant: Variant, case: Case) -> dict[str, float]:
    """Gradient of a parameter -> its size as a share of that with rows of random sign.

    One that is 0 by nature (a bias of all keys of a row) is held against the largest of them.
    """
    problem = problem_of(variant, case, DEVICE, 0, RANGES)
    wide = {n: x.double() if x.is_floating_point() else x for n, x in problem.leaves.items()}
    random = Generator().manual_seed(3)

    def sizes(cotangent: Tensor) -> dict[str, float]:
        found = oracle_results(partial(reference, variant), wide, replace(problem, do=cotangent))
        named = {f"d{x.name}" for x in variant.inputs if x.place == "constant"}
        return {n: rms(x.double()) for n, x in found.items() if n in named and x is not None}

    plain = sizes(problem.do)
    largest = dict(plain)
    for _ in range(4):
        signs = 2 * randint(2, (*problem.do.shape[:3], 1), generator=random).to(problem.do) - 1
        for name, size in sizes(problem.do * signs).items():
            largest[name] = max(largest[name], size)
    for name, size in plain.items():
        if size < NOTHING:
            largest[name] = max(largest.values())
    return {n: max(size, FLOOR) / max(largest[n], FLOOR) for n, size in plain.items()}


def on_device(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors where the kernels run."""
    return {name: x.to(DEVICE) for name, x in tensors.items()}


def results(variant: Declaration, tensors: Mapping[str, Tensor], **options: Any) -> dict[str, Any]:
    """out, lse and gradients of a compiled call; see compiled_calls.results."""
    return compiled_calls.results(
        compiled(variant.node), tensors, **with_cotangent(tensors, options)
    )


def oracle(variant: Declaration, tensors: Mapping[str, Tensor], **options: Any) -> dict[str, Any]:
    """The same by the float64 oracle, of the same rounded inputs."""
    wide = {n: x.detach().double() if x.is_floating_point() else x for n, x in tensors.items()}
    return compiled_calls.results(
        partial(reference, variant),
        wide,
        unused_is_zero=True,
        **with_cotangent(tensors, options),
    )


def with_cotangent(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with a gradient of the output, on the device and in the dtype of q."""
    q, v = tensors["q"], tensors["v"]
    if options.get("do") is not None:
        return dict(options)
    made = compiled_calls.normal(*q.shape[:3], v.shape[3], seed=5, dtype=q.dtype)
    return {**options, "do": made.to(q.device)}


def figures(
    case: str,
    variant: Declaration,
    expected: Mapping[str, Tensor],
    actual: Mapping[str, Tensor],
    bounds: Mapping[str, float] | None = None,
) -> list[Record]:
    """A record for each tensor that is expected; `bounds` for those with one of their own."""
    dtype = {2: HALF, 4: "fp32"}[actual["out"].dtype.itemsize]
    inputs: dict[str, Input] = {x.name: x for x in variant.node.inputs}
    found = []
    for name, value in expected.items():
        limit = (bounds or {}).get(name, bound(name, dtype, inputs))
        error, note = difference(value, actual[name])
        found.append(Record(case, dtype, name, error, limit, note))
    return found

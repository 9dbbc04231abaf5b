"""Ten rows of the catalogue through `gnomon.compile` and Numba's JIT, against the oracle."""

from functools import cache, partial
from typing import Any

import pytest
import torch
from generated_modules import doubled
from sentence_calls import Problem, Results, results
from support import Shape, assert_close

import gnomon as gn
from gnomon.dsl import catalogue
from gnomon.dsl.nodes import Variant
from gnomon.dsl.reference import reference
from gnomon.lowering.emit.signature_text import Signature
from gnomon.runtime.check import FLOOR
from gnomon.runtime.compile import Attention
from gnomon.runtime.sample import Sampler

HYPERPARAMETERS: dict[str, dict[str, Any]] = {"streaming": {"size": 40, "sinks": 3}}
ROWS = (
    *("fox", "rope", "alibi_learned", "tapa", "t5", "softpick"),
    *("ssd", "fire", "streaming", "differential"),
)
SHAPE = Shape(batch=2, time=150, queries=140, heads=4, kv_heads=2, value_dim=24, entries=32)
"""Two tiles of keys and of queries; fewer queries than keys."""


Bounds = tuple[float, float]
FP32, FP16, BF16 = (1e-5, 2e-5), (2e-3, 3e-3), (5e-3, 2e-2)
"""Relative RMS errors of output and log-sum-exp, and of gradients."""


@cache
def row(name: str) -> Variant:
    """The variant, with a window that is shorter than the sequences."""
    return catalogue.find(name).bind(**HYPERPARAMETERS.get(name, {}))


@cache
def compiled(name: str) -> Attention:
    """One object a row, so that what the JIT made serves every test."""
    return gn.compile(row(name))


def compare(name: str, dtype: torch.dtype, bounds: Bounds) -> Results:
    """Output, log-sum-exp and all gradients of a call are within the bounds."""
    variant = row(name)
    tensors = Sampler(SHAPE, ranges={"slope": (0.01, 0.5)}).tensors(variant, dtype)
    for x in tensors.values():
        x.requires_grad_(x.is_floating_point())
    has_lse = Signature(variant).has_lse
    exact = Problem(doubled(tensors), has_lse=has_lse)
    expected = results(partial(reference, variant), exact)
    actual = results(compiled(name), Problem(tensors, has_lse=has_lse))
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert_close(key, value, actual[key], bounds[key.startswith("d_")], floor=FLOOR)
    return actual


@pytest.mark.parametrize("name", ROWS)
def test_compiled_rows_agree_with_the_oracle(name: str) -> None:
    compare(name, torch.float32, FP32)


@pytest.mark.parametrize(
    ("name", "dtype", "bounds"), [("fox", torch.bfloat16, BF16), ("tapa", torch.float16, FP16)]
)
def test_sixteen_bit_rows_agree_with_the_oracle(
    name: str, dtype: torch.dtype, bounds: Bounds
) -> None:
    actual = compare(name, dtype, bounds)
    assert actual["out"].dtype == dtype
    assert actual["d_k"].dtype == dtype

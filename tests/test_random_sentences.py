"""Random sentences of the grammar agree between oracle, plain torch, tiles, Triton's interpreter.

`--hypothesis-profile=thorough` writes a thousand of them.
"""

import atexit
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import sentence_calls
import torch
from generated_modules import doubled, execute
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sentence_calls import Problem, Results, results
from sentences import Situation, sentences, situations
from support import Shape, assert_close, small_tensors

from gnomon.dsl import catalogue
from gnomon.dsl.reference import reference
from gnomon.dsl.trace import Declaration
from gnomon.lowering.emit.launch import Target
from gnomon.lowering.emit.module import Module, print_module
from gnomon.lowering.emit.plain import print_reference
from gnomon.lowering.emit.signature_text import Signature
from gnomon.lowering.pipelines import to_kernels, to_program
from gnomon.runtime.worker import Worker

BOUND, FLOOR = 2e-5, 5e-2
"""Relative RMS errors, and the size against which gradients are measured that are 0 by nature.

What cancels in the gradient of a token has size 1; that of a parameter sums over all rows.
"""
HALF = 5e-3
_worker = Worker({"TRITON_INTERPRET": "1"})
atexit.register(_worker.close)
unhurried = partial(hypothesis.settings, suppress_health_check=list(HealthCheck))


def problem_of(
    declaration: Declaration, situation: Situation, dtype: torch.dtype = torch.float32
) -> Problem:
    """The tensors of a situation."""
    tensors = small_tensors(
        declaration, situation.shape, dtype=dtype, seed=situation.seed, requires_grad=True
    )
    has_lse = Signature(declaration.node).has_lse
    return Problem(tensors, situation.options(), has_lse, situation.lse, situation.seed + 1)


def exact(problem: Problem) -> Problem:
    """The same numbers in float64."""
    return replace(problem, tensors=doubled(problem.tensors))


def expected_of(declaration: Declaration, problem: Problem) -> Results:
    """What the oracle gives for the same rounded tensors."""
    return results(partial(reference, declaration), exact(problem))


def module_text(declaration: Declaration, situation: Situation, target: Target) -> str:
    """The module of a declaration with the tiles of a situation; Numba's is plain Python."""
    program = to_program(declaration.node, positions=situation.positions)
    packed = situation.packed is not None
    kernels = [to_kernels(attention, packed=packed) for attention in program.attentions]
    tiles = dict(zip(("BM", "BN"), situation.tiles, strict=True))
    if target == "triton":
        tiles = {"BM": 16, "BN": 16, "num_warps": 1, "num_stages": 1}
    config = {kernel.name: tiles for each in kernels for kernel in each.all()}
    halves = ([], kernels) if packed else (kernels, [])
    return print_module(Module(program, *halves, target=target, jit=False, config=config))


def plain_torch(declaration: Declaration) -> Callable[..., Any]:
    """The reference that an export takes along."""
    head = "import math\nimport torch\nimport torch.nn.functional as F\n\n\n"
    text = head + print_reference(to_program(declaration.node))
    found: Callable[..., Any] = getattr(execute(text), f"{declaration.name}_reference")
    return found


def assert_same(
    declaration: Declaration, expected: Results, actual: Results, bound: float = BOUND
) -> None:
    """Every result within the bound."""
    assert actual.keys() == expected.keys()
    rows = max(math.prod(expected["out"].shape[:3]), 1)
    parameters = {f"d_{x.name}" for x in declaration.node.inputs if x.place == "constant"}
    for name, x in expected.items():
        floor = FLOOR * math.sqrt(rows) if name in parameters else FLOOR
        assert_close(name, x, actual[name], bound, floor=floor)


def assert_right(declaration: Declaration, situation: Situation) -> None:
    """Tiles as plain Python give what the oracle gives."""
    problem = problem_of(declaration, situation)
    call = getattr(execute(module_text(declaration, situation, "numba")), declaration.name)
    assert_same(declaration, expected_of(declaration, problem), results(call, problem))


def assert_plain_right(declaration: Declaration, situation: Situation) -> None:
    """The printed reference gives what the oracle gives, in float64."""
    problem = problem_of(declaration, situation)
    actual = results(plain_torch(declaration), exact(problem))
    assert_same(declaration, expected_of(declaration, problem), actual, 1e-10)


def assert_interpreted(
    declaration: Declaration, situation: Situation, dtype: torch.dtype, bound: float
) -> None:
    """Triton's kernels in its interpreter give what the oracle gives."""
    problem = problem_of(declaration, situation, dtype)
    text = module_text(declaration, situation, "triton")
    job = Path(sentence_calls.__file__), "interpreted", text, declaration.name, problem
    actual = _worker.run(*job, timeout=300)
    assert_same(declaration, expected_of(declaration, problem), actual, bound)


@unhurried()
@given(st.data())
def test_tiles_agree_with_the_oracle(data: st.DataObject) -> None:
    declaration = data.draw(sentences()).declaration
    assert_right(declaration, data.draw(situations(declaration)))


@unhurried()
@given(st.data())
def test_plain_torch_agrees_with_the_oracle(data: st.DataObject) -> None:
    declaration = data.draw(sentences()).declaration
    assert_plain_right(declaration, data.draw(situations(declaration)))


@unhurried(max_examples=4, derandomize=True)
@given(st.data())
def test_the_interpreter_agrees_with_the_oracle(data: st.DataObject) -> None:
    declaration = data.draw(sentences()).declaration
    situation = data.draw(situations(declaration, longest=18))
    assert_interpreted(declaration, situation, torch.float32, BOUND)


@pytest.mark.parametrize("name", ["fox", "tapa", "rope"])
def test_the_interpreter_agrees_in_sixteen_bits(name: str) -> None:
    situation = Situation(Shape(batch=1, time=20, queries=17, heads=2, kv_heads=1, value_dim=8))
    assert_interpreted(catalogue.find(name), situation, torch.float16, HALF)

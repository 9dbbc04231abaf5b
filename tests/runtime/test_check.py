"""The comparison with the oracle passes what is right, and names what is wrong."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import gnomon as gn
from gnomon.dsl.errors import InputError
from gnomon.dsl.reference import reference
from gnomon.runtime.check import (
    FLOOR,
    Record,
    bound,
    compare,
    difference,
    function_under_test,
    in_poison,
    poisoned_memory,
    shared_floor,
)
from gnomon.runtime.grid import Case, cases
from gnomon.runtime.sample import Shape

FOX = gn.catalogue.fox.node
CASE = Case("33 tokens", Shape(time=33))


def rounded(case: Case) -> Callable[..., Any]:
    """The oracle as a kernel would answer: in the dtype of its inputs."""

    def function(q: Tensor, *args: Tensor, **kwargs: Any) -> Any:
        found = reference(FOX, q, *args, **kwargs)
        return tuple(x.to(y) for x, y in zip(found, (q.dtype, torch.float32), strict=True))

    return function


@pytest.mark.parametrize("case", cases(FOX), ids=lambda case: f"{case.dtype}-{case.name}")
def test_what_is_right_passes_every_case(case: Case) -> None:
    records = compare(rounded(case), FOX, case)
    assert [record.tensor for record in records] == ["out", "lse", "dq", "dk", "dlog_f", "dv"]
    assert [record for record in records if not record.passed] == []


class Wrong(torch.autograd.Function):
    """The identity, whose gradient is 1 % too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        return dx * 1.01


def sabotaged(name: str, change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """The oracle on a changed input."""

    def function(**tensors: Any) -> Any:
        return reference(FOX, **{**tensors, name: change(tensors[name])})

    return function


@pytest.mark.parametrize("name", ["q", "k", "v", "log_f"])
def test_a_wrong_gradient_is_named(name: str) -> None:
    records = compare(sabotaged(name, Wrong.apply), FOX, CASE)
    wrong = [record for record in records if not record.passed]
    assert [record.tensor for record in wrong] == [f"d{name}"]
    assert wrong[0].error == pytest.approx(0.01, rel=1e-3)


def test_a_gradient_that_is_cut_off_is_named() -> None:
    records = compare(sabotaged("log_f", Tensor.detach), FOX, CASE)
    assert [(r.tensor, r.note) for r in records if not r.passed] == [
        ("dlog_f", "there is no gradient")
    ]


def test_an_output_of_nan_is_named() -> None:
    records = compare(sabotaged("v", lambda v: v * math.nan), FOX, CASE)
    (out,) = (record for record in records if record.tensor == "out")
    assert not out.passed
    assert out.note == "4224 of 4224 are NaN"


def test_a_call_that_fails_is_a_record() -> None:
    def broken(**_: Any) -> Any:
        raise ZeroDivisionError("no kernel")

    (record,) = compare(broken, FOX, CASE)
    assert (record.tensor, record.note) == ("call", "ZeroDivisionError: no kernel")
    assert not record.passed


def test_a_formula_without_value_on_the_inputs_asks_for_ranges() -> None:
    @gn.variant
    def roots(q, k):  # type: ignore[no-untyped-def]
        "sqrt(q_i . k_j)"
        return gn.softmax(gn.sqrt(gn.dot(q, k)), mask=gn.causal())

    (record,) = compare(partial(reference, roots), roots.node, CASE)
    assert record.note == "the formula itself gives NaN on these inputs; give their ranges"


def test_differences_are_relative_and_above_a_floor() -> None:
    ones = torch.ones(4)
    assert difference(ones, ones * 1.5) == (0.5, "")
    assert difference(ones * 0, ones * 1e-3)[0] == pytest.approx(1e-3 / FLOOR)
    assert difference(ones * 0, ones * 1e-3, 0.5)[0] == pytest.approx(2e-3)
    assert shared_floor(torch.zeros(2, 50, 3, 4)) == pytest.approx(10 * FLOOR)
    dead = torch.tensor([1.0, -math.inf])
    assert difference(dead, dead) == (0.0, "")
    assert difference(dead, ones[:2])[1] == "infinities stand in other places"
    assert difference(ones, ones[:3])[1] == "the shape is [3], expected [4]"
    assert difference(None, ones) == (1 / FLOOR, "")
    assert difference(None, ones * 1e-8)[0] == pytest.approx(1e-8 / FLOOR)
    assert difference(None, ones * 0) == (0.0, "")
    assert not Record("", "", "", *difference(ones, ones * math.nan)[:1], 1.0).passed


def test_bounds() -> None:
    inputs = {x.name: x for x in gn.catalogue.path_fox.node.inputs}
    names = ("out", "lse", "dq", "dv", "dw", "dbeta", "dlog_f")
    assert [bound(n, "fp32", inputs) for n in names] == [1e-5, 1e-5, *[1e-4] * 5]
    halves = [5e-3, 5e-3, 8e-3, 8e-3, 1.5e-2, 2e-2, 2e-2]
    assert [bound(n, "bf16", inputs) for n in names] == halves
    assert [bound(n, "fp16", inputs) for n in names] == [5e-3] * 7


def test_strided_inputs_keep_their_values_among_nan() -> None:
    x = torch.randn(2, 5, 3, 8)
    y = in_poison(x)
    assert torch.equal(x, y)
    assert y.stride() == (240, 16, 80, 2)
    assert torch.isnan(torch.as_strided(y, (480,), (1,), 0)[1])


def test_memory_is_poisoned_and_then_no_more() -> None:
    with poisoned_memory():
        assert torch.empty(3).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_interpreter_must_be_on_before_triton_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InputError, match="TRITON_INTERPRET=1 in the environment"):
        function_under_test(FOX, "interpreter")

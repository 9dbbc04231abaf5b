"""`gnomon check`: the table, the object, the exit code."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from command_line import refusal, run, text
from torch import Tensor

from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.nodes import Variant
from gnomon.dsl.reference import reference
from gnomon.runtime.grid import Case
from gnomon.runtime.sample import Shape

CASES = (Case("9 tokens", Shape(time=9)), Case("4 tokens", Shape(time=4), "bf16"))
Kernel = Callable[[Variant], Callable[..., Any]]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kernel], None]:
    """Puts a function in the place of the compiled one, on two small cases."""

    def use(made: Kernel) -> None:
        monkeypatch.setattr("gnomon.runtime.check.function_under_test", lambda node, _: made(node))
        monkeypatch.setattr("gnomon.runtime.grid.cases", lambda *_, **__: CASES)

    return use


def right(node: Variant) -> Callable[..., Any]:
    def function(q: Tensor, *args: Tensor, **kwargs: Any) -> Any:
        found = reference(node, q, *args, **kwargs)
        if isinstance(found, tuple):
            return found[0].to(q.dtype), found[1].float()
        return found.to(q.dtype)

    return function


def wrong(node: Variant) -> Callable[..., Any]:
    """The output in fp32 is a little too large; its gradients are right."""

    def function(q: Tensor, *args: Tensor, **kwargs: Any) -> Any:
        out, lse = right(node)(q, *args, **kwargs)
        return out + (out * 1e-3).detach() * (q.dtype == torch.float32), lse

    return function


def test_compiled_kernels_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one test here that waits for Numba: padded calls of one variant."""
    monkeypatch.setattr("gnomon.runtime.grid._packed", lambda *_, **__: [])
    found = json.loads(text("check", "nope", "--quick", "--json"))
    assert found["passed"] is True
    assert {record["tensor"] for record in found["records"]} == {"out", "lse", "dq", "dk", "dv"}
    assert {record["dtype"] for record in found["records"]} == {"fp32"}
    assert len({record["case"] for record in found["records"]}) == 9


def test_what_is_right_has_exit_code_0(kernel: Callable[[Kernel], None]) -> None:
    kernel(right)
    shown = text("check", "fox")
    assert "WRONG" not in shown
    assert "passed  2 cases" in shown
    rows = [line.split() for line in shown.splitlines() if " ok " in line]
    assert [row[0] for row in rows if row[0] in ("fp32", "bf16")] == ["fp32", "bf16"]
    assert len(rows) == 12


def test_what_is_wrong_has_exit_code_1_and_its_worst_case(
    kernel: Callable[[Kernel], None],
) -> None:
    kernel(wrong)
    result = run("check", "fox")
    assert result.exit_code == 1
    lines = [line for line in result.stdout.splitlines() if "WRONG" in line]
    assert [line.split()[-6:] for line in lines] == [
        ["out", "1.0e-03", "1e-05", "WRONG", "9", "tokens"],
    ]
    assert "FAILED  2 cases" in result.stdout


def test_every_error_for_a_program(kernel: Callable[[Kernel], None]) -> None:
    kernel(wrong)
    result = run("check", "fox", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (found["name"], found["on"], found["passed"]) == ("fox", "cpu", False)
    assert len(found["records"]) == 12
    (out,) = (r for r in found["records"] if (r["tensor"], r["dtype"]) == ("out", "fp32"))
    assert out["error"] == pytest.approx(1e-3, rel=1e-2)
    assert out["bound"] == 1e-5


def test_all_goes_on_after_one_that_is_wrong_or_not_lowered(
    kernel: Callable[[Kernel], None],
) -> None:
    def mixed(node: Variant) -> Callable[..., Any]:
        if node.name.startswith("path"):
            raise UnsupportedError("no schedule", "wait")
        return wrong(node) if node.name == "fox" else right(node)

    kernel(mixed)
    result = run("check", "--all")
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert result.exit_code == 1
    assert "not lowered yet" in lines["path_fox"]
    assert lines["fox"].split()[1] == "WRONG"
    assert lines["tapa"].split()[1] == "ok"
    assert "dape" not in lines


def test_questions_that_make_no_sense() -> None:
    assert refusal("check") == "VARIANT: expected a variant, or --all; got none\n"
    assert "a variant, or --all" in refusal("check", "fox", "--all")
    assert refusal("check", "fox", "--range", "x=1") == (
        "--range: expected NAME=LOW:HIGH, as in f=0.1:0.9; got 'x=1'\n"
    )
    assert "cope: ScoreScan has no schedule yet" in refusal("check", "cope")


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what is said without a GPU")
def test_a_device_that_is_not_there() -> None:
    assert refusal("check", "fox", "--on", "cuda") == (
        "on: expected a device of this machine; got cuda; torch finds none\n"
    )

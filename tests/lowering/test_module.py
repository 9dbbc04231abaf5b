import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from generated_modules import assert_formatted, doubled, execute, gradients, oracle, plain_python
from support import Shape, assert_close, small_tensors

import gnomon as gn
from gnomon.dsl import catalogue
from gnomon.dsl.errors import InputError
from gnomon.dsl.trace import Declaration
from gnomon.lowering.emit.module import Module, Provenance, print_module
from gnomon.lowering.pipelines import to_kernels, to_program

# one of each: what a prologue, a statistic, a constant, a mask or an epilogue can be
VARIANTS = (
    *(
        "fox",
        "alibi",
        "rope",
        "rope_axial",
        "m_rope",
        "rope_dynamic_ntk",
        "carope",
        "mla",
        "grape_m",
    ),
    *("comrope", "learned_absolute", "deberta", "swin", "fire", "kerple_power", "tapa"),
    *("learned_sink", "scalable_softmax", "softpick", "retention", "ssd", "sigmoid_attention"),
    *("differential", "gated", "documents", "block_selection", "streaming"),
)
CUTS = {"cu_seqlens_q": [0, 3, 3, 10], "cu_seqlens_k": [0, 5, 8, 24]}


def function(declaration: Declaration, **options: Any) -> Any:
    module = execute(print_module(plain_python(declaration, **options)))
    return getattr(module, declaration.name)


def offsets(**cuts: list[int]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(cut) for name, cut in cuts.items()}


def assert_agrees(
    declaration: Declaration, call: Any, tensors: dict[str, Any], **options: Any
) -> None:
    """Outputs in float32 tiles and gradients against the oracle."""
    twins = doubled(tensors)
    expected, actual = oracle(declaration, twins, **options), call(**tensors, **options)
    assert_close("out", expected, actual, 5e-6)
    grads = gradients(actual, tensors)
    for name, gradient in gradients(expected, twins).items():
        assert_close(name, gradient, grads[name], 2e-5, floor=1e-2)


@pytest.mark.parametrize("name", VARIANTS)
def test_padded_calls_agree_with_the_oracle(name: str) -> None:
    declaration = catalogue.find(name)
    tensors = small_tensors(declaration, time=19, queries=11, requires_grad=True)
    assert_agrees(declaration, function(declaration, packed=False), tensors)


@pytest.mark.parametrize("name", ["fox", "rope", "rope_dynamic_ntk", "learned_sink", "retention"])
def test_packed_calls_agree_with_the_oracle(name: str) -> None:
    declaration = catalogue.find(name)
    tensors = small_tensors(declaration, batch=1, time=24, queries=10, requires_grad=True)
    call = function(declaration, padded=False)
    assert_agrees(declaration, call, tensors, **offsets(**CUTS))


# ---- gradients of what the kernels do not sum


@gn.variant
def sink_beside_a_gate(
    q: gn.Value, k: gn.Value, sink: gn.Param[gn.Head], log_f: gn.Token[gn.Head]
) -> gn.Value:
    "FoX with a sink: the row's own gate does not cancel"
    score = gn.dot(q, k) * gn.rsqrt_dim(q) + gn.decay(log_f)
    return gn.softmax(score, mask=gn.causal(), sink=sink)


@pytest.mark.parametrize("declaration", [catalogue.fox, sink_beside_a_gate, catalogue.fire])
def test_row_terms_and_sinks_have_the_gradient_of_the_log_sum_exp(declaration: Declaration) -> None:
    tensors = small_tensors(declaration, time=13, requires_grad=True)
    twins, call = doubled(tensors), function(declaration, packed=False)
    expected = oracle(declaration, twins, return_lse=True)
    actual = call(**tensors, return_lse=True)
    assert_close("lse", expected[1], actual[1], 2e-6)
    grads = gradients(_both(actual), tensors)
    for name, gradient in gradients(_both(expected), twins).items():
        assert_close(name, gradient, grads[name], 2e-5, floor=1e-2)


def _both(results: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.cat([results[0].double(), results[1].double()[..., None]], -1)


def test_rows_without_keys_are_zero_and_give_no_gradient() -> None:
    tensors = small_tensors(catalogue.nope, time=4, queries=9, requires_grad=True)
    out, lse = function(catalogue.nope, packed=False)(**tensors, return_lse=True)
    assert out[:, :5].abs().max() == 0
    assert bool((lse[:, :5] == -torch.inf).all())
    (out.square().sum() + lse.exp().sum()).backward()
    assert all(bool(x.grad.isfinite().all()) for x in tensors.values())
    assert tensors["q"].grad[:, :5].abs().max() == 0


def test_no_gradient_is_none_and_none_is_formed_for_nobody() -> None:
    tensors = small_tensors(catalogue.fire, time=9, requires_grad=True)
    call = function(catalogue.fire, packed=False)
    call(**tensors).sum().backward()
    assert [name for name, x in tensors.items() if x.grad is None] == []
    tensors = {name: x.detach() for name, x in tensors.items()}
    tensors["v"].requires_grad_()
    call(**tensors).sum().backward()
    assert tensors["v"].grad is not None


def test_cotangents_may_be_views() -> None:
    tensors = small_tensors(catalogue.fox, time=9, requires_grad=True)
    out = function(catalogue.fox, packed=False)(**tensors)
    expanded = torch.ones(()).expand_as(out)
    first = torch.autograd.grad(out, tensors["q"], expanded, retain_graph=True)[0]
    second = torch.autograd.grad(out, tensors["q"], torch.ones_like(out))[0]
    assert torch.equal(first, second)


def test_a_running_sum_does_not_add_up_the_rounding_of_16_bit_outputs() -> None:
    shape = Shape(batch=1, time=60, heads=2, kv_heads=1, dim=8)
    tensors = small_tensors(catalogue.fox, shape, dtype=torch.bfloat16, requires_grad=True)
    call, twins = function(catalogue.fox, packed=False, io="bf16"), doubled(tensors)
    out = call(**tensors)
    assert out.dtype == torch.bfloat16
    got = gradients(out, tensors)["log_f"]
    assert got.dtype == torch.float32
    expected = gradients(oracle(catalogue.fox, twins), twins)["log_f"]
    assert_close("log_f", expected, got, 3e-3)  # 2e-2 where delta is of the rounded output


# ---- positions


def test_positions_of_the_call_turn_q_and_k() -> None:
    tensors = small_tensors(catalogue.rope, time=12, queries=5, requires_grad=True)
    positions = torch.randint(0, 500, (2, 12)).sort(1).values
    assert_agrees(
        catalogue.rope, function(catalogue.rope, packed=False), tensors, positions=positions
    )


def test_positions_are_refused_where_the_kernel_counts_them() -> None:
    tensors = small_tensors(catalogue.alibi, time=6)
    call = function(catalogue.alibi, packed=False)
    with pytest.raises(ValueError, match="positions: expected None"):
        call(**tensors, positions=torch.arange(6).expand(2, 6))
    given = function(catalogue.alibi, packed=False, positions=True)
    positions = torch.arange(6).expand(2, 6) * 3
    assert_close(
        "out",
        oracle(catalogue.alibi, doubled(tensors), positions=positions),
        given(**tensors, positions=positions),
        5e-6,
    )


def test_real_positions_are_refused_where_a_kernel_reads_integers() -> None:
    """Positions that choose entries of a table; in a formula alone they may be real."""
    tensors = small_tensors(catalogue.t5, time=6)
    call = function(catalogue.t5, packed=False, positions=True)
    with pytest.raises(ValueError, match="positions: expected integers"):
        call(**tensors, positions=torch.rand(2, 6))
    positions = (torch.rand(2, 6) * 50).sort().values
    for row in (catalogue.rope, catalogue.alibi):
        given = small_tensors(row, time=6)
        got = function(row, packed=False, positions=True)(**given, positions=positions)
        assert_close("out", oracle(row, doubled(given), positions=positions), got, 5e-6)


# ---- refusals


FOX = function(catalogue.fox)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {"q": t["q"][0]}, r"q: expected the shape \[batch, time_q, head, d\]; got \[20"),
        (lambda t: {"k": t["k"][..., 1:]}, r"k: expected the shape .*d 16\]; got \[2, 20, 2, 15\]"),
        (
            lambda t: {x: t[x][:, :, [0, 1, 1]] for x in ("k", "v")},
            "k: expected a number of heads that divides",
        ),
        (lambda t: {"v": t["v"][:1]}, r"v: expected the shape \[batch 2"),
        (lambda t: {"v": t["v"].double()}, "v: expected the dtype of q, torch.float32"),
        (lambda t: {"log_f": t["log_f"].half()}, r"log_f: expected float32.*log_f.float\(\)"),
        (lambda t: {"log_f": 3.0}, "log_f: expected a tensor; got float"),
        (lambda t: {"q": torch.cat([t["q"]] * 2, 1)}, "q: expected at most time_k = 20 queries"),
        (lambda t: {"cu_seqlens": torch.tensor([0, 20])}, "q: expected batch 1 with packed"),
        (lambda t: {"return_lse": True, "q": t["q"].double()}, "k: expected the dtype of q"),
    ],
)
def test_bad_calls_are_refused_by_name(change: Any, words: str) -> None:
    tensors = small_tensors(catalogue.fox)
    with pytest.raises(ValueError, match=words):
        FOX(**{**tensors, **change(tensors)})


@pytest.mark.parametrize(
    ("cuts", "words"),
    [
        ({"cu_seqlens": [0, 5]}, "cu_seqlens: expected 0, then ends that never fall, the last"),
        ({"cu_seqlens": [0, 9, 5, 20]}, "cu_seqlens: expected 0, then ends that never fall"),
        ({"cu_seqlens_q": [0, 20]}, "cu_seqlens_k: expected cu_seqlens_q and cu_seqlens_k"),
        ({"cu_seqlens": [0, 20], "cu_seqlens_q": [0, 20]}, "cu_seqlens: expected no cu_seqlens_q"),
        ({"cu_seqlens_q": [0, 3, 20], "cu_seqlens_k": [0, 20]}, "cu_seqlens_k: expected 2 seq"),
        ({"cu_seqlens_q": [0, 15, 20], "cu_seqlens_k": [0, 3, 20]}, "q: expected at most time_k"),
    ],
)
def test_bad_offsets_are_refused_by_name(cuts: dict[str, list[int]], words: str) -> None:
    tensors = small_tensors(catalogue.fox, batch=1)
    with pytest.raises(ValueError, match=words):
        FOX(**tensors, **offsets(**cuts))


def test_empty_calls_have_empty_results() -> None:
    for shape in (Shape(batch=0), Shape(time=0), Shape()):
        tensors = small_tensors(catalogue.fox, shape)
        tensors["q"] = tensors["q"][:, :0] if shape == Shape() else tensors["q"]
        tensors = {name: x.detach().requires_grad_() for name, x in tensors.items()}
        out = FOX(**tensors)
        out.sum().backward()
        assert out.numel() == 0
        assert all(x.grad.abs().sum() == 0 for x in tensors.values())


def test_a_module_without_modules_of_a_kind_says_so() -> None:
    with pytest.raises(ValueError, match="cu_seqlens: expected None: no kernel"):
        function(catalogue.fox, packed=False)(
            **small_tensors(catalogue.fox, batch=1), cu_seqlens=torch.tensor([0, 20])
        )
    with pytest.raises(ValueError, match="cu_seqlens: expected the offsets"):
        function(catalogue.fox, padded=False)(**small_tensors(catalogue.fox, batch=1))
    with pytest.raises(ValueError, match="return_lse: expected False"):
        function(catalogue.softpick, packed=False)(
            **small_tensors(catalogue.softpick), return_lse=True
        )


# ---- text


def triton_text(declaration: Declaration, provenance: Provenance | None = None) -> str:
    program = to_program(declaration.node)
    forms = [[to_kernels(a, packed=form) for a in program.attentions] for form in (False, True)]
    made = Module(program, forms[0], forms[1], "triton", provenance=provenance or Provenance())
    return print_module(made)


def test_texts_are_formatted_and_lint_free(tmp_path: Path) -> None:
    names = ["fox", "differential", "fire", "rope_axial", "softpick", "documents", "ssd"]
    texts = {f"{name}.py": triton_text(catalogue.find(name)) for name in names}
    assert_formatted(texts, tmp_path)


def test_the_head_says_where_the_file_comes_from() -> None:
    origin = Provenance("abc123", "gnomon export fox", "0.1.0", "Copyright someone.\nMIT")
    lines = triton_text(catalogue.fox, origin).splitlines()
    assert lines[:2] == ["# Copyright someone.", "# MIT"]
    assert lines[2] == '"""fox: attention by triton, generated by gnomon 0.1.0'
    assert lines[4] == "    q_i . k_j / sqrt(d) + sum_{s=j+1..i} log f_s"
    assert lines[6] == "Variant abc123. Do not edit: `gnomon export fox` writes it anew."


def imported(text: str) -> set[str]:
    """The packages that a text imports, those of Python itself apart."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found - set(sys.stdlib_module_names)


def test_a_module_imports_torch_and_its_kernel_language_alone() -> None:
    assert imported(triton_text(catalogue.fox)) == {"torch", "triton"}
    compiled = print_module(plain_python(catalogue.fox, jit=True))
    assert imported(compiled) <= {"torch", "numba", "numpy", "scipy", "threadpoolctl"}


def test_the_same_module_is_the_same_text() -> None:
    assert triton_text(catalogue.fox) == triton_text(catalogue.fox)


def test_an_export_without_modules_is_an_input_error() -> None:
    from gnomon.lowering.export.standalone import Standalone

    with pytest.raises(InputError, match="modules: expected a module for each target"):
        _ = Standalone([]).module


_INTERPRETED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import fox
torch.manual_seed(0)
x = {n: torch.randn(1, 20, h, 16, requires_grad=True) for n, h in (("q", 2), ("k", 1), ("v", 1))}
x["log_f"] = torch.nn.functional.logsigmoid(torch.randn(1, 20, 2)).requires_grad_()
out = fox.fox(**x)
packed = fox.fox(**x, cu_seqlens=torch.tensor([0, 7, 20]))
(out.sum() + packed.square().sum()).backward()
torch.save([{n: t.detach() for n, t in x.items()}, out.detach(), packed.detach(),
            {n: t.grad for n, t in x.items()}], sys.argv[2])
"""


def test_a_triton_module_launches_in_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "fox.py").write_text(triton_text(catalogue.fox))
    results = tmp_path / "results.pt"
    command = [sys.executable, "-c", _INTERPRETED, str(tmp_path), str(results)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run(command, check=True, env=environment, timeout=300)
    tensors, out, packed, grads = torch.load(results)
    twins = {name: x.double().requires_grad_() for name, x in tensors.items()}
    expected = oracle(catalogue.fox, twins)
    cut = oracle(catalogue.fox, twins, cu_seqlens=torch.tensor([0, 7, 20]))
    assert_close("out", expected, out, 1e-5)
    assert_close("packed", cut, packed, 1e-5)
    (expected.sum() + cut.square().sum()).backward()
    for name, x in twins.items():
        assert x.grad is not None
        assert_close(name, x.grad, grads[name], 5e-5)

from pathlib import Path
from typing import Any

import pytest
import torch
from generated_modules import assert_formatted, doubled, execute, gradients, oracle
from support import Shape, assert_close, small_tensors

import gnomon as gn
from gnomon.dsl import catalogue
from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.nodes import Apply, Constant, Expr, Input, Width
from gnomon.dsl.trace import Declaration
from gnomon.lowering.emit.plain import print_reference
from gnomon.lowering.emit.prologue import body
from gnomon.lowering.emit.text import atom, infix
from gnomon.lowering.emit.torch import Values
from gnomon.lowering.emit.torch_text import power, span, width_text
from gnomon.lowering.pipelines import to_program

D = Width.of("d")


def _lowered() -> list[Declaration]:
    found = []
    for entry in catalogue.ENTRIES:
        if entry.declaration is not None:
            try:
                to_program(entry.declaration.node)
            except UnsupportedError:
                continue
            found.append(entry.declaration)
    return found


LOWERED = _lowered()


def values(declaration: Declaration) -> Values:
    return Values(declaration.node)


def text(value: Expr, declaration: Declaration = catalogue.fox, **context: object) -> str:
    return str(values(declaration).value(value, **context).code)


# ---- text


def test_powers_of_names_and_numbers_have_no_spaces() -> None:
    assert str(power(atom("d"), atom("-0.5"))) == "d**-0.5"
    assert str(power(infix("*", atom("2"), atom("d")), atom("0.5"))) == "(2 * d) ** 0.5"


def test_spans_are_spaced_as_ruff_does() -> None:
    assert [span("", "d // 2"), span("d // 2", ""), span("a", "b")] == [
        ": d // 2",
        "d // 2 :",
        "a:b",
    ]


def test_widths_are_integer_expressions() -> None:
    share = D.scaled(Width.of("d", 3).parts[0][1] / 4) + Width.of("Rope")
    names = {"d": "d", "Rope": "rope"}
    assert str(width_text(share, names.__getitem__)) == "rope + 3 * d // 4"


def test_numbers_without_a_tensor_stay_numbers() -> None:
    scale = gn.rsqrt_dim(Input("q", "row", "Head", (D,), "real"))
    assert text(scale) == "d**-0.5"
    assert text(Apply("maximum", (Constant(2.0), scale))) == "max(2.0, d**-0.5)"


def test_key_heads_are_repeated_only_beside_query_heads() -> None:
    per_key = Input("g", "token", "KVHead", (), "real")
    per_query = Input("h", "token", "Head", (), "real")
    assert text(per_key * per_key) == "g.float() * g.float()"
    assert text(per_key * per_query) == "g.float().repeat_interleave(G, -1) * h.float()"


def test_angles_are_float64_and_their_cosine_float32() -> None:
    angle = Input("z", "token", None, (), "real") * 0.5
    assert text(gn.cos(angle)) == "(z[:, :, None].double() * 0.5).cos().float()"


def test_integer_powers_are_real() -> None:
    assert text(2 ** -gn.head()) == "2 ** (-head).float()"


def test_q_and_k_are_passed_through_and_their_shares_keep_the_dtype() -> None:
    lines = " ".join(x.strip() for x in body(to_program(catalogue.tapa.node)).lines)
    assert "q_1, k_1, q_2, k_2, v" in lines
    assert ".float()" not in lines
    assert "apply(call, d**-0.5, q, k, v)" in "\n".join(body(to_program(catalogue.nope.node)).lines)


def test_a_shared_value_is_named_once() -> None:
    lines = body(to_program(catalogue.rope.node)).lines
    assert sum("10000 ** (-2 * plane / d)" in line for line in lines) == 1


def test_what_has_no_torch_code_is_refused_with_its_line() -> None:
    with pytest.raises(UnsupportedError, match="Decay has no value of one token"):
        text(gn.decay(Input("log_f", "token", "Head", (), "real")))


# ---- values


def test_what_where_does_not_choose_leaves_no_nan_in_the_gradient() -> None:
    x = Input("x", "token", "Head", (), "real")
    made = Values(catalogue.fox.node)
    code = made.value(gn.where(x > 0.0, gn.log(x) + gn.sqrt(x) + 1.0 / x, 0.0)).code
    lines = "\n".join(line.strip() for line in made.lines)
    point = torch.tensor([[[-1.0, 0.0, 2.0]]], requires_grad=True)
    scope = {"torch": torch, "x": point}
    exec(lines, scope)
    eval(str(code), scope).sum().backward()
    expected = torch.tensor([[[0.0, 0.0, 1 / 2 + 0.5 / 2**0.5 - 1 / 4]]])
    torch.testing.assert_close(point.grad, expected)


def test_softplus_is_exact_beyond_twenty() -> None:
    x = Input("x", "token", "Head", (), "real")
    scope = {"F": torch.nn.functional, "x": torch.tensor(25.0, dtype=torch.float64)}
    got = eval(text(gn.softplus(x), exact=True), scope)
    assert got.item() == pytest.approx(25.0 + 1.388794386487e-11, abs=1e-15)


# ---- the plain reference


@pytest.mark.parametrize("name", ["fox", "t5", "tapa", "differential", "documents"])
def test_reference_text(name: str, golden: Any) -> None:
    printed = print_reference(to_program(catalogue.find(name).node))
    assert printed == golden.code


@pytest.mark.parametrize("declaration", LOWERED, ids=lambda x: x.name)
def test_reference_agrees_with_the_oracle(declaration: Declaration) -> None:
    printed = print_reference(to_program(declaration.node))
    function = _function(printed, declaration)
    for options, shape in _calls():
        tensors = small_tensors(declaration, shape, seed=3, requires_grad=True, dtype=torch.float64)
        expected, twins = oracle(declaration, tensors, **options), doubled(tensors)
        actual = function(**twins, **options)
        assert_close("out", expected, actual, 1e-10)
        grads = gradients(actual, twins)
        for key, gradient in gradients(expected, tensors).items():
            assert_close(key, gradient, grads[key], 1e-9, floor=1e-4)


def _function(printed: str, declaration: Declaration) -> Any:
    head = "import math\nimport torch\nimport torch.nn.functional as F\n\n\n"
    return getattr(execute(head + printed), f"{declaration.name}_reference")


def _calls() -> list[tuple[dict[str, torch.Tensor], Shape]]:
    packed = {
        "cu_seqlens_q": torch.tensor([0, 3, 3, 10]),
        "cu_seqlens_k": torch.tensor([0, 5, 8, 24]),
    }
    return [({}, Shape(time=19, queries=7)), (packed, Shape(batch=1, time=24, queries=10))]


def test_reference_rows_without_keys_are_zero_and_give_no_gradient() -> None:
    function = _function(
        print_reference(to_program(catalogue.learned_sink.node)), catalogue.learned_sink
    )
    tensors = small_tensors(catalogue.learned_sink, time=3, queries=5, requires_grad=True)
    out, lse = function(**tensors, return_lse=True)
    assert out[:, :2].abs().max() == 0
    assert bool((lse[:, :2] == -torch.inf).all())
    (out.sum() + lse[:, 2:].sum()).backward()
    assert all(bool(x.grad.isfinite().all()) for x in tensors.values())
    assert tensors["q"].grad[:, :2].abs().max() == 0


def test_reference_forgets_all_where_a_gate_is_shut() -> None:
    tensors = small_tensors(catalogue.fox, time=9)
    tensors["log_f"][:, 4] = -torch.inf
    function = _function(print_reference(to_program(catalogue.fox.node)), catalogue.fox)
    assert_close("out", oracle(catalogue.fox, tensors), function(**tensors), 1e-12)


@gn.variant
def hidden_powers(
    q: gn.Value, k: gn.Value, slope: gn.Param[gn.Head], gate: gn.Token[gn.KVHead]
) -> gn.Value:
    "q_i . k_j - m (i - j)^0.5 + log(1 + i - j) exp(g_j (j - i)): no value where keys are hidden"
    distance = gn.distance()
    far = gn.exp(gn.at_key(gate) * -50.0 * distance)
    return gn.softmax(
        gn.dot(q, k) - slope * distance**0.5 + gn.log(1 + distance) * far, mask=gn.causal()
    )


def test_reference_hides_what_hidden_pairs_have_no_value_for() -> None:
    tensors = small_tensors(hidden_powers, time=40, requires_grad=True)
    tensors["gate"] = tensors["gate"].detach().abs().requires_grad_()
    function = _function(print_reference(to_program(hidden_powers.node)), hidden_powers)
    grads = gradients(function(**tensors), tensors)
    assert all(bool(g.isfinite().all()) for g in grads.values())


def test_printed_references_are_formatted(tmp_path: Path) -> None:
    printed = {f"{d.name}.py": print_reference(to_program(d.node)) for d in LOWERED}
    assert_formatted(printed, tmp_path, lint=False)

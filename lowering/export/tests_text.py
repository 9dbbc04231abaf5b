"""The tests that travel with an export: outputs and gradients against its float64 reference."""

from collections.abc import Sequence

from gnomon.dsl.nodes import Builtin, Input, walk
from gnomon.lowering.core import Program
from gnomon.lowering.emit.signature_text import Signature
from gnomon.lowering.emit.text import docstring
from gnomon.lowering.export.sample import WIDTHS, decays, directions, sample

_CHECK = '''
def close(name, expected, actual, bound):
    """The root mean square of the difference is small beside that of what is expected."""
    assert actual is not None, f"{name}: no tensor"
    assert actual.shape == expected.shape, f"{name}: {actual.shape}, expected {expected.shape}"
    finite = expected.isfinite()
    assert torch.equal(finite, actual.isfinite()), f"{name}: infinite or NaN in other places"
    difference = (actual.double() - expected)[finite].square().mean().sqrt().item()
    size = expected[finite].square().mean().sqrt().item()
    assert not difference > bound * max(size, 1e-2), f"{name}: error {difference:.1e} of {size:.1e}"


def check(tensors, bound=2e-5, **options):
    """Outputs and the gradients of all that has one, with a random cotangent."""
    exact = {name: twin(x) for name, x in tensors.items()}
    expected, actual = REFERENCE(**exact, **options), VARIANT(**tensors, **options)
    weights = torch.randn(expected.shape, dtype=torch.float64).to(expected.device)
    (expected * weights).sum().backward()
    (actual * weights.to(actual.dtype)).sum().backward()
    close("out", expected.detach(), actual.detach(), bound)
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor) and x.requires_grad and exact[name].grad is not None:
            close(f"gradient of {name}", exact[name].grad, x.grad, 5 * bound)


def twin(x):
    """The same values in float64, with a gradient of their own."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_()
'''

_GRADIENTS = """
@pytest.mark.parametrize(("time_q", "time_k"), [{shapes}])
def test_outputs_and_gradients(time_q, time_k):
    check(inputs(2, time_q, time_k))


def test_one_key_head_for_all_query_heads():
    check(inputs(1, 33, 33, kv_heads=1))


def test_packed_sequences():
    offsets = torch.tensor([0, 5, 5, 45, 70], device=DEVICE)
    check(inputs(1, 70, 70), cu_seqlens=offsets)


def test_packed_sequences_with_fewer_queries():
    offsets_q = torch.tensor([0, 3, 20], device=DEVICE)
    offsets_k = torch.tensor([0, 9, 50], device=DEVICE)
    check(inputs(1, 20, 50), cu_seqlens_q=offsets_q, cu_seqlens_k=offsets_k)


def test_strides_are_free():
    tensors = inputs(2, 37, 37)
    for name in ("q", "k", "v"):
        wide = tensors[name].detach().transpose(1, 2).contiguous().transpose(1, 2)
        tensors[name] = wide.requires_grad_()
    check(tensors)


def test_a_wrong_shape_is_refused_by_name():
    tensors = inputs(1, 8, 8)
    tensors["k"] = tensors["k"][..., :-1]
    with pytest.raises(ValueError, match="k: expected the shape"):
        VARIANT(**tensors)
"""

_LSE = """


def test_the_log_sum_exp_has_a_gradient():
    tensors = inputs(1, 21, 40)
    exact = {name: twin(x) for name, x in tensors.items()}
    (_, expected), (_, actual) = (
        REFERENCE(**exact, return_lse=True),
        VARIANT(**tensors, return_lse=True),
    )
    close("lse", expected.detach(), actual.detach(), 2e-5)
    expected.square().sum().backward()
    actual.square().sum().backward()
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor) and x.requires_grad and exact[name].grad is not None:
            close(f"gradient of {name}", exact[name].grad, x.grad, 1e-4)
"""

_FAR = '''


def test_what_far_keys_keep():
    """Gates that stay almost open, so that the whole sequence counts."""
    tensors = inputs(1, 300, 300)
    for name in {names}:
        tensors[name] = (tensors[name].detach() * 1e-3).requires_grad_()
    check(tensors)
'''

_FAR_PLAIN = """


def test_long_sequences():
    check(inputs(1, 300, 300))
"""


def print_tests(program: Program, targets: Sequence[str]) -> str:
    """A pytest file for the function of a program."""
    variant, signature = program.variant, Signature(program.variant)
    name = variant.name
    lines = docstring(f"Outputs and gradients of {name} against its float64 reference.", 0)
    samples = _inputs(program, signature)
    functional = ["import torch.nn.functional as F"] * any("F." in line for line in samples)
    third = ["import pytest", "import torch", *functional]
    lines += [
        "",
        *third,
        f"from {name} import {name}",
        f"from {name}_reference import {name}_reference",
        "",
    ]
    lines += _device(targets)
    lines += [f"VARIANT, REFERENCE = {name}, {name}_reference", "", ""]
    lines += [*samples, "", _CHECK.rstrip(), ""]
    tests = _GRADIENTS.replace("{shapes}", _shapes(program, signature)).rstrip()
    gates = sorted(decays(variant))
    listed = f"({', '.join(f'{chr(34)}{gate}{chr(34)}' for gate in gates)},)"
    tests += _FAR.replace("{names}", listed).rstrip() if gates else _FAR_PLAIN.rstrip()
    tests += _LSE.rstrip() if signature.has_lse else ""
    return "\n".join([*lines, tests]) + "\n"


def _device(targets: Sequence[str]) -> list[str]:
    if "triton" not in targets:
        return ['DEVICE = "cpu"']
    lines = ['DEVICE = "cuda" if torch.cuda.is_available() else "cpu"']
    if "numba" in targets:
        return lines
    reason = "the kernels are Triton's, and torch finds no GPU"
    return [
        *lines,
        "pytestmark = pytest.mark.skipif(",
        f'    DEVICE == "cpu", reason="{reason}"',
        ")",
    ]


def _shapes(program: Program, signature: Signature) -> str:
    shapes = ["(37, 37)", "(5, 64)", "(1, 3)"]
    takes_tokens = any(x.place == "token" for x in signature.declared)
    if not takes_tokens and not signature.coordinates and not _counts_visible(program):
        shapes.append("(9, 4)")
    return ", ".join(shapes)


def _counts_visible(program: Program) -> bool:
    """Whether rows without keys have no value in the formula either (log of no keys)."""
    return any(
        isinstance(n, Builtin) and n.which == "visible_count" for n in walk(program.variant.output)
    )


def _inputs(program: Program, signature: Signature) -> list[str]:
    """The function that makes the tensors of a call."""
    lines = ["def inputs(batch, time_q, time_k, heads=4, kv_heads=2):"]
    lines += docstring("Random tensors of a call; those that have a gradient want it.", 1)
    lines += ["    torch.manual_seed(time_q + 100 * time_k)", "    tensors = {"]
    for item in signature.inputs:
        lines.append(f'        "{item.name}": {_tensor(program, item)},')
    lines += ["    }", "    for name, x in tensors.items():"]
    lines += ["        tensors[name] = x.to(DEVICE).requires_grad_(x.is_floating_point())"]
    if signature.coordinates:
        lines += _positions(signature)
    return [*lines, "    return tensors"]


def _tensor(program: Program, item: Input) -> str:
    if item.name in ("q", "k", "v"):
        time, heads = ("time_q", "heads") if item.name == "q" else ("time_k", "kv_heads")
        width = WIDTHS["d_v" if item.name == "v" else "d"]
        made = f"torch.randn(batch, {time}, {heads}, {width})"
        steps = item.name in directions(program.variant)
        return f"F.normalize({made}, dim=-1)" if steps else made
    return sample(program.variant, item)


def _positions(signature: Signature) -> list[str]:
    """A grid: y the row, x the column, every other name the order."""
    order = "torch.arange(time_k, device=DEVICE)"
    places = {"y": f"{order} // 7", "x": f"{order} % 7"}
    lines = ['    tensors["positions"] = {']
    for name in signature.coordinates:
        place = places.get(name, order)
        inner = f"({place})" if " " in place else place
        lines.append(f'        "{name}": {inner}.expand(batch, -1),')
    return [*lines, "    }"]

"""Outputs and gradients of path_fox against its float64 reference."""

import pytest
import torch
import torch.nn.functional as F
from path_fox import path_fox
from path_fox_reference import path_fox_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu", reason="the kernels are Triton's, and torch finds no GPU"
)
VARIANT, REFERENCE = path_fox, path_fox_reference


def inputs(batch, time_q, time_k, heads=4, kv_heads=2):
    """Random tensors of a call; those that have a gradient want it."""
    torch.manual_seed(time_q + 100 * time_k)
    tensors = {
        "q": torch.randn(batch, time_q, heads, 32),
        "k": torch.randn(batch, time_k, kv_heads, 32),
        "v": torch.randn(batch, time_k, kv_heads, 16),
        "w": F.normalize(torch.randn(batch, time_k, kv_heads, 32), dim=-1),
        "beta": torch.rand(batch, time_k, kv_heads),
        "log_f": F.logsigmoid(torch.randn(batch, time_k, heads)),
    }
    for name, x in tensors.items():
        tensors[name] = x.to(DEVICE).requires_grad_(x.is_floating_point())
    return tensors


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


@pytest.mark.parametrize(("time_q", "time_k"), [(37, 37), (5, 64), (1, 3)])
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


def test_what_far_keys_keep():
    """Gates that stay almost open, so that the whole sequence counts."""
    tensors = inputs(1, 300, 300)
    for name in ("log_f",):
        tensors[name] = (tensors[name].detach() * 1e-3).requires_grad_()
    check(tensors)


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

"""Gradients: who gets one, of what, how often; learned parameters of every shape."""

import gc
import weakref
from itertools import product

import pytest
import torch
from compiled_calls import (
    GRAD,
    assert_bitwise,
    assert_right,
    compiled,
    fox_call,
    gates,
    learned,
    learned_call,
    normal,
    offsets,
    oracle,
    results,
)
from support import assert_close
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gnomon as gn

FOX = gn.catalogue.fox


# ---- who gets one


@pytest.mark.parametrize("pattern", list(product((False, True), repeat=4)), ids=str)
def test_every_pattern_of_frozen_inputs(
    pattern: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = fox_call(70, heads=4, kv_heads=2)
    full = results(compiled(FOX), tensors)
    wanted = [name for name, is_wanted in zip(tensors, pattern, strict=True) if is_wanted]
    launched = spy_on_launches(monkeypatch)
    leaves = {name: x.detach().requires_grad_(name in wanted) for name, x in tensors.items()}
    out = compiled(FOX)(**leaves)
    assert out.requires_grad == bool(wanted)
    if wanted:
        out.backward(normal(*out.shape, seed=5))
    for name, x in leaves.items():
        assert (x.grad is not None) == (name in wanted), name
        assert x.grad is None or torch.equal(x.grad, full[f"d{name}"]), name
    expected = {"launch_fox_bwd_rows"} if "q" in wanted else set()
    expected |= {"launch_fox_bwd_columns"} if {"k", "v", "log_f"} & set(wanted) else set()
    assert launched == expected


def spy_on_launches(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The backward kernels of FoX that run."""
    launched: set[str] = set()

    def watch(module: object, name: str) -> None:
        launch = getattr(module, name)

        def spy(*args: object) -> object:
            launched.add(name)
            return launch(*args)

        monkeypatch.setattr(module, name, spy)

    for module in compiled(FOX)._modules.values():
        for name in ("launch_fox_bwd_rows", "launch_fox_bwd_columns"):
            watch(module, name)
    return launched


def test_no_gradient_is_asked_for() -> None:
    tensors = {name: x.requires_grad_() for name, x in fox_call(9).items()}
    with torch.no_grad():
        assert not compiled(FOX)(**tensors).requires_grad
    with torch.inference_mode():
        assert torch.equal(compiled(FOX)(**fox_call(9)), compiled(FOX)(**tensors))


# ---- how often


def test_twice_through_a_retained_graph() -> None:
    tensors = {name: x.requires_grad_() for name, x in fox_call(130).items()}
    before = {name: x.detach().clone() for name, x in tensors.items()}
    out, lse = compiled(FOX)(**tensors, return_lse=True)
    loss = (out * normal(*out.shape)).sum() + lse.sum()
    kept = out.detach().clone()
    first = torch.autograd.grad(loss, list(tensors.values()), retain_graph=True)
    second = torch.autograd.grad(loss, list(tensors.values()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(out, kept)
    assert all(torch.equal(tensors[name], x) for name, x in before.items())


def test_a_second_derivative_is_refused() -> None:
    tensors = {name: x.requires_grad_() for name, x in fox_call(9).items()}
    out = compiled(FOX)(**tensors)
    with pytest.raises(RuntimeError, match="backward kernels have no derivative of their own"):
        torch.autograd.grad(out.square().sum(), tensors["q"], create_graph=True)


def test_function_transforms_are_refused_not_zero() -> None:
    tensors = fox_call(9)

    def loss(q: Tensor) -> Tensor:
        out: Tensor = compiled(FOX)(**{**tensors, "q": q})
        return out.sum()

    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(loss)(tensors["q"])


def test_a_call_without_its_backward_keeps_nothing() -> None:
    """No cycle of the graph and its output: memory goes when the last name does."""
    gc.collect()
    gc.disable()
    try:
        tensors = {name: x.requires_grad_() for name, x in fox_call(9).items()}
        out, lse = compiled(FOX)(**tensors, return_lse=True)
        kept = [weakref.ref(x) for x in (*tensors.values(), out, lse)]
        del tensors, out, lse
        assert [x() for x in kept] == [None] * 6
    finally:
        gc.enable()


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool, packed: bool) -> None:
    tensors, cu = fox_call(70), offsets(30, 0, 40) if packed else None
    plain = results(compiled(FOX), tensors, cu_seqlens=cu)
    leaves = [x.requires_grad_() for x in tensors.values()]

    def forward(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor) -> Tensor:
        out: Tensor = compiled(FOX)(q, k, v, log_f=log_f, cu_seqlens=cu)
        return out

    out = checkpoint(forward, *leaves, use_reentrant=reentrant)
    out.backward(normal(*out.shape, seed=5))
    for name, leaf in tensors.items():
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, plain[f"d{name}"]), name


# ---- the log-sum-exp


@pytest.mark.parametrize("queries", [70, 33])
def test_the_log_sum_exp_has_a_gradient(queries: int) -> None:
    tensors = fox_call(70, queries=queries, heads=4, kv_heads=2)
    assert_right(FOX, tensors, dlse=normal(1, queries, 4, seed=6))


def test_a_loss_of_the_log_sum_exp_alone() -> None:
    tensors = fox_call(70)
    leaves = {name: x.requires_grad_() for name, x in tensors.items()}
    _, lse = compiled(FOX)(**leaves, return_lse=True)
    weights = normal(*lse.shape, seed=6)
    names = ("q", "k", "log_f")
    found = torch.autograd.grad(lse, [leaves[n] for n in names], weights)
    do = torch.zeros(1, 70, 2, 16)
    expected = oracle(FOX, tensors, do=do, dlse=weights)
    for name, gradient in zip(names, found, strict=True):
        assert_close(f"d{name}", expected[f"d{name}"], gradient, GRAD)
    assert not results(compiled(FOX), tensors, do=do, dlse=weights)["dv"].any()


# ---- through modules


def test_a_gate_made_of_parameters() -> None:
    """The gate is no leaf; its projection learns, and so does what stands before it."""
    torch.manual_seed(0)
    layer, tensors = nn.Linear(8, 2), fox_call(70)
    x = normal(1, 70, 8, seed=3).requires_grad_()
    gate = nn.functional.logsigmoid(layer(x) + 2)
    compiled(FOX)(**{**tensors, "log_f": gate}).backward(normal(1, 70, 2, 16, seed=5))
    by_hand = results(compiled(FOX), {**tensors, "log_f": gate.detach()})["dlog_f"]
    wanted = torch.autograd.grad(
        nn.functional.logsigmoid(layer(x) + 2), [layer.weight, layer.bias, x], by_hand
    )
    for leaf, expected in zip((layer.weight, layer.bias, x), wanted, strict=True):
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, expected)
        assert leaf.grad.any()


def test_a_gate_that_all_heads_share() -> None:
    """Expanded over heads: the gradient has the shape of the base, the sum of the heads."""
    tensors = fox_call(70, heads=4)
    base = gates(1, 70, 1).requires_grad_()
    out = compiled(FOX)(**{**tensors, "log_f": base.expand(1, 70, 4)})
    (found,) = torch.autograd.grad(out, base, normal(*out.shape, seed=5))
    copied = results(compiled(FOX), {**tensors, "log_f": base.detach().expand(1, 70, 4)})
    assert torch.allclose(found, copied["dlog_f"].sum(2, keepdim=True), rtol=1e-4, atol=1e-5)


# ---- learned parameters


@pytest.mark.parametrize("time", [1, 65, 130])
def test_parameters_of_every_shape_learn(time: int) -> None:
    # with one key do . v and do . o cancel: roundings of both, 16 * 2^-24 a row, are what is left
    made = assert_right(learned, learned_call(time), grad=1e-4 if time == 1 else GRAD)
    shapes = {n: tuple(made[f"d{n}"].shape) for n in ("gain", "slope", "table", "w1", "w2")}
    assert shapes == {"gain": (), "slope": (4,), "table": (4, 16), "w1": (6,), "w2": (4, 6)}
    assert time == 1 or all(made[f"d{n}"].any() for n in shapes)


@pytest.mark.parametrize("name", ["gain", "slope", "table", "w1", "w2"])
def test_a_parameter_learns_beside_frozen_inputs(name: str) -> None:
    tensors = learned_call(70)
    alone = results(compiled(learned), tensors, wanted=[name])
    full = results(compiled(learned), tensors)
    assert_bitwise(alone, {key: full[key] for key in ("out", "lse", f"d{name}")})


def test_a_parameter_shared_by_heads_gets_the_sum() -> None:
    tensors = learned_call(70)
    base = tensors["table"][:1].clone().requires_grad_()
    out = compiled(learned)(**{**tensors, "table": base.expand(4, 16)})
    (found,) = torch.autograd.grad(out, base, normal(*out.shape, seed=5))
    copied = results(compiled(learned), {**tensors, "table": base.detach().expand(4, 16)})
    assert torch.allclose(found, copied["dtable"].sum(0, keepdim=True), rtol=1e-4, atol=1e-5)


def test_a_score_that_ignores_q_and_k_gives_them_zero() -> None:
    made = assert_right(learned, {**learned_call(70), "gain": torch.tensor(0.0)})
    assert not made["dq"].any()
    assert not made["dk"].any()
    assert made["dgain"].any()


def test_parameters_that_no_row_reads_get_zero() -> None:
    """With one token the distance is 0: of the table only the first entry is read."""
    made = results(compiled(learned), learned_call(1))
    assert not made["dslope"].any()
    assert not made["dtable"][:, 1:].any()
    empty = results(compiled(learned), learned_call(0))
    for name in ("gain", "slope", "table", "w1", "w2"):
        assert not empty[f"d{name}"].any()

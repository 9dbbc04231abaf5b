"""Autograd around the kernels: frozen inputs, learned parameters, refusals."""

from itertools import product

import pytest
import torch
from compiled_calls import fox_call, learned, learned_call, normal, qkv
from kernel_calls import (
    DEVICE,
    Judge,
    compiled,
    figures,
    group,
    kernel_test,
    on_device,
    oracle,
    pick,
    results,
)

import gnomon as gn
from gnomon import Head, Param

pytestmark = [*kernel_test, group("gradients")]
FOX = gn.catalogue.fox
TIME = pick(150, 33)


@gn.variant
def bias_alone(q, k, slope: Param[Head]):  # type: ignore[no-untyped-def]
    "-m_h (i - j)"
    return gn.softmax(-slope * gn.distance(), mask=gn.causal())


@pytest.mark.parametrize("pattern", list(product([False, True], repeat=4)), ids=str)
def test_every_pattern_of_frozen_inputs(pattern: tuple[bool, ...]) -> None:
    tensors = on_device(fox_call(TIME))
    do = normal(1, TIME, 2, 16, seed=5).to(DEVICE)
    whole = results(FOX, tensors, do=do)
    names = [name for name, wanted in zip(tensors, pattern, strict=True) if wanted]
    leaves = {name: x.detach().requires_grad_(name in names) for name, x in tensors.items()}
    out = compiled(FOX.node)(**leaves)
    assert out.requires_grad == bool(names)
    if not names:
        return
    out.backward(do)
    for name, x in leaves.items():
        if name in names:
            assert x.grad is not None
            assert torch.allclose(x.grad, whole[f"d{name}"], rtol=1e-4, atol=1e-5), name
        else:
            assert x.grad is None


def test_parameters_of_every_shape_learn(judge: Judge) -> None:
    """A number, one a head, a table a head, the weights of an MLP of the distance."""
    tensors = on_device(learned_call(TIME))
    made = results(learned, tensors)
    assert all(made[f"d{name}"].any() for name in ("gain", "slope", "table", "w1", "w2"))
    judge(figures("learned", learned, oracle(learned, tensors), made))


@pytest.mark.parametrize("name", ["gain", "slope", "table", "w1", "w2"])
def test_a_parameter_learns_beside_frozen_inputs(name: str) -> None:
    tensors = on_device(learned_call(TIME))
    do = normal(2, TIME, 4, 16, seed=5).to(DEVICE)
    whole = results(learned, tensors, do=do)
    alone = results(learned, tensors, do=do, wanted=(name,))
    size = float(whole[f"d{name}"].abs().max())
    assert torch.allclose(alone[f"d{name}"], whole[f"d{name}"], rtol=1e-4, atol=1e-5 * size)


def test_a_score_that_ignores_q_and_k_gives_them_zero(judge: Judge) -> None:
    tensors = on_device({**qkv(TIME), "slope": torch.tensor([0.1, 0.5])})
    made = results(bias_alone, tensors, unused_is_zero=True)
    assert not made["dq"].any()
    assert not made["dk"].any()
    expected = oracle(bias_alone, tensors)
    judge(figures("without q and k", bias_alone, expected, made))


def test_a_gate_that_all_heads_share(judge: Judge) -> None:
    """The gradient of what was broadcast is the sum."""
    tensors = on_device(fox_call(TIME, heads=4, kv_heads=2))
    leaf = tensors["log_f"][..., :1].clone().requires_grad_()
    expected = oracle(FOX, {**tensors, "log_f": leaf.detach().expand(1, TIME, 4)})
    out = compiled(FOX.node)(**{**tensors, "log_f": leaf.expand(1, TIME, 4)})
    do = normal(*out.shape, seed=5).to(DEVICE)
    (found,) = torch.autograd.grad(out, leaf, do)
    wanted = {"out": expected["out"], "dlog_f": expected["dlog_f"].sum(-1, keepdim=True)}
    judge(figures("one gate", FOX, wanted, {"out": out.detach(), "dlog_f": found}))


@pytest.mark.parametrize("groups", [1, 3, 5, 6, 7, 12])
def test_groups_have_the_gradients_of_repeated_keys(groups: int, judge: Judge) -> None:
    tensors = on_device(fox_call(TIME, heads=2 * groups, kv_heads=2, value_dim=24))
    made, expected = results(FOX, tensors), oracle(FOX, tensors)
    judge(figures(f"{groups} heads a key head", FOX, expected, made))
    wide = {name: tensors[name].repeat_interleave(groups, 2) for name in ("k", "v")}
    repeated = results(FOX, {**tensors, **wide})
    for name in ("dk", "dv"):
        repeated[name] = repeated[name].unflatten(2, (2, groups)).sum(3)
    judge(figures(f"{groups} repeated", FOX, repeated, made))


@pytest.mark.parametrize("heads", [1, 3, 7, 71])
def test_any_number_of_heads(heads: int, judge: Judge) -> None:
    tensors = on_device(fox_call(33, heads=heads, dim=16))
    judge(figures(f"{heads} heads", FOX, oracle(FOX, tensors), results(FOX, tensors)))


def test_the_log_sum_exp_has_a_gradient(judge: Judge) -> None:
    tensors = on_device(fox_call(TIME))
    options = {"dlse": normal(1, TIME, 2, seed=6).to(DEVICE)}
    made, expected = results(FOX, tensors, **options), oracle(FOX, tensors, **options)
    judge(figures("gradient of lse", FOX, expected, made))


def test_a_shorter_call_after_a_longer_one() -> None:
    """What a call leaves behind in memory reaches no later call."""
    whole = on_device(fox_call(pick(300, 70)))
    results(FOX, whole)
    parts = {name: x[:, : -pick(128, 37)] for name, x in whole.items()}
    made = results(FOX, parts)
    again = results(FOX, {name: x.clone() for name, x in parts.items()})
    for name, value in again.items():
        assert torch.equal(made[name], value), name


def test_a_second_derivative_is_refused() -> None:
    leaves = {name: x.requires_grad_() for name, x in on_device(fox_call(33)).items()}
    out = compiled(FOX.node)(**leaves)
    with pytest.raises(RuntimeError, match="no derivative of their own"):
        torch.autograd.grad(out.square().sum(), leaves["q"], create_graph=True)


def test_function_transforms_are_refused_not_zero() -> None:
    tensors = on_device(fox_call(33))

    def loss(q: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = compiled(FOX.node)(**{**tensors, "q": q})
        return out.sum()

    with pytest.raises(RuntimeError):
        torch.func.grad(loss)(tensors["q"])

"""Random tensors suit the roles of the inputs of a variant."""

import pytest
import torch

import gnomon as gn
from gnomon import KVHead, Param, Token
from gnomon.dsl.signature import call_inputs, check_call
from gnomon.runtime.sample import Sampler, Shape, roles_of, small_tensors

ROWS = [entry.name for entry in gn.catalogue.ENTRIES if entry.declaration is not None]


def test_far_gates_are_near_one_with_a_few_cuts() -> None:
    shape = Shape(time=300)
    made = Sampler(shape, far=True).tensors(gn.catalogue.fox.node, torch.float32)
    log_f = made["log_f"]
    assert ((log_f <= 0) & ((log_f > -0.05) | (log_f == -40))).all()
    assert 10 < (log_f == -40).sum() < 100
    near = small_tensors(gn.catalogue.fox, time=300)["log_f"]
    assert near.median() < -0.5


def test_far_reflections_repeat_three_directions_with_beta_near_two() -> None:
    made = Sampler(Shape(time=9), far=True).tensors(gn.catalogue.path.node, torch.float32)
    assert torch.equal(made["w"][:, :3], made["w"][:, 3:6])
    assert not torch.equal(made["w"][:, 0], made["w"][:, 1])
    torch.testing.assert_close(made["w"].norm(dim=-1), torch.ones(2, 9, 2))
    assert made["beta"].min() >= 1.9
    assert made["beta"].max() <= 2


def test_inputs_of_logarithms_roots_and_quotients_are_positive() -> None:
    @gn.variant
    def odd(q, k, a: Token[KVHead], b: Param, free: Token[KVHead]):  # type: ignore[no-untyped-def]
        "log a_j + s / b + softplus(free)"
        score = gn.dot(q, k) / gn.sqrt(b)
        return gn.softmax(
            score + gn.at_key(gn.log(a) + gn.log(gn.softplus(free))), mask=gn.causal()
        )

    assert roles_of(odd.node).positive == {"a", "b"}
    made = small_tensors(odd)
    assert made["a"].min() >= 0.2
    assert 0.2 <= float(made["b"]) <= 1
    assert made["free"].min() < 0


def test_a_given_range_wins() -> None:
    sampler = Sampler(Shape(), ranges={"log_f": (-3.0, -2.0)})
    made = sampler.tensors(gn.catalogue.fox.node, torch.float32)
    assert made["log_f"].min() >= -3
    assert made["log_f"].max() <= -2


@pytest.mark.parametrize("name", ROWS)
def test_a_call_in_sixteen_bits_is_one_that_is_taken(name: str) -> None:
    """Vectors have 16 bits, and no input has fewer digits than the language asks for."""
    node = gn.catalogue.find(name).node
    made = Sampler(Shape()).tensors(node, torch.bfloat16)
    given = {x.name: made[x.name] for x in call_inputs(node)}
    dtypes = {n: str(x.dtype).removeprefix("torch.") for n, x in given.items()}
    check_call(node, {n: tuple(x.shape) for n, x in given.items()}, dtypes)
    assert {dtypes[n] for n in ("q", "k", "v")} == {"bfloat16"}


def test_directions_have_the_dtype_of_the_call_and_steps_do_not() -> None:
    for row in (gn.catalogue.path_normalized, gn.catalogue.delta_product):
        made = small_tensors(row, dtype=torch.float16)
        assert (made["w"].dtype, made["beta"].dtype) == (torch.float16, torch.float32)


def test_queries_may_be_none() -> None:
    made = small_tensors(gn.catalogue.grape_a_query, time=5, queries=0)
    assert made["q"].shape == (2, 0, 4, 16)
    assert made["k"].shape == (2, 5, 2, 16)

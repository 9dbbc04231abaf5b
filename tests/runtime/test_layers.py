"""A layer for any variant: its parameters, their ranges, and what it does with them."""

import copy
from typing import Any

import pytest
import torch
from compiled_calls import normal, offsets
from torch import Tensor
from torch.nn import functional

import gnomon as gn
from gnomon import Dim, KVHead, Token
from gnomon.dsl.errors import InputError
from gnomon.runtime.layers import AttentionLayer

FOX = gn.catalogue.fox


def layer(variant: Any = FOX, **sizes: Any) -> AttentionLayer:
    torch.manual_seed(0)
    return AttentionLayer(variant, 32, 2, **sizes)


def test_it_is_projections_around_the_variant() -> None:
    made, x = layer(kv_heads=1, dim=24), normal(2, 33, 32)
    q = made.q(x).unflatten(-1, (2, 24))
    k, v = (f(x).unflatten(-1, (1, 24)) for f in (made.k, made.v))
    log_f = functional.logsigmoid(made.maps["log_f"](x))
    expected = made.out(made.attention(q, k, v, log_f=log_f).flatten(-2))
    assert torch.equal(made(x), expected)
    assert made(x).shape == (2, 33, 32)
    assert made.k.weight.shape == (24, 32)


def test_every_parameter_learns() -> None:
    made = layer()
    made(normal(1, 33, 32)).square().sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_later_tokens_change_nothing_before_them() -> None:
    made, x = layer(), normal(1, 70, 32)
    other = x.clone()
    other[:, 50:] += 1
    assert torch.equal(made(x)[:, :50], made(other)[:, :50])


def test_gates_start_nearly_open() -> None:
    bias = layer().maps["log_f"].bias
    assert isinstance(bias, Tensor)
    assert torch.equal(functional.logsigmoid(bias), functional.logsigmoid(torch.full((2,), 4.0)))


def test_packed_sequences() -> None:
    made, x = layer(), normal(1, 30, 32)
    packed = made(x, cu_seqlens=offsets(10, 20))
    alone = torch.cat((made(x[:, :10]), made(x[:, 10:])), 1)
    assert torch.allclose(packed, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["module", "autocast"])
def test_sixteen_bits_keep_the_gate_in_fp32(how: str) -> None:
    made, x = layer(), normal(1, 33, 32)
    whole = made(x)
    seen: dict[str, torch.dtype] = {}

    class Spy:
        def __call__(self, *args: Any, **inputs: Any) -> Any:
            seen.update({name: t.dtype for name, t in inputs.items()}, q=args[0].dtype)
            return attention(*args, **inputs)

    attention, made.attention = made.attention, Spy()  # type: ignore[assignment]
    if how == "module":
        out = made.bfloat16()(x.bfloat16())
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = made(x)
    assert seen == {"q": torch.bfloat16, "log_f": torch.float32}
    assert out.dtype == torch.bfloat16
    assert (out.float() - whole).norm() < 2e-2 * whole.norm()


def test_copies_and_states() -> None:
    made, x = layer(), normal(1, 9, 32)
    twin = copy.deepcopy(made)
    assert torch.equal(twin(x), made(x))
    other = AttentionLayer(FOX, 32, 2)
    assert not torch.equal(other(x), made(x))
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x), made(x))


# ---- what the inputs of a variant become


@pytest.mark.parametrize(
    ("variant", "maps", "tables", "given"),
    [
        (gn.catalogue.nope, {}, {}, []),
        (FOX, {"log_f": 2}, {}, []),
        (gn.catalogue.alibi_learned, {}, {"slope": (2,)}, []),
        (gn.catalogue.learned_sink, {}, {"sink": (2,)}, []),
        (gn.catalogue.gated, {"gate": 2 * 16}, {}, []),
        (gn.catalogue.documents, {}, {}, ["ids"]),
        (gn.catalogue.kerple_log, {}, {"r1": (2,), "r2": (2,)}, []),
        (
            gn.catalogue.fire,
            {},
            {"w1": (6,), "b1": (6,), "w2": (2, 6), "b2": (2,), "c": (), "threshold": ()},
            [],
        ),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_inputs_become_maps_tables_or_arguments(
    variant: Any, maps: dict[str, int], tables: dict[str, tuple[int, ...]], given: list[str]
) -> None:
    made = layer(variant)
    assert {name: m.out_features for name, m in made.maps.items()} == maps
    assert {name: tuple(p.shape) for name, p in made.tables.items()} == tables
    assert made.given == given


def test_hyperparameters_may_be_learned() -> None:
    made = layer(gn.catalogue.tapa, alpha=gn.Param[gn.Head])
    assert made.tables["alpha"].shape == (2,)


def test_ranges_are_kept() -> None:
    """What a formula wants between two numbers is there, at the start and for any input."""
    r1 = layer(gn.catalogue.kerple_log).tables["r1"]
    assert (r1 > 0.2).all()
    assert (r1 < 1.0).all()


def test_integers_are_given_at_the_call() -> None:
    with pytest.raises(InputError) as error:
        layer(gn.catalogue.documents)(normal(1, 9, 32))
    assert str(error.value) == "ids: expected a tensor of integers at the call; got none"


def test_an_axis_without_a_size_is_refused() -> None:
    class Colour(gn.Axis):
        "How many colours."

    @gn.variant
    def coloured(q, k, palette: gn.Param[Colour]):  # type: ignore[no-untyped-def]
        "q_i . k_j / sqrt(d) + sum of cos((i - j) palette)"
        waves = gn.channel_sum(gn.cos(gn.distance() * palette))
        return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) + waves, mask=gn.causal())

    with pytest.raises(InputError, match="sizes: expected the size of Colour of palette"):
        layer(coloured)
    assert layer(coloured, sizes={"Colour": 5}).tables["palette"].shape == (5,)


def test_sixteen_bits_keep_the_scale_of_a_step_in_fp32() -> None:
    """Whatever its name is: nothing is summed but the steps are multiplied."""

    @gn.variant
    def stepped(q, k, w: Token[KVHead, Dim], step: Token[KVHead]):  # type: ignore[no-untyped-def]
        "q_i prod (I - step_s w_s w_s^T) k_j"
        return gn.weighted_sum(gn.dot(q, k, through=gn.householder(w, step)), mask=gn.causal())

    assert layer(stepped).bfloat16()(normal(1, 9, 32).bfloat16()).isfinite().all()

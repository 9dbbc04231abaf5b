"""How the oracle is called: heads, lengths, packing, positions, dead rows, gradients, refusals."""

from typing import Any

import pytest
import torch
from support import small_tensors
from torch import Tensor

import gnomon as gn
from gnomon import InputError
from gnomon.dsl import catalogue
from gnomon.dsl.reference import reference

SOME = ["path_fox", "fox", "rope", "tapa", "stick_breaking", "cope", "delta_product", "gla", "t5"]


def call(name: str, **sizes: Any) -> tuple[gn.Declaration, dict[str, Any]]:
    declaration = catalogue.find(name)
    return declaration, small_tensors(declaration, dtype=torch.float64, **sizes)


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def place_of(declaration: gn.Declaration, name: str) -> str:
    return "column" if name == "v" else {x.name: x.place for x in declaration.node.inputs}[name]


@pytest.mark.parametrize("name", SOME)
def test_a_kv_head_serves_its_group(name: str) -> None:
    declaration, tensors = call(name, time=9, heads=6, kv_heads=2)
    wide = dict(tensors)
    grouped = [x.name for x in declaration.node.inputs if x.heads == "KVHead"]
    for own in (*grouped, "v"):
        axis = 0 if place_of(declaration, own) == "constant" else 2
        wide[own] = tensors[own].repeat_interleave(3, axis)
    same(reference(declaration, **wide), reference(declaration, **tensors))


@pytest.mark.parametrize("name", SOME)
def test_fewer_queries_than_keys_are_the_last_rows(name: str) -> None:
    declaration, tensors = call(name, time=9)
    last = dict(tensors)
    for own in tensors:
        if place_of(declaration, own) == "row":
            last[own] = tensors[own][:, -4:]
    same(reference(declaration, **last), reference(declaration, **tensors)[:, -4:])


@pytest.mark.parametrize("name", [*SOME, "rope_dynamic_ntk", "sliding_window", "scalable_softmax"])
def test_packed_sequences_are_a_loop_over_them(name: str) -> None:
    declaration, tensors = call(name, batch=1, time=12)
    bounds = [0, 5, 5, 6, 12]
    packed = reference(declaration, **tensors, cu_seqlens=torch.tensor(bounds))
    for first, end in ((0, 5), (5, 6), (6, 12)):
        own = {
            n: x if place_of(declaration, n) == "constant" else x[:, first:end]
            for n, x in tensors.items()
        }
        same(packed[:, first:end], reference(declaration, **own))


def test_packed_queries_and_keys_may_differ() -> None:
    declaration, tensors = call("fox", batch=1, time=12)
    tensors["q"] = tensors["q"][:, :5]
    out = reference(
        declaration,
        **tensors,
        cu_seqlens_q=torch.tensor([0, 2, 2, 5], dtype=torch.int32),
        cu_seqlens_k=torch.tensor([0, 4, 9, 12], dtype=torch.int32),
    )
    for queries, keys in ((slice(0, 2), slice(0, 4)), (slice(2, 5), slice(9, 12))):
        own = {n: x[:, queries if n == "q" else keys] for n, x in tensors.items()}
        same(out[:, queries], reference(declaration, **own))


def test_positions_of_the_call_restart_nothing_by_themselves() -> None:
    declaration, tensors = call("rope", time=8)
    stretched = torch.arange(8).mul(2).expand(2, -1)
    doubled = reference(declaration, **tensors, positions=stretched)
    half = reference(declaration, **tensors, positions=stretched / 2)
    same(half, reference(declaration, **tensors))
    assert (doubled - half).abs().max() > 1e-3


def test_masks_count_in_memory_not_in_positions() -> None:
    declaration, tensors = call("sliding_window", time=8)
    declaration_3 = declaration.bind(size=3)
    far = torch.arange(8).mul(100).expand(2, -1)
    same(reference(declaration_3, **tensors, positions=far), reference(declaration_3, **tensors))


# ---- rows without keys


@pytest.mark.parametrize(
    "name",
    ["nope", "softmax_off_by_one", "sigmoid_attention", "softpick", "learned_absolute"],
)
def test_a_row_without_keys_is_zero_and_moves_nothing(name: str) -> None:
    """More queries than keys: the first ones stand before all keys."""
    declaration, tensors = call(name, time=7, requires_grad=True)
    alive = {n: x.detach().clone().requires_grad_() for n, x in tensors.items()}
    for given in (tensors, alive):
        given["k"], given["v"] = (given[n].detach()[:, :5].requires_grad_() for n in "kv")
    alive["q"] = alive["q"].detach()[:, 2:].requires_grad_()
    out, short = reference(declaration, **tensors), reference(declaration, **alive)
    assert torch.equal(out[:, :2], torch.zeros_like(out[:, :2]))
    same(out[:, 2:], short)
    weight = torch.linspace(-1, 1, out[:, 2:].numel(), dtype=torch.float64).reshape(short.shape)
    ((out[:, 2:] * weight).sum() + out[:, :2].sum() * 3).backward()
    (short * weight).sum().backward()
    assert torch.equal(tensors["q"].grad[:, :2], torch.zeros_like(tensors["q"][:, :2]))
    same(tensors["q"].grad[:, 2:], alive["q"].grad)
    for n in tensors:
        if n != "q":
            same(tensors[n].grad, alive[n].grad)


def test_the_log_sum_exp_of_a_row_without_keys_is_minus_infinity() -> None:
    declaration, tensors = call("learned_sink", time=6, requires_grad=True)
    tensors["k"], tensors["v"] = tensors["k"][:, :4], tensors["v"][:, :4]
    _, lse = reference(declaration, **tensors, return_lse=True)
    assert torch.equal(lse[:, :2], torch.full_like(lse[:, :2], -torch.inf))
    lse[:, 2:].sum().backward()
    assert tensors["sink"].grad.isfinite().all()


def test_log_sum_exp_has_the_sink_in_it() -> None:
    declaration, tensors = call("learned_sink", time=6)
    _, lse = reference(declaration, **tensors, return_lse=True)
    _, plain = reference(
        catalogue.find("nope"), tensors["q"], tensors["k"], tensors["v"], return_lse=True
    )
    assert lse.shape == (2, 6, 4)
    same(lse, torch.logaddexp(plain, tensors["sink"].expand_as(plain)))
    logits = torch.einsum("bhd,bthd->bth", tensors["q"][:, -1, ::2], tensors["k"])
    same(plain[:, -1, ::2], (logits / 4).logsumexp(1))


def test_no_keys_at_all() -> None:
    declaration, tensors = call("nope", time=3)
    tensors["k"], tensors["v"] = tensors["k"][:, :0], tensors["v"][:, :0]
    out, lse = reference(declaration, **tensors, return_lse=True)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full((2, 3, 4), -torch.inf, dtype=torch.float64))


def test_hidden_pairs_and_unchosen_branches_leave_no_nan() -> None:
    """log(0), 0 / 0 and a root of a negative distance stand in pairs that count nothing."""

    @gn.variant
    def risky(q, k, a: gn.Param[gn.Head], x: gn.Token[gn.Head]):  # type: ignore[no-untyped-def]
        """where(i - j > 0, a log(i - j) + x_i / (x_i - x_j), (i - j)^a)"""
        away = gn.distance()
        steps = gn.at_query(x) - gn.at_key(x)
        far = a * gn.log(away) + gn.at_query(x) / steps
        bias = gn.where(away > 0, far, away ** abs(a))
        return gn.softmax(gn.dot(q, k) + bias, mask=gn.causal())

    tensors = small_tensors(risky, time=6, dtype=torch.float64, requires_grad=True)
    out = reference(risky, **tensors)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(x.grad.isfinite().all() for x in tensors.values())
    assert tensors["a"].grad.abs().min() > 0


# ---- gradients

SMALL: dict[str, Any] = {"time": 4, "batch": 1, "heads": 2, "kv_heads": 1, "dim": 8, "value_dim": 3}


@pytest.mark.parametrize(
    "name",
    [
        "path_fox",
        "delta_product",
        "kda",
        "wall",
        "grape_m",
        "ordered_rotations",
        "tapa",
        "fire",
        "kerple_power",
        "grape_ap",
        "cope",
        "stick_breaking",
        "geometric",
        "softpick",
        "learned_sink",
        "differential",
        "gated",
        "carope",
        "deberta",
        "ssd",
    ],
)
def test_gradients_are_those_of_the_differences(name: str) -> None:
    declaration, tensors = call(name, **SMALL, requires_grad=True)
    names, values = list(tensors), list(tensors.values())
    assert torch.autograd.gradcheck(
        lambda *x: reference(declaration, **dict(zip(names, x, strict=True))),
        values,
        fast_mode=True,
        atol=1e-6,
    )


def test_the_log_sum_exp_has_a_gradient() -> None:
    declaration, tensors = call("alibi_learned", **SMALL, requires_grad=True)
    names, values = list(tensors), list(tensors.values())
    assert torch.autograd.gradcheck(
        lambda *x: reference(declaration, **dict(zip(names, x, strict=True)), return_lse=True),
        values,
        fast_mode=True,
    )


def test_a_number_of_the_variant_may_be_learned() -> None:
    """alpha of TAPA per head; at distance 0 its derivative is 0, not 0 times log 0."""
    learned = catalogue.find("tapa").bind(alpha=gn.Param[gn.Head])
    tensors = small_tensors(learned, **SMALL, dtype=torch.float64)
    tensors["alpha"] = torch.full((2,), 0.1, dtype=torch.float64)
    fixed = {n: x for n, x in tensors.items() if n != "alpha"}
    same(reference(learned, **tensors), reference(catalogue.find("tapa"), **fixed))
    tensors["alpha"].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda alpha: reference(learned, **fixed, alpha=alpha), [tensors["alpha"]]
    )


def test_retention_does_not_go_through_its_row_sum() -> None:
    """The published code detaches it: the gradient of q is that of a fixed divisor."""
    declaration, tensors = call("retention", **SMALL, requires_grad=True)
    tensors["q"] = (tensors["q"] * 8).detach().requires_grad_()
    reference(declaration, **tensors)[:, -1].sum().backward()
    slope = (tensors["q"].grad[:, -1] * tensors["q"][:, -1]).sum(-1)
    out = reference(declaration, **tensors)[:, -1].sum(-1)
    same(slope, out)  # out is linear in q for a fixed divisor


# ---- refusals


def broken(name: str, change: Any, **options: Any) -> str:
    declaration, tensors = call(name, time=6)
    change(tensors)
    with pytest.raises(InputError) as caught:
        reference(declaration, **tensors, **options)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


def put(name: str, change: Any) -> Any:
    return lambda tensors: tensors.update({name: change(tensors[name])})


@pytest.mark.parametrize(
    ("name", "change", "options", "words"),
    [
        ("fox", put("q", lambda x: x[0]), {}, "q: expected the shape [batch"),
        ("fox", put("k", lambda x: x[..., :7]), {}, "k: expected the shape [batch 2, "),
        ("fox", put("v", lambda x: x[:, :5]), {}, "v: expected the shape [batch 2, time_k 6, "),
        ("fox", put("log_f", lambda x: x[:, :3]), {}, "the last time_q belong to the queries"),
        ("fox", put("log_f", lambda x: x[..., :3]), {}, "Head 4]; got [2, 6, 3]"),
        ("fox", put("log_f", lambda x: x.bfloat16()), {}, "pass log_f.float()"),
        ("path", put("beta", lambda x: x.half()), {}, "pass beta.float()"),
        ("fox", put("k", lambda x: x.float()), {}, "k: expected the dtype of q, float64"),
        ("fox", put("q", lambda x: x[:, :, :3]), {}, "a number of heads that divides the 3 of q"),
        ("fox", lambda x: x.pop("log_f"), {}, "log_f: expected the inputs q, k, v, log_f of fox"),
        ("rope", lambda x: x.update(w=x["q"]), {}, "w: expected the inputs q, k, v of rope"),
        ("documents", put("ids", lambda x: x.float()), {}, "ids: expected one of"),
        ("fox", put("q", lambda x: x.repeat(1, 2, 1, 1)), {}, "at most time_k = 6 queries"),
        ("fox", lambda _: None, {"cu_seqlens": torch.tensor([0, 6])}, "batch 1 with packed"),
        ("swin", lambda x: x.pop("positions"), {}, "a dict of the coordinates"),
        ("rope", lambda _: None, {"positions": torch.arange(6)}, "positions: expected the shape"),
        ("stick_breaking", lambda _: None, {"return_lse": True}, "a variant with a single softmax"),
        ("differential", lambda _: None, {"return_lse": True}, "a variant with a single softmax"),
        (
            "tapa",
            lambda _: None,
            {"positions": torch.tensor([[0, 2, 1, 3, 4, 5]] * 2)},
            "never fall",
        ),
        ("t5", lambda _: None, {"positions": torch.rand(2, 6)}, "positions: expected integers"),
        ("fox", put("q", lambda x: x.numpy()), {}, "q: expected a torch tensor; got a ndarray"),
    ],
)
def test_a_wrong_call_is_refused_with_the_argument_and_both_sides(
    name: str, change: Any, options: dict[str, Any], words: str
) -> None:
    assert words in broken(name, change, **options)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ([0, 3], "the last time_q = 6"),
        ([1, 6], "0, then ends"),
        ([0, 4, 3, 6], "never fall"),
        ([0.0, 6.0], "int32 or int64"),
        ([[0, 6]], "one axis"),
    ],
)
def test_wrong_bounds_of_packed_sequences_are_refused(bounds: list[Any], words: str) -> None:
    declaration, tensors = call("fox", batch=1, time=6)
    with pytest.raises(InputError, match=r"cu_seqlens: expected") as caught:
        reference(declaration, **tensors, cu_seqlens=torch.tensor(bounds))
    assert words in str(caught.value)


def test_a_share_of_the_channels_must_be_whole() -> None:
    declaration, tensors = call("tapa", time=6, dim=8)
    with pytest.raises(InputError, match=r"1/3 d to be a whole number of channels; got d = 8"):
        reference(declaration.bind(theta=1 / 3), **tensors)

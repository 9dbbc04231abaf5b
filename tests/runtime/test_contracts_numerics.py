"""Numbers at the edges: gates, slopes, caps, phases, fp32 that is fp32, 16 bits."""

import math

import pytest
import torch
from compiled_calls import (
    assert_bitwise,
    assert_right,
    assert_same_numbers,
    compiled,
    fox_call,
    gates,
    learned,
    learned_call,
    normal,
    oracle,
    qkv,
    results,
)
from generated_modules import execute, plain_python
from torch import Tensor

import gnomon as gn
from gnomon import Head, Param, Token
from gnomon.dsl.errors import InputError
from gnomon.lowering.emit.module import print_module

FOX = gn.catalogue.fox
NOPE = gn.catalogue.nope
SOFT_CAP = gn.catalogue.soft_cap
TAPA = gn.catalogue.tapa


# ---- gates: the first ones, those at the edges of tiles, many


@gn.variant
def fading(q, k, log_f: Token[Head], fade: Param[Head]):  # type: ignore[no-untyped-def]
    """A decay beside another function of the distance."""
    logit = gn.dot(q, k) * gn.rsqrt_dim(q) + gn.decay(log_f) - fade * gn.log1p(gn.distance())
    return gn.softmax(logit, mask=gn.causal())


def test_digits_of_sums_survive_beside_other_terms() -> None:
    """A difference of sums, whose low digits count, must not mix with the terms around it."""
    tensors = fox_call(300)
    heads = tensors["q"].shape[2]
    tensors["log_f"] = torch.nn.functional.logsigmoid(normal(*tensors["log_f"].shape))
    tensors["fade"] = torch.linspace(-0.5, 0.7, heads)
    assert tensors["log_f"].sum(1).min() < -150
    assert_same_numbers(results(compiled(fading), tensors), oracle(fading, tensors), out=3e-7)


PLACES = [(0,), (1,), (63,), (64,), (65,), (32,), (10, 20, 30, 40, 70, 90, 100)]


@pytest.mark.parametrize("gate", [-1e2, -1e3, -1e4, -math.inf])
@pytest.mark.parametrize("places", PLACES, ids=lambda x: f"{x[0]}..{len(x)}")
def test_gates_near_zero_lose_no_digits(gate: float, places: tuple[int, ...]) -> None:
    """Behind a closed gate the sums lie far from where a tile begins."""
    tensors = fox_call(130)
    tensors["log_f"][:, list(places)] = gate
    made = results(compiled(FOX), tensors)
    expected = oracle(FOX, tensors)
    assert not any(x.isnan().any() for x in made.values())
    assert_same_numbers(made, expected, out=3e-7)


@pytest.mark.parametrize("gate", [-1e2, -1e4, -math.inf])
def test_with_all_gates_closed_each_token_sees_itself(gate: float) -> None:
    tensors = {**fox_call(130), "log_f": torch.full((1, 130, 2), gate)}
    do = normal(1, 130, 2, 16, seed=5)
    made = results(compiled(FOX), tensors, do=do)
    assert torch.equal(made["out"], tensors["v"])
    assert torch.allclose(made["dv"], do, rtol=1e-6, atol=0)
    score = (tensors["q"] * tensors["k"]).sum(-1) / 4
    assert torch.allclose(made["lse"], score, rtol=1e-5, atol=1e-6)
    for name in ("dq", "dk"):
        assert made[name].abs().max() < 5e-6, name
    # what should be 0 a token is summed over 130 of them
    assert made["dlog_f"].abs().max() < 3e-5


def test_closed_gates_are_documents() -> None:
    """log f = -inf at the first token of each document hides what stands before it."""
    tensors = fox_call(200)
    starts = [0, 3, 64, 65, 130, 131, 132, 190]
    tensors["log_f"][:, starts] = -math.inf
    made = results(compiled(FOX), tensors)
    for start, stop in zip(starts, [*starts[1:], 200], strict=True):
        own = {name: x[:, start:stop] for name, x in tensors.items()}
        own["log_f"] = own["log_f"].clone()
        own["log_f"][:, 0] = 0
        alone = compiled(FOX)(**own)
        assert torch.allclose(made["out"][:, start:stop], alone, rtol=1e-5, atol=1e-6)


def test_open_and_closed_gates_in_turn() -> None:
    tensors = fox_call(130)
    tensors["log_f"] = torch.zeros(1, 130, 2)
    tensors["log_f"][:, ::3] = -math.inf
    assert_right(FOX, tensors)


def test_open_gates_are_no_gates() -> None:
    tensors = fox_call(130)
    tensors["log_f"] = torch.zeros(1, 130, 2)
    plain = qkv(130)
    made = results(compiled(FOX), tensors)
    made.pop("dlog_f")
    assert_same_numbers(made, results(compiled(NOPE), plain), out=1e-7, grad=1e-6)


@pytest.mark.parametrize("gate", [-1e-12, 1e-12, -6.5e-12, 0.1, 5.0])
def test_tiny_and_positive_gates(gate: float) -> None:
    """Nothing is factored into e^a e^-b; a gate above 1 grows what is far, and stays finite."""
    tensors = {**fox_call(130), "log_f": torch.full((1, 130, 2), gate)}
    # logits of 5 * 130 have an fp32 error of 3e-5 themselves, and weights the same relative one
    out, grad = (3e-5, 1e-4) if gate > 1 else (1e-6, 1e-5)
    assert_right(FOX, tensors, out=out, grad=grad)


def test_a_long_sequence_of_gates() -> None:
    """The sums reach -10^5, where fp32 has steps of 0.01; the far past has weight too."""
    tensors = fox_call(3000, heads=1)
    tensors["log_f"] = torch.full((1, 3000, 1), -1e-3)
    tensors["log_f"][:, 5::7] = -40.0
    made = results(compiled(FOX), tensors)
    assert_same_numbers(made, oracle(FOX, tensors), out=3e-7)


@gn.variant
def rated(q, k, rate: Param[Head], x: Token[Head]):  # type: ignore[no-untyped-def]
    "q_i . k_j / sqrt(d) - sum_{s=j+1..i} e^rate softplus(x_s)"
    forget = gn.decay(-gn.exp(rate) * gn.softplus(x))
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) + forget, mask=gn.causal())


@pytest.mark.parametrize("x", [-200.0, 5.0, -99.0])
def test_a_huge_rate_times_a_tiny_step(x: float) -> None:
    """In fp32 e^100 is infinite and softplus(-200) is 0: yet the gate is 1, not NaN."""
    function = execute(print_module(plain_python(rated))).rated
    tensors = {**qkv(9), "rate": torch.full((2,), 100.0), "x": torch.full((1, 9, 2), x)}
    made = results(function, tensors, wanted=("q", "k", "v"))
    assert_same_numbers(made, oracle(rated, tensors, wanted=("q", "k", "v")))


def test_decays_of_stored_sums_far_from_zero() -> None:
    """Late queries: the whole sum is large, the differences are small."""
    tensors = fox_call(400, queries=30)
    tensors["log_f"][:, :300] = -1e4
    assert_right(FOX, tensors)


# ---- slopes, scores


@pytest.mark.parametrize(
    ("slope", "out", "grad"),
    [(1.0, 1e-6, 2e-5), (1e3, 1e-6, 1e-3), (-1.0, 5e-6, 1e-3), (-1e3, 1e-6, 2e-2)],
)
@pytest.mark.parametrize("time", [127, 129, 257])
def test_steep_slopes(slope: float, out: float, grad: float, time: int) -> None:
    """Scores from -3e5 to 3e5.

    The backward pass has e^(s - lse): where both are 257 they have fp32 errors of 3e-5, where both
    are 3e5, 2e-2; the slope's gradient sums it over distances. With m = 1000 each row sees itself,
    and the gradient of the gain is a sum of 500 zeros.
    """
    tensors = learned_call(time, batch=1)
    tensors["slope"] = slope * torch.tensor([1.0, 0.5, 0.25, 0.125])
    tensors["gain"] = torch.tensor(1.0)
    made = results(compiled(learned), tensors)
    assert all(x.isfinite().all() for x in made.values())
    assert_same_numbers(made, oracle(learned, tensors), out=out, grad=grad)


def test_true_scores_below_any_constant() -> None:
    """Scores of -7e4, -1e5 and -1e30 are scores, not a mask."""
    for score in (-7e4, -1e5, -1e30):
        tensors = qkv(70)
        tensors["q"], tensors["k"] = torch.zeros(1, 70, 2, 16), torch.zeros(1, 70, 2, 16)
        tensors["q"][..., 0], tensors["k"][..., 0] = 4.0, score
        out, lse = compiled(NOPE)(**tensors, return_lse=True)
        count = torch.arange(1, 71)[None, :, None]
        mean = tensors["v"].cumsum(1) / count[..., None]
        assert torch.allclose(out, mean, rtol=1e-5, atol=1e-6)
        assert torch.allclose(lse, score + count.log() + 0 * lse)


def test_the_highest_of_very_low_scores_wins() -> None:
    tensors = qkv(70)
    tensors["q"], tensors["k"] = torch.zeros(1, 70, 2, 16), torch.zeros(1, 70, 2, 16)
    tensors["q"][..., 0], tensors["k"][..., 0] = 4.0, -8e4
    tensors["k"][:, 3, :, 0] = -7e4
    made = results(compiled(NOPE), tensors)
    assert torch.equal(made["out"][:, 3:], tensors["v"][:, 3:4].expand(1, 67, 2, 16))
    assert all(x.isfinite().all() for x in made.values())


@pytest.mark.parametrize("size", [1e4, -1e4, 3e38])
def test_capped_scores_of_any_size(size: float) -> None:
    tensors = qkv(70)
    tensors["q"] = torch.zeros(1, 70, 2, 16)
    tensors["q"][..., 0] = size
    made = results(compiled(SOFT_CAP), tensors)
    assert all(x.isfinite().all() for x in made.values())
    assert made["lse"].abs().max() <= 50 + math.log(70) + 1e-4
    expected = oracle(SOFT_CAP, tensors)
    for x in (made, expected):
        x["dk"] /= abs(size)  # it is a sum of q
    assert_same_numbers(made, expected)


def test_capped_infinite_scores() -> None:
    tensors = qkv(70)
    tensors["q"] = torch.zeros(1, 70, 2, 16)
    tensors["q"][..., 0] = math.inf
    out, lse = compiled(SOFT_CAP)(**tensors, return_lse=True)
    expected = oracle(SOFT_CAP, {**tensors, "q": tensors["q"].nan_to_num(posinf=1e30)})
    assert torch.allclose(out.double(), expected["out"], rtol=1e-5, atol=1e-6)
    assert torch.allclose(lse.double(), expected["lse"])


# ---- phases


def phases(time: int, size: float) -> dict[str, Tensor]:
    """The second half of the channels makes the phase."""
    tensors = qkv(time, dim=32)
    tensors["q"][..., 16:] *= size
    return tensors


def test_phases_of_usual_size() -> None:
    assert_right(TAPA, phases(130, 0.25), out=3e-6, grad=3e-5)


@pytest.mark.parametrize("size", [1e4, 1e8, 1e15, 1e30])
def test_phases_of_any_size_are_bounded(size: float) -> None:
    """Digits of the phase are lost as they must; the cosine stays between -1 and 1."""
    tensors = phases(130, size)
    made = results(compiled(TAPA), tensors)
    highest = (
        tensors["q"][..., :16].norm(dim=-1).max() * tensors["k"][..., :16].norm(dim=-1).max()
    ) / 4
    assert made["lse"].abs().max() <= highest + math.log(130)
    assert all(made[name].isfinite().all() for name in ("out", "lse", "dv"))


def test_without_a_phase_it_is_plain_attention_bit_for_bit() -> None:
    """cos(0) is 1; a scale of 1/4 rounds nothing."""
    tensors = phases(130, 0.0)
    out, lse = compiled(TAPA)(**tensors, return_lse=True)
    half = {name: x[..., :16] if name in ("q", "k") else x for name, x in tensors.items()}
    plain, plain_lse = compiled(NOPE)(**half, return_lse=True)
    assert torch.equal(out, plain)
    assert torch.equal(lse, plain_lse)


@pytest.mark.parametrize("first", [0, 10**5, 10**8])
def test_rotations_at_far_positions(first: int) -> None:
    """Angles are taken in fp64: at position 10^8 fp32 would have no digit of them."""
    tensors = qkv(70)
    positions = first + torch.arange(70)[None]
    attention = compiled(gn.catalogue.rope)
    made = results(attention, tensors, wanted=(), positions=positions)
    expected = oracle(gn.catalogue.rope, tensors, wanted=(), positions=positions)
    assert_same_numbers(made, expected)
    near = results(attention, tensors, wanted=(), positions=positions - first)
    assert_same_numbers(made, near)  # only the distance counts


def test_positions_that_fp32_cannot_hold_are_refused_where_kernels_hold_them() -> None:
    positions = 10**8 + torch.arange(9)[None]
    with pytest.raises(InputError, match=r"positions: expected finite numbers below 2\^24"):
        compiled(gn.catalogue.alibi)(**qkv(9), positions=positions)
    with pytest.raises(InputError, match="positions: expected finite numbers; got nan"):
        compiled(gn.catalogue.rope)(**qkv(9), positions=torch.full((1, 9), math.nan))


# ---- precision


@pytest.mark.parametrize(("time", "dim"), [(128, 32), (300, 256)])
def test_fp32_is_fp32(time: int, dim: int) -> None:
    """A product of ten-bit mantissas (TF32) would be off by 1e-3."""
    assert_right(FOX, fox_call(time, dim=dim), out=5e-7, grad=1e-5)


HALF_BOUNDS = {
    torch.bfloat16: {"out": 5e-3, "grad": 8e-3},
    torch.float16: {"out": 1e-3, "grad": 1e-3},
}


def half_call(time: int, dtype: torch.dtype, **sizes: int) -> dict[str, Tensor]:
    return {**qkv(time, dtype=dtype, **sizes), "log_f": gates(1, time, sizes.get("heads", 2))}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("time", [1, 65, 257, 700])
def test_sixteen_bits_beside_a_gate_of_fp32(time: int, dtype: torch.dtype) -> None:
    tensors = half_call(time, dtype, heads=4, kv_heads=2, value_dim=24)
    made = results(compiled(FOX), tensors)
    assert made["out"].dtype == made["dq"].dtype == made["dk"].dtype == made["dv"].dtype == dtype
    assert made["lse"].dtype == made["dlog_f"].dtype == torch.float32
    bounds = HALF_BOUNDS[dtype]
    expected = oracle(FOX, tensors)
    gate, wanted = ({"dlog_f": x.pop("dlog_f")} for x in (made, expected))
    assert_same_numbers(made, expected, **bounds)
    assert_same_numbers(gate, wanted, grad=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits_of_any_strides(dtype: torch.dtype) -> None:
    tensors = half_call(70, dtype)
    plain = results(compiled(FOX), tensors)
    for name in ("q", "k", "v"):
        x = tensors[name]
        memory = x.new_full((2 * x.numel() + 1,), math.nan)
        strided = memory[1:].view(*x.shape[:-1], 2 * x.shape[-1])[..., ::2].copy_(x)
        assert_bitwise(results(compiled(FOX), {**tensors, name: strided}), plain)


def test_sums_of_fp16_are_fp32() -> None:
    """Products of 250 x 250 over 16 channels are beyond fp16; values reach its limit."""
    tensors = half_call(70, torch.float16)
    tensors["q"][:], tensors["k"][:] = 250, 250
    tensors["v"][:] = 6e4
    made = results(compiled(FOX), tensors, wanted=())
    assert torch.equal(made["out"], tensors["v"])
    assert made["lse"].isfinite().all()
    assert made["lse"].min() > 2e5


@pytest.mark.parametrize("seed", range(3))
def test_gates_of_any_size(seed: int) -> None:
    """Log gates spread over eight orders of size."""
    tensors = fox_call(200)
    power = 8 * torch.rand(1, 200, 2, generator=torch.Generator().manual_seed(seed)) - 6
    tensors["log_f"] = -(10**power)
    assert_right(FOX, tensors, out=5e-7)

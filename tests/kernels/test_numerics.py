"""Numbers at the edges: gates, slopes, large scores, caps, phases, fp32 that is fp32, 16 bits."""

import math
from typing import Any

import pytest
import torch
from compiled_calls import fox_call, gates, learned, learned_call, normal, qkv
from kernel_calls import (
    DEVICE,
    HALF_DTYPE,
    INTERPRETED,
    Judge,
    compiled,
    figures,
    group,
    kernel_test,
    on_device,
    oracle,
    pick,
    results,
    width,
)
from torch import Tensor

import gnomon as gn
from gnomon import Head, Param, Token

pytestmark = kernel_test
FOX = gn.catalogue.fox
NOPE = gn.catalogue.nope
SOFT_CAP = gn.catalogue.soft_cap
TAPA = gn.catalogue.tapa
TIME = pick(130, 40)


def is_right(
    judge: Judge,
    variant: Any,
    tensors: dict[str, Tensor],
    bounds: dict[str, float] | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """Output, log-sum-exp and gradients are those of the oracle, and no NaN is among them."""
    made = results(variant, tensors, **options)
    assert not any(x.isnan().any() for x in made.values())
    expected = oracle(variant, tensors, **options)
    judge(figures(f"{variant.node.name}, {options or ''}", variant, expected, made, bounds))
    return made


# ---- gates: the first ones, those at the edges of tiles, many

EDGES = pick([(0,), (1,), (63,), (64,), (65,), (127,)], [(0,), (1,), (15,), (16,)])
MANY = pick((10, 20, 30, 40, 70, 90, 100), (3, 5, 20, 30))


@group("numerics fox")
@pytest.mark.parametrize("gate", [-1e2, -1e4, -math.inf])
@pytest.mark.parametrize("places", [*EDGES, MANY], ids=lambda x: f"{x[0]}..{len(x)}")
def test_gates_near_zero_lose_no_digits(gate: float, places: tuple[int, ...], judge: Judge) -> None:
    """Behind a closed gate the sums lie far from where a tile begins."""
    tensors = on_device(fox_call(TIME))
    tensors["log_f"][:, list(places)] = gate
    is_right(judge, FOX, tensors, {"out": 2e-6})


@group("numerics fox")
@pytest.mark.parametrize("gate", [0.0, -1e-3, -1e-2, -0.1, -1.0, -10.0, -50.0])
def test_gates_of_one_size(gate: float, judge: Judge) -> None:
    tensors = on_device(fox_call(TIME))
    tensors["log_f"] = torch.full_like(tensors["log_f"], gate)
    # with a past of e^-10 the gradient of a gate is 0 by nature
    made = is_right(judge, FOX, tensors, {"dlog_f": 1e-3})
    if gate == 0:  # an open gate is no gate
        plain = results(NOPE, on_device(qkv(TIME)))
        judge(figures("without gates", NOPE, plain, made))


@group("numerics fox half")
@pytest.mark.parametrize("gate", [0.0, -1e-3, -0.1, -50.0, -1e4, -math.inf])
def test_gates_of_one_size_in_sixteen_bits(gate: float, judge: Judge) -> None:
    tensors = half_call(TIME)
    # every seventh gate: whole rows without a past have gradients that are 0 by nature
    tensors["log_f"][:, 3::7] = gate
    is_right(judge, FOX, tensors, {"dlog_f": 8e-2})


@group("numerics fox")
@pytest.mark.parametrize("gate", [-1e2, -1e4, -math.inf])
def test_with_all_gates_closed_each_token_sees_itself(gate: float) -> None:
    tensors = on_device({**fox_call(TIME), "log_f": torch.full((1, TIME, 2), gate)})
    do = normal(1, TIME, 2, 16, seed=5).to(DEVICE)
    made = results(FOX, tensors, do=do)
    assert torch.equal(made["out"], tensors["v"])
    assert torch.allclose(made["dv"], do, rtol=1e-5, atol=0)
    score = (tensors["q"] * tensors["k"]).sum(-1) / 4
    assert torch.allclose(made["lse"], score, rtol=1e-5, atol=1e-5)
    for name in ("dq", "dk"):
        assert made[name].abs().max() < 5e-5, name
    assert made["dlog_f"].abs().max() < 3e-4


@group("numerics fox")
def test_open_and_closed_gates_in_turn(judge: Judge) -> None:
    tensors = on_device(fox_call(TIME))
    tensors["log_f"] = torch.zeros_like(tensors["log_f"])
    tensors["log_f"][:, ::3] = -math.inf
    is_right(judge, FOX, tensors)


@group("numerics fox")
@pytest.mark.parametrize("gate", [1e-12, -6.5e-12, 0.1, 5.0])
def test_tiny_and_positive_gates(gate: float, judge: Judge) -> None:
    """Nothing is factored into e^a e^-b; a gate above 1 grows what is far, and stays finite."""
    tensors = on_device({**fox_call(TIME), "log_f": torch.full((1, TIME, 2), gate)})
    # logits of 5 * 130 have an fp32 error of 3e-5 themselves
    bounds = dict.fromkeys(("dq", "dk", "dv", "dlog_f"), 1e-3)
    is_right(judge, FOX, tensors, bounds if gate > 1 else None)


@group("numerics fox")
def test_a_long_sequence_of_gates(judge: Judge) -> None:
    """The sums reach -10^5, where fp32 has steps of 0.01; the far past has weight too."""
    time = pick(3000, 150)
    tensors = on_device(fox_call(time, heads=1))
    tensors["log_f"] = torch.full_like(tensors["log_f"], -1e-3)
    tensors["log_f"][:, 5::7] = -40.0 * 3000 / time
    is_right(judge, FOX, tensors, {"out": 2e-6})


@group("numerics fox")
def test_late_queries_behind_a_huge_sum(judge: Judge) -> None:
    """The whole sum is large, the differences are small."""
    time = pick(400, 90)
    tensors = on_device(fox_call(time, queries=30))
    tensors["log_f"][:, : time - 60] = -1e4
    is_right(judge, FOX, tensors)


@group("numerics fox")
@pytest.mark.parametrize("seed", range(3))
def test_gates_of_any_size(seed: int, judge: Judge) -> None:
    """Log gates spread over eight orders of size."""
    tensors = on_device(fox_call(TIME))
    power = 8 * torch.rand(1, TIME, 2, generator=torch.Generator().manual_seed(seed)) - 6
    tensors["log_f"] = -(10**power).to(DEVICE)
    is_right(judge, FOX, tensors)


@gn.variant
def rated(q, k, rate: Param[Head], x: Token[Head]):  # type: ignore[no-untyped-def]
    "q_i . k_j / sqrt(d) - sum_{s=j+1..i} e^rate softplus(x_s)"
    forget = gn.decay(-gn.exp(rate) * gn.softplus(x))
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q) + forget, mask=gn.causal())


@group("numerics rated")
@pytest.mark.parametrize("x", [-200.0, 5.0, -99.0])
def test_a_huge_rate_times_a_tiny_step(x: float, judge: Judge) -> None:
    """In fp32 e^100 is infinite and softplus(-200) is 0: yet the gate is 1, not NaN."""
    rate, steps = torch.full((2,), 100.0), torch.full((1, TIME, 2), x)
    tensors = on_device({**qkv(TIME), "rate": rate, "x": steps})
    is_right(judge, rated, tensors, wanted=("q", "k", "v"))


# ---- slopes, scores


@group("numerics learned")
@pytest.mark.parametrize(
    ("slope", "bounds"),
    [(1.0, {}), (1e3, {"grad": 1e-3}), (-1.0, {"out": 5e-5, "grad": 1e-3})],
)
@pytest.mark.parametrize("time", pick([127, 129, 257], [33]))
def test_steep_slopes(slope: float, bounds: dict[str, float], time: int, judge: Judge) -> None:
    """The backward pass has e^(s - lse): where both are 257 they have fp32 errors of 3e-5."""
    tensors = learned_call(time, batch=1)
    tensors["slope"] = slope * torch.tensor([1.0, 0.5, 0.25, 0.125])
    tensors["gain"] = torch.tensor(1.0)
    limits = {f"d{name}": bounds["grad"] for name in tensors} if "grad" in bounds else {}
    limits |= {name: bounds["out"] for name in ("out", "lse") if "out" in bounds}
    made = is_right(judge, learned, on_device(tensors), limits)
    assert all(x.isfinite().all() for x in made.values())


@group("numerics learned")
def test_slopes_so_steep_that_each_row_sees_one_key() -> None:
    """Scores of 3e5: the last bits of a weight are lost as they must, and nothing is NaN."""
    tensors = learned_call(TIME, batch=1)
    tensors["slope"] = torch.full((4,), -1e3)
    made = results(learned, on_device(tensors))
    assert all(x.isfinite().all() for x in made.values())
    first = on_device(tensors)["v"][:, :1].repeat_interleave(2, 2).expand_as(made["out"])
    assert torch.allclose(made["out"], first, rtol=1e-5, atol=1e-6)


@group("numerics nope")
@pytest.mark.parametrize("score", [-7e4, -1e5, -1e30, 1e30])
def test_true_scores_beyond_any_constant(score: float) -> None:
    """Such a score is a score, not a mask."""
    tensors = on_device(qkv(TIME))
    tensors["q"], tensors["k"] = torch.zeros_like(tensors["q"]), torch.zeros_like(tensors["k"])
    tensors["q"][..., 0], tensors["k"][..., 0] = 4.0, score
    out, lse = compiled(NOPE.node)(**tensors, return_lse=True)
    count = torch.arange(1, TIME + 1, device=DEVICE)[None, :, None]
    mean = tensors["v"].cumsum(1) / count[..., None]
    assert torch.allclose(out, mean, rtol=1e-4, atol=1e-5)
    assert torch.allclose(lse, score + count.log() + 0 * lse)


@group("numerics nope")
def test_the_highest_of_very_low_scores_wins() -> None:
    tensors = on_device(qkv(TIME))
    tensors["q"], tensors["k"] = torch.zeros_like(tensors["q"]), torch.zeros_like(tensors["k"])
    tensors["q"][..., 0], tensors["k"][..., 0] = 4.0, -8e4
    tensors["k"][:, 3, :, 0] = -7e4
    made = results(NOPE, tensors)
    assert torch.equal(made["out"][:, 3:], tensors["v"][:, 3:4].expand(1, TIME - 3, 2, 16))
    assert all(x.isfinite().all() for x in made.values())


@group("numerics nope half")
@pytest.mark.parametrize("size", [10.0, 100.0])
def test_large_scores_in_sixteen_bits(size: float, judge: Judge) -> None:
    """Rows that see one key of many: q is large in 16 bits, and the sums are fp32."""
    tensors = half_call(TIME)
    del tensors["log_f"]
    tensors["q"] *= size
    # where one key has all weight a gradient is the small difference of large numbers
    is_right(judge, NOPE, tensors, {"dq": 5e-2, "dk": 5e-2})


@group("numerics cap")
@pytest.mark.parametrize("size", [1e4, -1e4, 3e38])
def test_capped_scores_of_any_size(size: float, judge: Judge) -> None:
    tensors = on_device(qkv(TIME))
    tensors["q"] = torch.zeros_like(tensors["q"])
    tensors["q"][..., 0] = size
    made, expected = results(SOFT_CAP, tensors), oracle(SOFT_CAP, tensors)
    assert all(x.isfinite().all() for x in made.values())
    assert made["lse"].abs().max() <= 50 + math.log(TIME) + 1e-4
    for x in (made, expected):
        x["dk"] = x["dk"] / abs(size)  # it is a sum of q
    judge(figures(f"scores of {size}", SOFT_CAP, expected, made))


@group("numerics cap")
def test_capped_infinite_scores() -> None:
    tensors = on_device(qkv(TIME))
    tensors["q"] = torch.zeros_like(tensors["q"])
    tensors["q"][..., 0] = math.inf
    out, lse = compiled(SOFT_CAP.node)(**tensors, return_lse=True)
    expected = oracle(SOFT_CAP, {**tensors, "q": tensors["q"].nan_to_num(posinf=1e30)})
    assert torch.allclose(out.double(), expected["out"], rtol=1e-4, atol=1e-5)
    assert torch.allclose(lse.double(), expected["lse"])


# ---- phases


def phases(size: float) -> dict[str, Tensor]:
    """The second half of the channels makes the phase."""
    tensors = on_device(qkv(TIME, dim=32))
    tensors["q"][..., 16:] *= size
    return tensors


@group("numerics tapa")
def test_phases_of_usual_size(judge: Judge) -> None:
    is_right(judge, TAPA, phases(0.25), {"out": 5e-5, "dq": 5e-4, "dk": 5e-4, "dv": 5e-4})


@group("numerics tapa")
@pytest.mark.parametrize("size", [1e4, 1e8, 1e15, 1e30])
def test_phases_of_any_size_are_bounded(size: float) -> None:
    """Digits of the phase are lost as they must; the cosine stays between -1 and 1."""
    tensors = phases(size)
    made = results(TAPA, tensors)
    q, k = (tensors[name][..., :16].norm(dim=-1).max() for name in ("q", "k"))
    assert made["lse"].abs().max() <= q * k / 4 + math.log(TIME)
    assert all(made[name].isfinite().all() for name in ("out", "lse", "dv"))


@group("numerics tapa")
def test_without_a_phase_it_is_plain_attention() -> None:
    """cos(0) is 1."""
    tensors = phases(0.0)
    out, lse = compiled(TAPA.node)(**tensors, return_lse=True)
    half = {name: x[..., :16] if name in ("q", "k") else x for name, x in tensors.items()}
    plain, plain_lse = compiled(NOPE.node)(**half, return_lse=True)
    assert torch.allclose(out, plain, rtol=1e-6, atol=1e-6)
    assert torch.allclose(lse, plain_lse, rtol=1e-6, atol=1e-6)


@group("numerics rope")
@pytest.mark.parametrize("first", [0, 10**5, 10**8])
def test_rotations_at_far_positions(first: int, judge: Judge) -> None:
    """Angles are taken in fp64: at position 10^8 fp32 would have no digit of them."""
    tensors, rope = on_device(qkv(TIME)), gn.catalogue.rope
    positions = first + torch.arange(TIME, device=DEVICE)[None]
    is_right(judge, rope, tensors, positions=positions)


# ---- precision


@group("numerics fp32")
@pytest.mark.parametrize(("time", "dim"), pick([(128, 32), (300, 128)], [(40, 32)]))
def test_fp32_is_fp32(time: int, dim: int, judge: Judge) -> None:
    """A product of ten-bit mantissas (TF32) would be off by 1e-3."""
    limits = {"out": 2e-6, "lse": 2e-6, "dq": 1e-5, "dk": 1e-5, "dv": 1e-5}
    is_right(judge, FOX, on_device(fox_call(time, dim=dim)), limits)


def half_call(time: int, **sizes: int) -> dict[str, Tensor]:
    """q, k and v in 16 bits, a gate in fp32."""
    made = qkv(time, **{"dim": width(), "dtype": HALF_DTYPE, **sizes})  # type: ignore[arg-type]
    return on_device({**made, "log_f": gates(1, time, sizes.get("heads", 2))})


@group("numerics fox half")
@pytest.mark.parametrize("time", pick([1, 65, 257, 700], [1, 33]))
def test_sixteen_bits_beside_a_gate_of_fp32(time: int, judge: Judge) -> None:
    tensors = half_call(time, heads=4, kv_heads=2)
    made = is_right(judge, FOX, tensors, {"dlog_f": 8e-2})
    assert {made[name].dtype for name in ("out", "dq", "dk", "dv")} == {HALF_DTYPE}
    assert made["lse"].dtype == made["dlog_f"].dtype == torch.float32


@group("numerics fp16")
def test_sums_of_fp16_are_fp32() -> None:
    """Products of 250 x 250 over the channels are beyond fp16; values reach its limit."""
    tensors = on_device(qkv(TIME, dim=width(), dtype=torch.float16))
    tensors["q"][:], tensors["k"][:] = 250, 250
    tensors["v"][:] = 6e4
    made = results(NOPE, tensors, wanted=())
    assert torch.equal(made["out"], tensors["v"])
    assert made["lse"].isfinite().all()
    assert made["lse"].min() > 2e5


@pytest.mark.skipif(INTERPRETED, reason="the interpreter computes bf16 wrongly")
@group("numerics bf16")
def test_values_beyond_fp16_are_kept_in_bf16(judge: Judge) -> None:
    """No detour through fp16: values of 1e30, scores of 1e6."""
    tensors = half_call(TIME)
    del tensors["log_f"]
    tensors["v"] *= 1e30
    made, expected = results(NOPE, tensors, wanted=()), oracle(NOPE, tensors, wanted=())
    judge(figures("values of 1e30", NOPE, expected, made))

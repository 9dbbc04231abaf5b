"""The space of a kernel on each target: what is legal, why the rest is not; the model."""

from dataclasses import replace
from typing import Any

import pytest

from gnomon.autotune.model import Needs, estimate, visible
from gnomon.autotune.plan import Plan, Problem
from gnomon.autotune.space import TUNABLES, Situation, Space, least_shared, tiles_of
from gnomon.dsl import catalogue
from gnomon.dsl.errors import InputError
from gnomon.lowering.config import Tiles
from gnomon.runtime.gpus import GPUS, device_of_table, gpu

HOPPER = {"BM": 128, "BN": 64, "num_warps": 8, "num_stages": 3}


def situation(
    name: str = "fox", role: str = "fwd", on: str = "h200", dim: int = 128, **given: Any
) -> Situation:
    problem = Problem(catalogue.find(name).node, dim, **given)
    plan = Plan.of(problem, device_of_table(gpu(on)))
    return next(task.situation for task in plan.tasks if task.role == role)


def test_tunables_are_what_the_tile_program_leaves_open_and_what_a_launch_takes() -> None:
    space = Space.of(situation())
    assert [each.name for each in space.tunables] == ["BM", "BN", "num_warps", "num_stages"]
    assert len(list(space.points())) == 3 * 3 * 2 * 4
    assert tiles_of(HOPPER) == Tiles(128, 64, 8, 3)
    assert {each.kind for each in TUNABLES.values()} == {"tile", "launch"}


@pytest.mark.parametrize("on", GPUS)
@pytest.mark.parametrize("role", ["fwd", "bwd_rows", "bwd_columns"])
@pytest.mark.parametrize("dim", [64, 256])
def test_every_kernel_has_a_legal_point_on_every_card(on: str, role: str, dim: int) -> None:
    """Small cards too, and the backward pass, by the bytes of the card and not by its number."""
    s = situation("fox", role, on, dim)
    legal, refused = Space.of(s).sifted()
    assert 0 < len(legal) <= 68
    assert len(legal) + len(refused) == 72
    assert all(least_shared(s, point) <= s.target.shared for point in legal)


@pytest.mark.parametrize("on", GPUS)
@pytest.mark.parametrize("name", ["nope", "fox", "tapa"])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_the_default_is_legal_on_every_card(on: str, name: str, dim: int) -> None:
    """A call that nothing was tuned for must run, on a card of 99 KiB too."""
    plan = Plan.of(Problem(catalogue.find(name).node, dim), device_of_table(gpu(on)))
    for task in plan.tasks:
        point = dict(task.default.numbers("triton"))
        refusal = Space.of(task.situation).why_not(point)
        assert refusal is None, (task.role, refusal)


@pytest.mark.parametrize(
    ("given", "point", "rule", "reason"),
    [
        ({"on": "rtx4090"}, {**HOPPER, "BM": 128, "BN": 128, "num_stages": 3}, "shared memory",
         "163840 bytes of shared memory at least, of 101376 that a program may have"),
        ({"on": "rtx3090"}, {**HOPPER, "num_stages": 4}, "shared memory",
         "131072 bytes of shared memory at least, of 101376 that a program may have"),
        ({"on": "mi300x"}, HOPPER, "stages",
         "more than two stages: its loads go through registers, and two hide them"),
        ({}, {**HOPPER, "BM": 32, "BN": 32}, "fragments", "8 warps share 4 fragments of 16 x 16"),
        ({"role": "bwd_columns"}, {**HOPPER, "BN": 128, "num_warps": 4, "num_stages": 1},
         "registers", "256 registers of sums alone, of 255"),
        ({"dtype": "fp32"}, HOPPER, "exact products",
         "exact products of fp32 in tiles beyond 64 x 64 spill for minutes"),
    ],
    ids=["two tiles of 128", "four stages", "AMD", "warps", "sums", "fp32"],
)  # fmt: skip
def test_a_refusal_names_its_rule_and_its_reason(
    given: dict[str, Any], point: dict[str, int], rule: str, reason: str
) -> None:
    refusal = Space.of(situation(**given)).why_not(point)
    assert refusal is not None
    assert (refusal.rule, refusal.reason) == (rule, reason)


def test_fewer_stages_are_legal_before_smaller_tiles() -> None:
    """A card with 99 KiB keeps the tile and loses stages."""
    space = Space.of(situation(on="rtx3090"))
    assert [space.why_not({**HOPPER, "num_stages": n}) is None for n in (1, 2, 3, 4)] == [
        True,
        True,
        True,
        False,
    ]


def test_the_estimate_of_shared_memory_is_what_hopper_takes_at_least() -> None:
    """Measured by compiling (tests/runtime/test_offline.py has the compiler): q, 3 x (k and v)."""
    s = situation("nope", dim=64)
    assert least_shared(s, HOPPER) == (128 + 3 * 2 * 64) * 64 * 2
    older = situation("nope", on="a100", dim=64)
    assert least_shared(older, HOPPER) == (128 + 2 * 2 * 64) * 64 * 2


def test_what_a_problem_refuses() -> None:
    node = catalogue.find("fox").node
    for given, text in (
        ({"dim": 100}, "--dims: expected multiples of 8 up to 256; got 100"),
        ({"dim": 64, "length": 100}, "--lengths: expected one of 2048, 8192, 32768; got 100"),
        ({"dim": 64, "groups": 3}, "--groups: expected one of 1, 4, 8; got 3"),
        ({"dim": 64, "dtype": "f64"}, "--dtype: expected one of bf16, fp16, fp32; got 'f64'"),
    ):
        with pytest.raises(InputError) as error:
            Problem(node, **given)
        assert str(error.value) == text


def test_attentions_of_one_kernel_are_one_task() -> None:
    plan = Plan.of(Problem(catalogue.find("differential").node, 64), device_of_table(gpu("h200")))
    assert [len(task.names) for task in plan.tasks] == [2, 2, 2]
    assert plan.tasks[0].names == ("differential_1_fwd", "differential_2_fwd")


# ---- the model


def test_spills_cost_time_and_so_does_a_processor_with_one_program() -> None:
    s = situation()
    lean = estimate(s, HOPPER, Needs(100_000, 120, 0))
    assert lean.resident == 2
    assert estimate(s, HOPPER, Needs(100_000, 120, 400)).microseconds > lean.microseconds
    for fat in (Needs(200_000, 120, 0), Needs(100_000, 160, 0)):
        alone = estimate(s, HOPPER, fat)
        assert alone.resident == 1
        assert alone.microseconds > lean.microseconds


def test_twice_the_tokens_of_a_sequence_take_twice_as_long() -> None:
    """The tokens in all are the same, so that work grows like T."""
    s = situation("nope")
    short, long = (
        estimate(replace(s, length=n), HOPPER, Needs(130_000, 160, 0)).microseconds
        for n in (8192, 16384)
    )
    assert 1.8 < long / short < 2.1


def test_what_a_kernel_does_more_takes_longer() -> None:
    point = {**HOPPER, "BM": 64, "num_warps": 4}
    plain, tapa = (estimate(situation(name), point).microseconds for name in ("nope", "tapa"))
    assert tapa > 1.2 * plain
    assert estimate(situation("tapa"), point).limit == "special"


def test_measured_kernels_are_within_half_of_the_model() -> None:
    """Microseconds on an H200, T = 8192 (benchmarks/results; hand-written kernels alike)."""
    for name, role, dim, tiles, measured in (
        ("nope", "fwd", 128, (64, 64, 4, 3), 1270.0),
        ("nope", "fwd", 128, (128, 128, 8, 3), 1150.0),
        ("nope", "fwd", 64, (64, 64, 4, 2), 1330.0),
        ("nope", "bwd_rows", 128, (128, 64, 8, 3), 1460.0),
        ("nope", "bwd_columns", 128, (64, 64, 4, 2), 1850.0),
        ("tapa", "fwd", 128, (64, 64, 4, 3), 1840.0),
    ):
        point = dict(zip(HOPPER, tiles, strict=True))
        modelled = estimate(situation(name, role, dim=dim), point).microseconds
        assert measured / 1.5 < modelled < measured * 1.5, (name, role, dim, modelled)


def test_a_mask_says_how_much_is_seen() -> None:
    masks = {name: situation(name).mask for name in ("fox", "sliding_window")}
    assert visible(masks["fox"], 32768) == (16384.0, 0.5)
    assert visible(masks["sliding_window"], 32768) == (4096.0, 1.5)

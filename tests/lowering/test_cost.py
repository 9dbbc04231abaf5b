"""The model of a kernel's work: counted by hand where a hand can count."""

from collections.abc import Callable

import pytest
from tile_builds import BM, kernel

import gnomon as gn
from gnomon.lowering.build import Block
from gnomon.lowering.config import Tiles
from gnomon.lowering.cost import Cost, costs
from gnomon.lowering.pipelines import Kernels, lower
from gnomon.lowering.tile import Dot, Full, Load, Reduce, Ref, Scatter, Tensor, Type

I32 = Type("i32")
BN, N = Ref("BN", I32), Ref("N", I32)
ROW, SCORE = Ref("b_a", Type("f32", ("BM",))), Ref("b_s", Type("f32", ("BM", "BN")))
WIDE = Ref("b_q", Type("io", ("BM", "BD0")))
KEYS = Ref("b_k", Type("io", ("BN", "BD0")))
TILES = Tiles(8, 4)
TABLE = Tensor("table", ("time", "entry"), "f32", "inout")


def one_turn(build: Callable[[Block], object], **sizes: int) -> Cost:
    def looped(b: Block) -> None:
        with b.loop("i_c", 0, N, BN):
            build(b)

    return costs(kernel(looped), TILES, sizes).interior


def test_a_value_of_every_pair_counts_once() -> None:
    assert one_turn(lambda b: b.let("x", b.op("exp2", SCORE))) == Cost(special=1)
    assert one_turn(lambda b: b.let("x", b.op("maximum", SCORE, 0.0))) == Cost(simple=1)


def test_a_value_of_a_row_is_shared_by_the_keys_of_a_tile() -> None:
    assert one_turn(lambda b: b.let("x", b.op("exp2", ROW))) == Cost(special=1 / 4)


def test_a_product_that_meets_a_sum_is_one_operation() -> None:
    fused = one_turn(lambda b: b.let("x", b.op("+", b.op("*", SCORE, ROW), 1.0)))
    assert fused == Cost(simple=1)
    apart = one_turn(lambda b: b.let("x", b.op("*", b.op("+", SCORE, ROW), 1.0)))
    assert apart == Cost(simple=2)


def test_a_reduction_looks_at_every_element() -> None:
    assert one_turn(lambda b: b.let("x", Reduce("max", SCORE, "BN"))) == Cost(simple=1)


def test_products_of_tiles() -> None:
    """2 d for the scores; 2 d_v for their product with v."""
    assert one_turn(lambda b: b.let("x", Dot(WIDE, KEYS)), BD0=16) == Cost(flops=32)


def test_bytes_by_type_and_gathers_by_index() -> None:
    x, wide = Tensor("x", ("time",), "f64", "in"), Tensor("w", ("time",), "io", "in")
    rows = Ref("o_m", Type("i32", ("BM",)))
    assert one_turn(lambda b: b.let("x", Load(x, (rows,), (N,)))) == Cost(bytes=8 / 4)
    assert one_turn(lambda b: b.let("x", Load(wide, (rows,), (N,)))) == Cost(bytes=2 / 4)
    entry = Ref("e", Type("i32", ("BM", "BN")))
    assert one_turn(lambda b: b.let("x", Load(x, (entry,), (N,)))) == Cost(bytes=8, gathers=1)
    scattered = one_turn(lambda b: b.add(Scatter(TABLE, (BM,), entry, SCORE, (None, None))))
    assert scattered == Cost(gathers=1)


def test_a_loop_inside_counts_its_turns() -> None:
    def channels(b: Block) -> None:
        total = b.let("b_sum", Full(0.0, Type("f32", ("BM", "BN"))))
        with b.loop("i_e", 0, Ref("E0", I32), 1):
            b.set(total, b.op("+", total, SCORE))

    assert one_turn(channels, E0=6) == Cost(simple=6)


def test_costs_add_and_read_well() -> None:
    total = Cost(flops=256, special=1) + Cost(simple=2.5).times(2)
    assert total == Cost(flops=256, special=1, simple=5)
    assert str(total) == "256 flops, 1 special, 5 simple"
    assert str(Cost()) == "nothing"


# ---- whole kernels


def kernels(name: str) -> Kernels:
    (made,) = lower(gn.catalogue.find(name).node).kernels
    return made


@pytest.mark.parametrize(("d", "d_v"), [(64, 64), (128, 64), (32, 48)])
def test_flops_of_attention(d: int, d_v: int) -> None:
    """Two products forward; three for the queries' gradients, four for those of keys and values."""
    made, sizes = kernels("nope"), {"D0": d, "DV": d_v}
    assert made.bwd_rows is not None
    assert costs(made.fwd, TILES, sizes).interior.flops == 2 * d + 2 * d_v
    assert costs(made.bwd_rows, TILES, sizes).interior.flops == 4 * d + 2 * d_v
    assert costs(made.bwd_columns, TILES, sizes).interior.flops == 4 * d + 4 * d_v


def test_an_edge_costs_its_masks() -> None:
    found = costs(kernels("nope").fwd, TILES, {})
    assert found.edge.simple > found.interior.simple
    assert found.edge.flops == found.interior.flops


def test_wider_tiles_share_more() -> None:
    made = kernels("fox").fwd
    narrow, wide = (costs(made, Tiles(bm, 64), {}).interior for bm in (64, 128))
    assert wide.bytes == narrow.bytes / 2


@pytest.mark.parametrize("kernel_name", ["fwd", "bwd_rows", "bwd_columns"])
def test_what_does_not_vary_with_a_channel_is_formed_outside_their_loop(kernel_name: str) -> None:
    """FIRE's logarithm and its quotient are one a pair, however wide the hidden layer is."""
    made = getattr(kernels("fire"), kernel_name)
    few, many = (costs(made, TILES, {"E0": width}).interior for width in (4, 64))
    assert few.special == many.special
    assert few.simple < many.simple

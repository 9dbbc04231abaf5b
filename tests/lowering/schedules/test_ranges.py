"""Masks as loops: every visible pair is met once, hidden ones never, and whole tiles need no mask.

A kernel whose weights are all 1 counts the pairs: with unit vectors as values, o_ij is how often
pair (i, j) took part; with v_j = 2^j the gradient of a row's factor has a bit for each of its keys.
"""

import operator
from functools import reduce
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tile_interpreter import Array, Meaning, run

import gnomon as gn
from gnomon.dsl.nodes import Input, Mask
from gnomon.lowering.build import Block
from gnomon.lowering.core import Attention, Read, Stream
from gnomon.lowering.pipelines import Kernels, to_kernels
from gnomon.lowering.schedules.ranges import Ranges, Stationary
from gnomon.lowering.tile import Kernel, Number, Ref, Type

ONE = Stream(
    "a", "row", None, (), "f32", "scalar", Input("a", "row", None, (), "real"), differentiable=True
)
I32 = Type("i32")
KEYS = 20
"""So few that 2^0 + ... + 2^19 is exact in fp32."""


def counting(mask: Mask) -> Kernels:
    """The kernels of o_i = a_i * sum of the visible v_j."""
    return to_kernels(
        Attention("counting", "weighted_sum", Read(ONE), None, None, None, None, 0.0, mask, (ONE,))
    )


def brute(mask: Mask, queries: int, keys: int) -> Array:
    """Which pairs a mask shows, rule by rule, in memory order from the bottom right."""
    i = np.arange(queries)[:, None] + keys - queries
    j = np.arange(keys)[None, :]
    size: Any = mask.operands[0] if mask.operands else None
    rules: dict[str, Any] = {
        "everything": lambda: (i == i) & (j == j),
        "causal": lambda: j < i if size else j <= i,
        "window": lambda: abs(i - j) < size,
        "first_keys": lambda: (i == i) & (j < size),
        "and": lambda: reduce(operator.and_, parts(mask, queries, keys)),
        "or": lambda: reduce(operator.or_, parts(mask, queries, keys)),
    }
    shown: Array = rules[mask.rule]()
    return shown


def parts(mask: Mask, queries: int, keys: int) -> list[Array]:
    return [brute(part, queries, keys) for part in mask.operands if isinstance(part, Mask)]


def launch(kernel: Kernel, memory: dict[str, Array], queries: int, keys: int, **tiles: int) -> None:
    numbers = {
        "T_q": queries,
        "T_k": keys,
        "shift": keys - queries,
        "NM": -(-queries // tiles["BM"]),
        "NN": -(-keys // tiles["BN"]),
        "DV": memory["v"].shape[3],
        **dict.fromkeys(("B", "H", "G"), 1),
        **tiles,
    }
    run(kernel, memory, {**numbers, "BV": numbers["DV"]})


def unit_vectors(lines: int) -> Array:
    return np.eye(lines, dtype=np.float32)[None, :, None, :]


def pairs_of_forward(made: Kernels, queries: int, keys: int, **tiles: int) -> Array:
    memory = {"a": np.ones((1, queries, 1), np.float32), "v": unit_vectors(keys)}
    memory["o"] = np.full((1, queries, 1, keys), np.nan, np.float32)
    launch(made.fwd, memory, queries, keys, **tiles)
    return memory["o"][0, :, 0]


def pairs_of_rows(made: Kernels, queries: int, keys: int, **tiles: int) -> Array:
    powers = 2.0 ** np.arange(keys)
    memory: dict[str, Array] = {
        "a": np.ones((1, queries, 1), np.float32),
        "v": powers[None, :, None, None].astype(np.float32),
        "do": np.ones((1, queries, 1, 1), np.float32),
        "d_a": np.full((1, queries, 1), np.nan, np.float32),
    }
    assert made.bwd_rows is not None
    launch(made.bwd_rows, memory, queries, keys, **tiles)
    bits = memory["d_a"][0, :, 0].astype(np.int64)
    shown: Array = (bits[:, None] >> np.arange(keys)[None, :]) & 1
    assert (shown @ powers == memory["d_a"][0, :, 0]).all()
    return shown


def pairs_of_columns(made: Kernels, queries: int, keys: int, **tiles: int) -> Array:
    memory = {
        "a": np.ones((1, queries, 1), np.float32),
        "v": np.zeros((1, keys, 1, queries), np.float32),
        "do": unit_vectors(queries),
        "dv": np.full((1, keys, 1, queries), np.nan, np.float32),
    }
    launch(made.bwd_columns, memory, queries, keys, **tiles)
    return memory["dv"][0, :, 0].T


LEAVES = st.one_of(
    st.builds(gn.everything),
    st.builds(lambda strict: gn.causal(strict=strict), st.booleans()),
    st.builds(gn.window, st.integers(1, 9)),
    st.builds(gn.first_keys, st.integers(1, 9)),
)
MASKS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(operator.and_, inner, inner), st.builds(operator.or_, inner, inner)
    ),
    max_leaves=4,
)
TILES = st.sampled_from([1, 2, 4, 8])


@given(MASKS, st.integers(1, KEYS), st.integers(1, KEYS), TILES, TILES)
@example(gn.causal(strict=True), 8, 8, 2, 1)
@example(gn.causal(strict=True), 9, 9, 1, 2)
@example(gn.causal() & gn.window(5) | gn.first_keys(3), 20, 20, 4, 4)
@example(gn.window(2) | gn.first_keys(9), 20, 20, 4, 4)
@example(gn.causal() & (gn.window(3) | gn.first_keys(2)), 7, 20, 4, 2)
def test_every_visible_pair_takes_part_once(
    mask: Mask, queries: int, keys: int, rows: int, columns: int
) -> None:
    made, expected = counting(mask), brute(mask, queries, keys)
    tiles = {"BM": rows, "BN": columns}
    for pairs in (pairs_of_forward, pairs_of_rows, pairs_of_columns):
        assert (pairs(made, queries, keys, **tiles) == expected).all(), pairs.__name__


def tiles_walked(
    mask: Mask, side: Literal["row", "column"], lines: int, total: int, step: int
) -> dict[tuple[int, int], bool]:
    """(first line, first element) -> whether it is masked; tiles of `step` both ways, T_q = T_k."""
    b = Block(("BM", "BN"))
    first, end, length = (Ref(name, I32) for name in ("first", "end", "total"))
    ranges = Ranges(b, Stationary(side, first, end, length, Number(0, "i32")), Ref("step", I32))
    loops = list(ranges.loops(mask))
    meaning, found = Meaning({}), {}
    for line in range(0, lines, step):
        names: dict[str, Any] = {"first": line, "end": line + step, "total": total, "step": step}
        for statement in meaning.body(tuple(b.body)):
            statement(names)
        for loop in loops:
            begin, end_of_loop = (int(meaning.value(x)(names)) for x in (loop.start, loop.stop))
            there, by = (int(meaning.value(x)(names)) for x in loop.jump or (loop.stop, loop.stop))
            for place in range(begin, end_of_loop, step):
                element = place + by if loop.jump and place >= there else place
                assert (line, element) not in found, "walked twice"
                found[line, element] = loop.masked
    return found


MOST_IN_VAIN = [
    (gn.everything(), 0),
    (gn.causal(), 0),
    (gn.causal(strict=True), 0),
    (gn.window(7), 1),
    (gn.causal() & gn.window(9), 1),
    (gn.causal() & (gn.window(9) | gn.first_keys(3)), 2),
    (gn.causal() | gn.first_keys(6), 1),
]


@pytest.mark.parametrize("side", ["row", "column"])
@pytest.mark.parametrize(("mask", "most"), MOST_IN_VAIN, ids=lambda x: str(getattr(x, "rule", x)))
def test_few_tiles_are_walked_or_masked_in_vain(
    mask: Mask, most: int, side: Literal["row", "column"]
) -> None:
    """Tiles that every line sees come without masks, hidden ones not at all; few exceptions."""
    time, step = 32, 4
    shown, walked = brute(mask, time, time), tiles_walked(mask, side, time, time, step)
    shown = shown if side == "row" else shown.T
    in_vain, missed = dict.fromkeys(range(0, time, step), 0), shown.copy()
    for (line, element), masked in walked.items():
        tile = shown[line : line + step, element : element + step]
        is_whole = tile.size == step * step and tile.all()
        assert masked or is_whole
        in_vain[line] += bool((masked and is_whole) or not tile.any())
        missed[line : line + step, element : element + step] = False
    assert not missed.any()
    assert max(in_vain.values()) <= most, f"tiles in vain by line: {in_vain}"

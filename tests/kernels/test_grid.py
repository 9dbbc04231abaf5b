"""The wide grid: lengths, head dims, groups, packed sequences, strides, dtypes, positions."""

import pytest
from kernel_calls import CORE, HALF, Judge, group, kernel_test, pick, row, run_case, shape

from gnomon.dsl.signature import coordinates
from gnomon.runtime.grid import Case
from gnomon.runtime.sample import roles_of

pytestmark = kernel_test

TOKENS = ("fox",)
"""Rows with something for each token: their queries cannot outnumber the keys."""
LENGTHS = pick((33, 65, 130, 257, 1000), (16, 37))
HALF_ROWS = [pytest.param(name, marks=group(name, HALF)) for name in CORE]
DIMS = pick((8, 16, 40, 64, 96, 128, 192, 256), (8, 16, 40))


def rows(kind: str, names: tuple[str, ...] = CORE) -> list[object]:
    """Rows whose kernels of one kind stay in one process."""
    return [pytest.param(name, marks=group(name, kind)) for name in names]


@pytest.mark.parametrize("time", LENGTHS)
@pytest.mark.parametrize("name", HALF_ROWS)
def test_ragged_lengths(name: str, time: int, judge: Judge) -> None:
    far = roles_of(row(name)).far
    judge(run_case(row(name), Case(f"{time} tokens", shape(time), HALF, far=far, lse=True)))


@pytest.mark.parametrize("name", rows("fp32"))
def test_one_token(name: str, judge: Judge) -> None:
    """Many gradients are 0 by nature here, and what 16 bits leave of them is not."""
    sizes = shape(1, dim=pick(32, 16), value_dim=pick(48, 24))
    judge(run_case(row(name), Case("1 token", sizes, lse=True)))


@pytest.mark.parametrize(("queries", "keys"), pick([(1, 257), (33, 130), (200, 201)], [(3, 20)]))
@pytest.mark.parametrize("name", HALF_ROWS)
def test_fewer_queries_than_keys(name: str, queries: int, keys: int, judge: Judge) -> None:
    sizes = shape(keys, queries=queries)
    judge(run_case(row(name), Case(f"{queries} queries, {keys} keys", sizes, HALF)))


@pytest.mark.parametrize(("queries", "keys"), pick([(257, 65), (130, 1), (65, 64)], [(20, 3)]))
@pytest.mark.parametrize("name", [x for x in HALF_ROWS if x.values[0] not in TOKENS])
def test_more_queries_than_keys(name: str, queries: int, keys: int, judge: Judge) -> None:
    """The first rows see no key."""
    sizes = shape(keys, queries=queries)
    case = Case(f"{queries} queries, {keys} keys", sizes, of_few_keys(name), lse=True)
    judge(run_case(row(name), case))


def of_few_keys(name: str) -> str:
    """A row of one key that divides by |e^s - 1| has gradient 0; 16 bits leave much of nothing."""
    return "fp32" if name == "softpick" else HALF


@pytest.mark.parametrize("name", rows("ungrouped"))
def test_a_key_head_for_each_query_head(name: str, judge: Judge) -> None:
    sizes = shape(pick(200, 20), heads=3, kv_heads=3)
    judge(run_case(row(name), Case("3 heads, 3 key heads", sizes, HALF)))


PACKED = pick((0, 17, 1, 65, 0, 130, 300), (0, 5, 1, 0, 18))
FEWER = tuple(-(-n // 3) for n in PACKED)
MORE = tuple(2 * n + 1 for n in PACKED)  # empty sequences of keys have a query too
PACKS = {"as many queries": PACKED, "fewer queries": FEWER, "more queries": MORE}


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("name", rows("packed"))
def test_packed_sequences(name: str, pack: str, judge: Judge) -> None:
    queries = PACKS[pack]
    if pack == "more queries" and name in TOKENS:
        queries = tuple(n // 2 for n in PACKED)  # some sequences have keys and no query
    sizes = shape(sum(PACKED), batch=1, queries=sum(queries))
    case = Case(f"packed, {pack}", sizes, of_few_keys(name), packed=(queries, PACKED), lse=True)
    judge(run_case(row(name), case))


@pytest.mark.parametrize("name", rows("fp32 packed", ("fox", "t5")))
def test_packed_sequences_in_fp32(name: str, judge: Judge) -> None:
    sizes = shape(sum(PACKED), batch=1, queries=sum(FEWER), dim=pick(32, 16), value_dim=24)
    judge(run_case(row(name), Case("packed, fp32", sizes, packed=(FEWER, PACKED), lse=True)))


@pytest.mark.parametrize("name", rows("fp16"))
def test_fp16(name: str, judge: Judge) -> None:
    sizes = shape(pick(200, 20), queries=pick(130, 17))
    judge(run_case(row(name), Case("fp16", sizes, "fp16", lse=True)))


@pytest.mark.parametrize("name", rows("strided", ("fox", "tapa", "t5", "fire", "softpick")))
def test_strided_inputs_in_poison(name: str, judge: Judge) -> None:
    """Heads before time in memory, every second channel; one number is the whole gradient."""
    sizes = shape(pick(130, 20), queries=pick(100, 17))
    judge(run_case(row(name), Case("strided", sizes, HALF, strided=True, expanded=True)))


POSITIONED = tuple(name for name in CORE if coordinates(row(name)) == (None,))


@pytest.mark.parametrize("name", rows("positions", POSITIONED))
def test_positions_with_gaps(name: str, judge: Judge) -> None:
    judge(run_case(row(name), Case("positions", shape(pick(130, 20)), HALF, positions=True)))


@pytest.mark.parametrize("name", rows("packed positions", ("alibi_learned", "rope")))
def test_packed_positions_with_gaps(name: str, judge: Judge) -> None:
    sizes = shape(sum(PACKED), batch=1)
    case = Case("packed positions", sizes, HALF, packed=(PACKED, PACKED), positions=True)
    judge(run_case(row(name), case))


# ---- widths


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        pytest.param(name, dim, marks=group(name, HALF, dim))
        for name in ("fox", "tapa", "rope")
        for dim in DIMS
    ],
)
def test_head_dims(name: str, dim: int, judge: Judge) -> None:
    sizes = shape(pick(130, 20), dim=dim, queries=pick(100, 17))
    judge(run_case(row(name), Case(f"d = {dim}", sizes, HALF, lse=True)))


WIDTHS = pick([(64, 128), (128, 64), (40, 96), (192, 128), (16, 256)], [(16, 24), (24, 8)])


@pytest.mark.parametrize(
    ("name", "dim", "value_dim"),
    [
        pytest.param(name, *widths, marks=group(name, HALF, *widths))
        for name in ("fox", "tapa")
        for widths in WIDTHS
    ],
)
def test_values_of_another_width(name: str, dim: int, value_dim: int, judge: Judge) -> None:
    sizes = shape(pick(130, 20), dim=dim, value_dim=value_dim)
    judge(run_case(row(name), Case(f"d = {dim}, d_v = {value_dim}", sizes, HALF, lse=True)))


@pytest.mark.parametrize(
    "dim", [pytest.param(d, marks=group("fox fp32", d)) for d in pick((64, 128, 256), (40,))]
)
def test_wide_heads_in_fp32(dim: int, judge: Judge) -> None:
    judge(run_case(row("fox"), Case(f"d = {dim}", shape(pick(70, 20), dim=dim), lse=True)))

"""Every row of the catalogue that has kernels: output, log-sum-exp and all gradients."""

import pytest
from kernel_calls import (
    CORE,
    HALF,
    Judge,
    group,
    kernel_test,
    names,
    pick,
    row,
    run_case,
    shape,
)

from gnomon.runtime.grid import Case

pytestmark = kernel_test


@pytest.mark.parametrize("name", [pytest.param(n, marks=group(n, HALF)) for n in names()])
def test_every_row_in_sixteen_bits(name: str, judge: Judge) -> None:
    """Ragged tiles of queries and of keys, fewer queries than keys, a key head for four."""
    sizes = shape(pick(257, 21), queries=pick(190, 18))
    judge(run_case(row(name), Case("ragged, 4 heads a key head", sizes, HALF, lse=True)))


IN_FP32 = (*CORE, "kerple_power", "deberta", "differential", "sigmoid_attention", "documents")


@pytest.mark.parametrize("name", [pytest.param(n, marks=group(n, "fp32")) for n in IN_FP32])
def test_rows_in_fp32(name: str, judge: Judge) -> None:
    sizes = shape(pick(190, 21), queries=pick(150, 18), dim=pick(32, 16), value_dim=pick(48, 24))
    judge(run_case(row(name), Case("ragged, d_v != d", sizes, lse=True)))

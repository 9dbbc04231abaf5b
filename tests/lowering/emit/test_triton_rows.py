"""Rows of the catalogue compile for GPUs that are not here, forward and backward.

Each row has a part that the others lack: a prefix sum of gates, a cosine of a second dot, rotated
operands, a table, a hidden layer, softplus weights, a sink, a window, packed sequences.
"""

import pytest

from gnomon import catalogue
from gnomon.lowering.pipelines import lower
from gnomon.runtime.offline import TARGETS
from gnomon.runtime.reports import KernelReport, reports

MATRIX = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma"}
ROWS = ("fox", "tapa", "rope", "t5", "fire", "softpick", "learned_sink", "streaming")
WIDTH = 64


def compiled(name: str, target: str, roles: tuple[str, ...], *, packed: bool) -> list[KernelReport]:
    lowered = lower(getattr(catalogue, name).node, packed=packed)
    return list(reports(lowered.kernels, TARGETS[target], "bf16", WIDTH, WIDTH, roles=roles))


def expect_loadable(found: list[KernelReport], target: str) -> None:
    for each in found:
        assert MATRIX[target] in each.report.kinds, each.kernel
        assert each.report.fits(TARGETS[target]), each.kernel
        assert each.report.registers <= TARGETS[target].registers, each.kernel


@pytest.mark.parametrize("name", ROWS)
def test_every_kernel_of_a_row_compiles_for_hopper(name: str) -> None:
    found = compiled(name, "sm_90", ("fwd", "bwd_rows", "bwd_columns"), packed=name == "fox")
    assert len(found) == 3
    expect_loadable(found, "sm_90")


@pytest.mark.parametrize("target", ["sm_80", "sm_100", "gfx942"])
def test_every_kernel_compiles_for_other_gpus(target: str) -> None:
    found = compiled("fox", target, ("fwd", "bwd_rows", "bwd_columns"), packed=False)
    assert len(found) == 3
    expect_loadable(found, target)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("tapa", "gfx942"),
        ("rope", "sm_100"),
        ("fire", "sm_80"),
        ("softpick", "gfx942"),
        ("learned_sink", "sm_100"),
        ("streaming", "sm_80"),
    ],
)
def test_forwards_compile_for_other_gpus(name: str, target: str) -> None:
    expect_loadable(compiled(name, target, ("fwd",), packed=False), target)


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("path", ("fwd", "bwd_rows", "bwd_columns")),
        ("path_fox", ("bwd_columns",)),
        ("tapa", ("bwd_columns",)),
        ("fox", ("bwd_columns",)),
    ],
)
def test_matrix_products_do_not_wait_for_each_other(name: str, roles: tuple[str, ...]) -> None:
    """At the default tiles for 128 channels: ptxas warns (C7510 to C7515) where they would."""
    lowered = lower(getattr(catalogue, name).node)
    found = list(reports(lowered.kernels, TARGETS["sm_90"], "bf16", 128, 128, roles=roles))
    assert [each.kernel.endswith("_tma") for each in found] == [True] * len(roles)
    assert {each.kernel: each.report.warnings for each in found if each.report.warnings} == {}

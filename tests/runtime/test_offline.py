"""Printed kernels compile for GPUs that are not here, and the report says what they need."""

from pathlib import Path

import pytest
import tile_kernels

from gnomon.lowering import tile
from gnomon.lowering.emit.triton import print_module, printed
from gnomon.runtime.offline import IO, TARGETS, Report, Specialisation, compile_kernel, specialise
from gnomon.runtime.worker import WorkerError

MATRIX = {
    "sm_80": "mma",
    "sm_86": "mma",
    "sm_89": "mma",
    "sm_90": "wgmma",
    "sm_100": "tcgen05",
    "sm_120": "mma",
    "gfx942": "mfma",
}
SMALL = {"D0": 64, "DV": 64, "BD0": 64, "BV": 64, "BM": 64, "BN": 64}


def compiled(
    kernel: tile.Kernel,
    target: str,
    constants: dict[str, int],
    *,
    io: IO = "bf16",
    num_warps: int = 4,
    num_stages: int = 2,
    descriptors: bool = False,
) -> Report:
    how = specialise(printed(kernel, descriptors=descriptors).arguments, io, constants)
    return compile_kernel(
        print_module([kernel], "One kernel.", descriptors=descriptors),
        kernel.name,
        how.signature,
        how.constexprs,
        target,
        num_warps=num_warps,
        num_stages=num_stages,
        divisible=how.divisible,
    )


@pytest.mark.parametrize("target", TARGETS)
def test_the_forward_compiles_for_every_target(target: str) -> None:
    report = compiled(tile_kernels.forward(gate=True), target, SMALL)
    assert MATRIX[target] in report.kinds
    assert report.fits(TARGETS[target])
    # two stages of a tile of keys and one of values at least, or those of the loop in registers
    assert report.shared >= 64 * 64 * 2
    assert 64 <= report.registers <= TARGETS[target].registers


def test_every_kernel_by_hand_compiles_for_hopper() -> None:
    constants = {**SMALL, "BM": 32, "BN": 32, "E0": 8, "BE0": 8}
    for kernel in (
        tile_kernels.backward_columns(),
        tile_kernels.gather(),
        tile_kernels.scatter(),
        tile_kernels.channel_sum(),
    ):
        assert compiled(kernel, "sm_90", constants).fits(TARGETS["sm_90"])


def test_a_tuned_hopper_forward_needs_no_more_than_it_should() -> None:
    """bf16, 128 x 64 tiles of 128 channels: q and three stages of k and v, all in wide copies."""
    constants = {**SMALL, "D0": 128, "DV": 128, "BD0": 128, "BV": 128, "BM": 128}
    report = compiled(
        tile_kernels.forward(gate=False), "sm_90", constants, num_warps=8, num_stages=3
    )
    assert report.kinds == ("wgmma",)
    assert report.spills == 0
    assert report.registers <= 255
    assert report.shared <= (128 + 2 * 3 * 64) * 128 * 2
    assert "ld.global.b16" not in report.assembly
    assert "cp.async.cg" in report.assembly


@pytest.mark.parametrize("target", [t.name for t in TARGETS.values() if t.has_descriptors])
def test_descriptors_are_copied_by_hardware(target: str) -> None:
    report = compiled(tile_kernels.forward(gate=False), target, SMALL, descriptors=True)
    assert report.kinds == tuple(sorted(("tma", MATRIX[target])))
    assert "cp.async.cg" not in report.assembly
    plain = compiled(tile_kernels.forward(gate=False), target, SMALL)
    assert report.registers < plain.registers


def test_exact_products_of_fp32_use_no_tensor_cores() -> None:
    report = compiled(tile_kernels.forward(gate=False), "sm_90", {**SMALL, "BM": 32}, io="fp32")
    assert report.kinds == ()
    assert "tf32" not in report.assembly


def test_spills_and_excess_are_seen() -> None:
    """A tile that is too large for the registers of four warps and for a small GPU's memory."""
    constants = {**SMALL, "D0": 128, "DV": 128, "BD0": 128, "BV": 128, "BM": 128, "BN": 128}
    report = compiled(tile_kernels.forward(gate=False), "sm_86", constants, num_stages=3)
    assert report.spills > 0
    assert not report.fits(TARGETS["sm_86"])


def test_a_kernel_that_is_wrong_is_an_error_with_the_compilers_words(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(
        "import triton\nimport triton.language as tl\n\n\n"
        "@triton.jit\ndef wrong(x):\n    tl.store(x, tl.nothing(x))\n"
    )
    with pytest.raises(WorkerError, match="nothing"):
        compile_kernel(path, "wrong", {"x": "*fp32"}, {}, "sm_90")


def test_compiling_is_given_up_in_time() -> None:
    kernel = tile_kernels.forward(gate=False)
    how: Specialisation = specialise(printed(kernel).arguments, "fp16", {**SMALL, "BN": 32})
    source = print_module([kernel], "One kernel, in no time.")
    with pytest.raises(WorkerError, match=r"compile_source took more than 0\.001 s"):
        compile_kernel(source, kernel.name, how.signature, how.constexprs, "sm_90", timeout=0.001)


def test_a_launch_is_specialised_as_triton_does() -> None:
    how = specialise(printed(tile_kernels.forward(gate=True)).arguments, "fp16", SMALL)
    assert how.signature["q"] == "*fp16"
    assert how.signature["c"] == "*fp32"
    assert how.signature["T_q"] == "i32"
    assert how.signature["scale"] == "fp32"
    assert how.signature["s_q_d"] == how.signature["BM"] == "constexpr"
    units = ("s_q_d", "s_k_d", "s_v_d", "s_o_d", "s_c_t", "s_lse_t")
    assert how.constexprs == {**SMALL, **dict.fromkeys(units, 1)}
    assert how.signature["s_lse_h"] == "i32"
    assert {"q", "s_q_t", "s_k_h"} <= set(how.divisible)
    assert not {"s_c_t", "s_lse_b", "T_q"} & set(how.divisible)

"""Printed Gluon: its text, and what Triton makes of it for sm_90 where there is no GPU."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Golden

import gnomon as gn
from gnomon.dsl.errors import UnsupportedError
from gnomon.lowering import tile
from gnomon.lowering.emit.gluon import print_module, printed
from gnomon.lowering.emit.triton import printed as printed_triton
from gnomon.lowering.pipelines import lower
from gnomon.runtime.offline import TARGETS, specialise
from gnomon.runtime.worker import Worker

ROOT = Path(__file__).parents[3]
JOB = Path(__file__).with_name("gluon_job.py")


def kernel(name: str, which: str) -> tile.Kernel:
    found = getattr(lower(getattr(gn.catalogue, name).node).kernels[0], which)
    assert isinstance(found, tile.Kernel)
    return found


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker({"TRITON_INTERPRET": None}) as process:
        yield process


def test_nope(golden: Golden) -> None:
    assert print_module([kernel("nope", "fwd")], "Plain attention: forward.") == golden.code


def test_text_is_formatted() -> None:
    source = print_module([kernel("fox", "fwd"), kernel("fox", "bwd_columns")], "FoX.")
    where = ["--stdin-filename", "kernels_generated/fox.py", "-"]
    command = [sys.executable, "-m", "ruff", "format", "--diff", *where]
    done = subprocess.run(command, input=source, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == ""
    assert done.returncode == 0


@pytest.mark.parametrize("which", ["fwd", "bwd_columns"])
def test_arguments_are_those_of_the_triton_kernel(which: str) -> None:
    fox = kernel("fox", which)
    assert printed(fox).arguments == printed_triton(fox).arguments


def test_sums_into_entries_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="d_bias"):
        printed(kernel("t5", "bwd_rows"))


def compiled(worker: Worker, of: tile.Kernel, num_warps: int) -> tuple[str, int]:
    """PTX for sm_90 and bytes of shared memory."""
    text = printed(of)
    constants = {"D0": 60, "DV": 64, "BM": 64, "BN": 64, "BD0": 64, "BV": 64}
    given = specialise(text.arguments, "bf16", constants)
    signature = {**given.signature, "num_warps": "constexpr"}
    constexprs = {**given.constexprs, "num_warps": num_warps}
    source, divisible = print_module([of], "One kernel."), list(given.divisible)
    job = source, of.name, signature, constexprs, divisible, num_warps
    found = worker.run(JOB, "compile_source", *job, timeout=120)
    return found["ptx"], found["shared"]


PRODUCTS = {"fwd": 2, "bwd_columns": 4}


@pytest.mark.parametrize(
    ("name", "which"), [("nope", "fwd"), ("fox", "fwd"), ("fox", "bwd_columns")]
)
def test_products_are_those_of_a_warpgroup(name: str, which: str, worker: Worker) -> None:
    of = kernel(name, which)
    ptx, shared = compiled(worker, of, 4)
    loops = len(
        re.findall(r"^ +for i_\w+ in range\(.*, B[MN]\):", printed(of).source, re.MULTILINE)
    )
    # [64, 64] times [64, 64] is four steps of 16
    assert ptx.count("wgmma.mma_async.sync.aligned.m64n64k16") == 4 * PRODUCTS[which] * loops
    assert "mma.sync.aligned" not in ptx
    assert "cp.async.cg.shared.global" in ptx
    # q, k, v; in the other kernel do too: bf16
    assert shared >= (3 if which == "fwd" else 4) * 64 * 64 * 2
    assert shared <= TARGETS["sm_90"].shared

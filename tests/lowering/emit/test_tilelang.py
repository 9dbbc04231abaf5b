"""Printed TileLang: its text, what it becomes for sm_90a, and what it computes on the CPU."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tile_calls
import tile_interpreter
import torch
from conftest import Golden
from support import Shape, assert_close, small_tensors

import gnomon as gn
from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.nodes import Variant
from gnomon.dsl.reference import reference
from gnomon.lowering import tile
from gnomon.lowering.emit.tilelang import print_module, printed
from gnomon.lowering.passes.assign_buffers import assign_buffers
from gnomon.lowering.pipelines import Kernels, lower
from gnomon.runtime.worker import Worker

ROOT = Path(__file__).parents[3]
JOB = Path(__file__).with_name("tilelang_job.py")
ARCH = "sm_90a"
BOUND = 2e-5
"""fp32 tiles: sums of at most 128 terms of size 1, so a few hundred roundings of 6e-8."""

runs_tilelang = pytest.mark.skipif(
    importlib.util.find_spec("tilelang") is None, reason="needs the extra `tilelang`"
)


def kernels(name: str, *, packed: bool = False) -> Kernels:
    return lower(getattr(gn.catalogue, name).node, packed=packed).kernels[0]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One process that imports TileLang, for all tests of this file."""
    with Worker({"TILELANG_DISABLE_CACHE": "1"}) as process:
        yield process


# -- text


def fox_module() -> str:
    fox = kernels("fox")
    return print_module([fox.fwd, fox.bwd_columns], "FoX: forward, gradients of keys and values.")


def test_fox(golden: Golden) -> None:
    assert fox_module() == golden.code


def test_text_is_formatted() -> None:
    where = ["--stdin-filename", "kernels_generated/fox.py", "-"]
    command = [sys.executable, "-m", "ruff", "format", "--diff", *where]
    source = fox_module()
    done = subprocess.run(command, input=source, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == ""
    assert done.returncode == 0


def test_only_the_first_loop_of_a_program_is_a_pipeline() -> None:
    """TileLang would clear accumulators again in front of a pipeline inside another loop."""
    fox = kernels("fox")
    forward, columns = printed(fox.fwd).source, printed(fox.bwd_columns).source
    loops = re.findall(r"for i_t in T\.(\w+)", forward)
    assert loops == ["Pipelined", "serial"]
    assert set(re.findall(r"for i_t in T\.(\w+)", columns)) == {"serial"}


def test_on_the_cpu_every_buffer_is_local_and_every_loop_serial() -> None:
    fox = kernels("fox")
    text = printed(fox.bwd_columns, on="cpu").source
    assert not re.search(r"alloc_shared|alloc_fragment|T\.Parallel|T\.Pipelined|threads", text)


def test_sums_into_entries_are_refused() -> None:
    rows = kernels("t5").bwd_rows
    assert rows is not None
    with pytest.raises(UnsupportedError, match="d_bias"):
        print_module([rows], "T5.")


# -- buffers


def test_buffers_of_fox() -> None:
    """Operands of products and vectors of the moving axis are shared; the rest is in registers."""
    forward = assign_buffers(kernels("fox").fwd)
    homes = {name: home for name, (_, home) in forward.buffers.items()}
    shared = {name for name, home in homes.items() if home == "shared"}
    assert {"b_q", "b_k", "b_v", "b_log_f_sum_k"} <= shared
    assert homes["b_o"] == homes["b_p"] == homes["b_p_io"] == homes["b_m"] == "fragment"
    columns = assign_buffers(kernels("fox").bwd_columns).buffers
    assert columns["b_lse"][1] == "shared"
    assert columns["b_log_f_sum_k"][1] == "fragment"


@pytest.mark.parametrize("name", ["fox", "tapa", "t5", "softpick", "streaming"])
def test_programs_of_buffers_mean_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program taken apart into buffers, run by the tile interpreter."""
    whole = tile_interpreter.run

    def run(kernel: tile.Kernel, memory: dict[str, Any], numbers: dict[str, Any]) -> None:
        whole(assign_buffers(kernel).kernel, memory, numbers)

    monkeypatch.setattr(tile_calls, "run", run)
    compare(gn.catalogue.find(name).node, Shape(time=21, value_dim=24), tile_calls.Tiles(8, 4))


# -- CUDA


@runs_tilelang
# the columns of fox: DECISIONS.md, "TileLang and the columns"
@pytest.mark.parametrize(("name", "which"), [("fox", "fwd"), ("nope", "bwd_columns")])
def test_kernels_become_cuda_for_hopper(name: str, which: str, worker: Worker) -> None:
    """Every product is a warpgroup's, and no thread runs out of registers."""
    kernel = getattr(kernels(name), which)
    sizes = {"B": 2, "H": 4, "G": 2, "D0": 64, "DV": 64, "BD0": 64, "BV": 64, "BM": 64, "BN": 64}
    lengths = ["T_q", "T_k"] if which == "fwd" else []  # what any call may choose
    sizes |= {"shift": 0} if lengths else {"T_q": 1000, "T_k": 1000, "shift": 0}
    source = print_module([kernel], "FoX.")
    cuda = worker.run(JOB, "lower", source, kernel.name, sizes, lengths, ARCH, timeout=300)
    loops = 2
    products = {"fwd": 1, "bwd_columns": 2}[which]
    # operands from shared memory, and from registers: q k^T, p v; k q^T, v do^T, p do, ds q
    assert cuda.count("tl::wgmma_ss<") == cuda.count("tl::wgmma_rs<") == loops * products
    assert "mma_sync" not in cuda
    assert ("tl::tma_load(" in cuda) == (which == "fwd")
    report = worker.run(JOB, "assemble", cuda, ARCH)
    if report:
        print(which, report)
        assert report["spills"] == 0


# -- values


DTYPES = {"io": np.float32, "f32": np.float32, "f64": np.float64, "i32": np.int32}


def run_on_cpu(
    worker: Worker, kernel: tile.Kernel, memory: dict[str, Any], numbers: dict[str, Any]
) -> None:
    """One launch of a kernel that TileLang compiled for the CPU; outputs are put into `memory`."""
    text = printed(kernel, on="cpu")
    known = {**numbers, "total_q": memory["q"].shape[1], "total_k": memory["k"].shape[1]}
    sizes = {name: int(known[name]) for name in text.sizes}
    tensors = [p for p in kernel.params if isinstance(p, tile.Tensor)]
    given = [np.array(memory[t.name], DTYPES[t.dtype], order="C") for t in tensors]
    source = print_module([kernel], "One kernel.", on="cpu")
    arguments = [*given, *(known[name] for name in text.numbers)]
    after = worker.run(JOB, "run", source, kernel.name, sizes, arguments, timeout=120)
    outputs = {t.name: x for t, x in zip(tensors, after, strict=False) if t.mode != "in"}
    memory.update(outputs)


def compare(variant: Variant, shape: Shape, tiles: tile_calls.Tiles) -> None:
    """Output and gradients of `tile_calls.attend` against the oracle."""
    tensors = small_tensors(variant, shape)
    random = torch.Generator().manual_seed(7)
    out_shape = (*tensors["q"].shape[:3], tensors["v"].shape[3])
    do = torch.randn(out_shape, generator=random)
    made = tile_calls.attend(variant, tensors, do, tiles=tiles)
    leaves = {name: x.double().requires_grad_() for name, x in tensors.items()}
    out = reference(variant, **leaves)
    assert_close("out", out, made.out, BOUND)
    expected = torch.autograd.grad(out, list(leaves.values()), do.double())
    for name, gradient in zip(leaves, expected, strict=True):
        assert_close(f"d{name}", gradient, made.grads[name], BOUND)


@pytest.fixture
def on_cpu(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels run by TileLang instead of the tile interpreter; the list of their names."""
    names: list[str] = []

    def run(kernel: tile.Kernel, memory: dict[str, Any], numbers: dict[str, Any]) -> None:
        run_on_cpu(worker, kernel, memory, numbers)
        names.append(kernel.name)

    monkeypatch.setattr(tile_calls, "run", run)
    return names


@runs_tilelang
def test_fox_forward_and_gradients_on_the_cpu(on_cpu: list[str]) -> None:
    """The printed programs: ragged length, two heads a key head, channels of v that are padded."""
    shape = Shape(time=100, dim=32, value_dim=48)
    compare(gn.catalogue.fox.node, shape, tile_calls.Tiles(32, 16))
    assert on_cpu == ["fox_fwd", "fox_bwd_rows", "fox_bwd_columns"]


@runs_tilelang
def test_tapa_with_more_keys_than_queries_on_the_cpu(on_cpu: list[str]) -> None:
    """Two products a pair, and functions that TileLang has not."""
    shape = Shape(batch=1, time=45, queries=21)
    compare(gn.catalogue.tapa.node, shape, tile_calls.Tiles(16, 16))
    assert on_cpu == ["tapa_fwd", "tapa_bwd_rows", "tapa_bwd_columns"]

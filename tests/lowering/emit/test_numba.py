"""Printed CPU kernels mean their tile programs: as plain Python, compiled, and as text."""

import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tile_interpreter
import tile_kernels
from printed_numba import Array, bits, case, launch, load, rounded

from gnomon.lowering.emit.numba import Io, print_kernel, print_module
from gnomon.lowering.tile import Kernel, Tensor

ROOT = Path(__file__).parents[3]
KERNELS: dict[str, Callable[[], Kernel]] = {
    "plain": lambda: tile_kernels.forward(gate=False),
    "fox": lambda: tile_kernels.forward(gate=True),
    "backward": tile_kernels.backward_columns,
    "gather": tile_kernels.gather,
    "scatter": tile_kernels.scatter,
    "channel_sum": tile_kernels.channel_sum,
}


def assert_same(kernel: Kernel, got: dict[str, Array], want: dict[str, Array]) -> None:
    for param in kernel.params:
        if isinstance(param, Tensor) and param.mode != "in":
            right = want[param.name]
            size = 3e-6 * float(np.abs(right[np.isfinite(right)]).max(initial=0.0))
            np.testing.assert_allclose(got[param.name], right, 3e-5, size, err_msg=param.name)


def interpreted(kernel: Kernel, tensors: Any, numbers: Any, io: Io = "f32") -> dict[str, Array]:
    made = rounded(kernel, tensors, io)
    tile_interpreter.run(kernel, made, numbers)
    return made


# ---- as plain Python


@pytest.mark.parametrize("io", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", KERNELS)
def test_plain_python_does_what_the_tile_program_says(name: str, io: Io) -> None:
    kernel = KERNELS[name]()
    tensors, numbers = case(kernel)
    given = bits(kernel, tensors, io)
    launch(load(print_module([kernel], io, jit=False), name), kernel, given, numbers)
    assert_same(kernel, given, interpreted(kernel, tensors, numbers, io))


@pytest.mark.parametrize("tiles", [(4, 16), (16, 16), (1, 1)])
@pytest.mark.parametrize("name", ["fox", "backward"])
def test_tiles_of_any_size(name: str, tiles: tuple[int, int]) -> None:
    kernel = KERNELS[name]()
    tensors, numbers = case(kernel, tiles)
    given = bits(kernel, tensors, "f32")
    launch(load(print_module([kernel], "f32", jit=False), name), kernel, given, numbers)
    assert_same(kernel, given, interpreted(kernel, tensors, numbers))


def test_rows_without_keys() -> None:
    """With more queries than keys the first rows are dead: output 0, log-sum-exp -inf."""
    kernel = tile_kernels.forward(gate=True)
    tensors, numbers = case(kernel, T_q=11, T_k=5)
    launch(load(print_module([kernel], "f32", jit=False), "dead"), kernel, tensors, numbers)
    assert (tensors["o"][:, :6] == 0).all()
    assert np.isneginf(tensors["lse"][:, :6]).all()
    assert np.isfinite(tensors["lse"][:, 6:]).all()


POINTWISE = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "log1p", "expm1", "sqrt", "rsqrt"), 1),
    **dict.fromkeys(("sin", "cos", "sin_turns", "cos_turns", "tanh", "sigmoid", "abs"), 1),
    **dict.fromkeys(("log_sigmoid", "softplus", "relu", "floor", "neg"), 1),
    **dict.fromkeys(("+", "-", "*", "/", "**", "minimum", "maximum", "//", "%"), 2),
}


@pytest.mark.parametrize("fn", POINTWISE)
def test_every_function(fn: str) -> None:
    kernel = replace(tile_kernels.pointwise(fn, POINTWISE[fn]), name="apply")
    x = np.abs(case(kernel)[0]["x"]) + 0.125
    tensors = {"x": x, "y": x[::-1].copy(), "out": np.full_like(x, np.nan)}
    numbers = {"T_q": len(x), "BM": 4}
    want = interpreted(kernel, tensors, numbers)
    launch(load(print_module([kernel], "f32", jit=False), "one"), kernel, tensors, numbers)
    np.testing.assert_allclose(tensors["out"], want["out"], rtol=1e-6)


@pytest.mark.parametrize("fn", ["//", "%", "cdiv", "/", "-", "minimum"])
def test_every_function_of_integers(fn: str) -> None:
    kernel = replace(tile_kernels.pointwise(fn, 2, dtype="i32"), name="apply")
    x, y = np.array([-7, 7, 8, -1, 0], np.int32), np.array([2, 3, 4, 5, 1], np.int32)
    kind = np.float32 if fn == "/" else np.int32
    tensors = {"x": x, "y": y, "out": np.full(5, np.nan if kind is np.float32 else 0, kind)}
    want = interpreted(kernel, tensors, {"T_q": 5, "BM": 4})
    module = load(print_module([kernel], "f32", jit=False), "one")
    launch(module, kernel, tensors, {"T_q": 5, "BM": 4})
    np.testing.assert_array_equal(tensors["out"], want["out"].astype(kind))


# ---- compiled


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> types.ModuleType:
    """FoX forward and backward, gather, scatter and a channel sum, compiled for fp32."""
    kernels = [KERNELS[name]() for name in ("fox", "backward", "gather", "scatter", "channel_sum")]
    return compile_file(tmp_path_factory.mktemp("numba"), "compiled_kernels", kernels, "f32")


def compile_file(folder: Path, name: str, kernels: list[Kernel], io: Io) -> types.ModuleType:
    """A module in a file, as `cache=True` wants it."""
    path = folder / f"{name}.py"
    path.write_text(print_module(kernels, io))
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", ["fox", "backward", "gather", "scatter", "channel_sum"])
def test_compiled_code_does_what_the_tile_program_says(
    name: str, compiled: types.ModuleType
) -> None:
    kernel = KERNELS[name]()
    tensors, numbers = case(kernel, (16, 32), T_q=50, T_k=77, D0=16, DV=24)
    given = bits(kernel, tensors, "f32")
    launch(compiled, kernel, given, numbers)
    assert_same(kernel, given, interpreted(kernel, tensors, numbers))


def test_any_strides_and_nothing_read_beyond_the_limits(compiled: types.ModuleType) -> None:
    """Every second channel of longer tensors of other layout; what surrounds them is NaN."""
    kernel = tile_kernels.forward(gate=True)
    tensors, numbers = case(kernel, (16, 32), T_q=50, T_k=77)
    given = {}
    for name, x in tensors.items():
        room = np.full([2 * n + 3 for n in reversed(x.shape)], np.nan, np.float32)
        view = room[tuple(slice(1, 1 + 2 * n, 2) for n in reversed(x.shape))].T
        view[...] = x
        given[name] = view
    launch(compiled, kernel, given, numbers)
    assert_same(kernel, given, interpreted(kernel, tensors, numbers))


def test_compiled_infinities_and_nan(compiled: types.ModuleType) -> None:
    """A gate of -inf hides a key exactly; a row that sees NaN is NaN, and no other row is."""
    kernel = tile_kernels.forward(gate=True)
    tensors, numbers = case(kernel, (16, 32), T_q=77, T_k=77)
    tensors["c"][:, 5] = np.inf
    tensors["v"][:, 5] = 1e30
    tensors["q"][0, 40] = np.nan
    launch(compiled, kernel, tensors, numbers)
    dead = np.isnan(tensors["o"]).any((2, 3))
    assert np.argwhere(dead).tolist() == [[0, 40]]
    assert np.isnan(tensors["o"][0, 40]).all()
    assert np.abs(np.nan_to_num(tensors["o"])).max() < 10


@pytest.mark.parametrize("io", ["f16", "bf16"])
def test_compiled_sixteen_bits(io: Io, tmp_path: Path) -> None:
    kernel = tile_kernels.forward(gate=False)
    tensors, numbers = case(kernel, (16, 32), T_q=50, T_k=77)
    given = bits(kernel, tensors, io)
    launch(compile_file(tmp_path, f"compiled_{io}", [kernel], io), kernel, given, numbers)
    assert given["o"].dtype == np.float32
    assert_same(kernel, given, interpreted(kernel, tensors, numbers, io))


# ---- as text


def ruff(*command: str, text: str) -> subprocess.CompletedProcess[str]:
    """Ruff on a file as it would stand in kernels_generated."""
    name = str(ROOT / "kernels_generated" / "sample.py")
    whole = [sys.executable, "-m", "ruff", *command, "--stdin-filename", name, "-"]
    return subprocess.run(whole, input=text, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("io", ["f32", "f16"])
def test_the_text_is_formatted_and_clean(io: Io, jit: bool) -> None:
    kernels = [make() for make in KERNELS.values()]
    text = print_module(kernels, io, jit=jit)
    assert ruff("format", text=text).stdout == text
    # a kernel is one function, however many loops it has
    checked = ruff("check", "--ignore", "C901", text=text)
    assert checked.returncode == 0, checked.stdout


def test_printing_is_deterministic() -> None:
    script = (
        "import tile_kernels as t; from gnomon.lowering.emit.numba import print_module as p;"
        "print(p([t.forward(gate=True), t.backward_columns(), t.channel_sum()], 'bf16'))"
    )
    made = set()
    for seed in ("1", "2"):
        path = f"{ROOT / '.pyroot'}:{ROOT / 'tests'}"
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": path, "PATH": ""}
        command = [sys.executable, "-c", script]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        made.add(run.stdout)
    assert len(made) == 1


def test_forward_of_fox(golden: Any) -> None:
    assert print_kernel(tile_kernels.forward(gate=True), "f32") == golden.code


def test_backward_of_fox_over_columns(golden: Any) -> None:
    assert print_kernel(tile_kernels.backward_columns(), "bf16") == golden.code

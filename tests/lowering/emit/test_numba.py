"""Printed CPU kernels mean their tile programs: as plain Python, compiled, and as text."""

import math
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import tile_interpreter
import tile_kernels
import torch
from tile_kernels import scalar

from gnomon.lowering import tile
from gnomon.lowering.build import Block
from gnomon.lowering.emit.numba import Io, print_kernel, print_module
from gnomon.lowering.tile import Arange, Full, Kernel, Load, Reduce, Tensor, Type

Array = npt.NDArray[Any]
ROOT = Path(__file__).parents[3]
KERNELS: dict[str, Callable[[], Kernel]] = {
    "plain": lambda: tile_kernels.forward(gate=False),
    "fox": lambda: tile_kernels.forward(gate=True),
    "backward": tile_kernels.backward_columns,
    "gather": tile_kernels.gather,
    "scatter": tile_kernels.scatter,
    "channel_sum": tile_kernels.channel_sum,
}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SIZES = {"T_q": 11, "T_k": 19, "H": 4, "G": 2, "D0": 8, "DV": 12, "N_t": 6, "E0": 5, "scale": 0.25}
MODES: tuple[tuple[str, Literal["in", "out"]], ...] = (("x", "in"), ("out", "out"))
AXES = {"batch": 2, "time_q": 11, "time_k": 19, "head": 4, "kv_head": 2, "one": 1}


def case(kernel: Kernel, tiles: tuple[int, int] = (8, 4), **other: int) -> tuple[Any, Any]:
    """Random tensors (outputs full of NaN) and the numbers of a launch."""
    numbers: dict[str, Any] = {**SIZES, "BM": tiles[0], "BN": tiles[1], **other}
    numbers |= {"NM": -(-numbers["T_q"] // tiles[0]), "NN": -(-numbers["T_k"] // tiles[1])}
    numbers |= {padded: numbers[width] for padded, width in kernel.widths}
    sizes = {**AXES, **numbers, "time_q": numbers["T_q"], "time_k": numbers["T_k"]}
    sizes["block"] = numbers["NM"]
    random = np.random.default_rng(3)
    tensors = {}
    for param in kernel.params:
        if isinstance(param, Tensor):
            shape = [sizes[axis] for axis in param.axes]
            made = random.standard_normal(shape).astype(np.float32)
            empty = {"in": made, "out": np.full_like(made, np.nan), "inout": np.zeros_like(made)}
            tensors[param.name] = empty[param.mode]
    return tensors, {**numbers, "B": AXES["batch"]}


def rounded(kernel: Kernel, tensors: dict[str, Array], io: Io) -> dict[str, Array]:
    """The tensors as a kernel of that dtype sees them, in fp32."""
    made = {}
    for param in kernel.params:
        if isinstance(param, Tensor):
            x = torch.from_numpy(tensors[param.name].copy())
            narrow = param.dtype == "io" and param.mode == "in"
            made[param.name] = (x.to(DTYPES[io]).float() if narrow else x).numpy()
    return made


def bits(kernel: Kernel, tensors: dict[str, Array], io: Io) -> dict[str, Array]:
    """The tensors as a launch passes them: 16-bit dtypes as integers."""
    made = {name: x.copy() for name, x in tensors.items()}
    for param in kernel.params:
        if not isinstance(param, Tensor) or param.mode != "in" or io == "f32":
            continue
        if param.dtype == "io":
            narrow = torch.from_numpy(tensors[param.name]).to(DTYPES[io])
            made[param.name] = narrow.view(torch.uint16).numpy()
    return made


def load(text: str, name: str) -> types.ModuleType:
    """The printed text as a module."""
    module = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def launch(module: types.ModuleType, kernel: Kernel, tensors: Any, numbers: Any) -> None:
    args = [tensors[p.name] if isinstance(p, Tensor) else numbers[p.name] for p in kernel.params]
    for worker in range(2):
        getattr(module, kernel.name)(worker, 2, *args)


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
    tensors = {"x": x, "y": y, "out": np.zeros(5, kind)}
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


# ---- fusion and buffers


def lines(kernel: Kernel) -> list[str]:
    return [line.strip() for line in print_kernel(kernel, "f32", jit=False).splitlines()]


def softmax_rows() -> Kernel:
    """out = softmax(x) along the rows, and a vector of column sums."""
    b = Block(("BM", "BN"))
    x = Tensor("x", ("time_q", "time_k"), "f32", "in")
    out = Tensor("out", ("time_q", "time_k"), "f32", "out")
    total = Tensor("total", ("time_k",), "f32", "out")
    index = (Arange("BM"), Arange("BN"))
    limits = (scalar("T_q"), scalar("T_k"))
    b_x = b.let("b_x", Load(x, index, limits, -math.inf))
    b_m = b.let("b_m", Reduce("max", b_x, "BN"))
    b_e = b.let("b_e", b.op("exp", b.op("-", b_x, b_m)))
    b_d = b.let("b_d", Reduce("sum", b_e, "BN"))
    b_p = b.let("b_p", b.op("/", b_e, b_d))
    inside = b.op("<", Arange("BM"), scalar("T_q"))
    b_s = b.let("b_s", Reduce("sum", b.op("where", inside, b_p, 0.0), "BM"))
    b.add(tile.Store(out, index, b_p, limits))
    b.add(tile.Store(total, index[1:], b_s, limits[1:]))
    sizes = (tile.Scalar("T_q", "i32"), tile.Scalar("T_k", "i32"))
    params = (x, out, total, *sizes, tile.Tunable("BM"), tile.Tunable("BN"))
    return Kernel("rows", "Softmax.", params, (("i", tile.Number(1, "i32")),), tuple(b.body))


def test_a_softmax_is_one_loop_over_rows_and_one_loop_over_columns_a_reduction() -> None:
    text = lines(softmax_rows())
    assert text.count("for r in range(BM):") == 1
    assert text.count("for c in range(BN):") == 3
    kernel = softmax_rows()
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    tensors = {"x": x, "out": np.full_like(x, np.nan), "total": np.full(7, np.nan, np.float32)}
    numbers = {"T_q": 5, "T_k": 7, "BM": 8, "BN": 8}
    launch(load(print_module([kernel], "f32", jit=False), "rows"), kernel, tensors, numbers)
    want = torch.from_numpy(x).double().softmax(1).numpy()
    np.testing.assert_allclose(tensors["out"], want, rtol=1e-6)
    np.testing.assert_allclose(tensors["total"], want.sum(0), rtol=1e-6)


def test_values_of_one_iteration_are_scalars_and_dead_tiles_are_used_again() -> None:
    text = lines(tile_kernels.forward(gate=True))
    assert "b_p = b_s_dot" in text
    assert "b_z = b_s_dot" in text
    assert sum("np.empty((BM, BN), f32)" in line for line in text) == 1
    assert not any(line.startswith(("b_s = np.empty", "b_f = np.empty")) for line in text)


def one_tile(b: Block, x: Tensor, out: Tensor) -> Kernel:
    """A kernel of one program from x to out."""
    sizes = (tile.Scalar("T_q", "i32"), tile.Scalar("T_k", "i32"))
    params = (x, out, *sizes, tile.Tunable("BM"), tile.Tunable("BN"))
    return Kernel("one", "One tile.", params, (("i_m", tile.Number(1, "i32")),), tuple(b.body))


def test_what_a_whole_loop_makes_is_used_only_after_it() -> None:
    """A sum over the rows, and then every row divided by it."""
    b = Block(("BM", "BN"))
    x, out = (Tensor(name, ("time_q",), "f32", mode) for name, mode in MODES)
    b_x = b.let("b_x", Load(x, (Arange("BM"),), (scalar("T_q"),)))
    total = b.let("total", Reduce("sum", b.op("*", b_x, 2.0), "BM"))
    b.add(tile.Store(out, (Arange("BM"),), b.op("/", b_x, total), (scalar("T_q"),)))
    kernel, given = one_tile(b, x, out), np.array([1.0, 2.0, 5.0], np.float32)
    tensors = {"x": given, "out": np.zeros(3, np.float32)}
    numbers = {"T_q": 3, "T_k": 0, "BM": 4, "BN": 1}
    launch(load(print_module([kernel], "f32", jit=False), "one"), kernel, tensors, numbers)
    np.testing.assert_array_equal(tensors["out"], given / 16)


def test_a_vector_of_the_columns_lives_as_long_as_the_loop_over_rows() -> None:
    """sum_r x[r, c] a[c]: the sums must not lie where a is still read."""
    b = Block(("BM", "BN"))
    x = Tensor("x", ("time_q", "time_k"), "f32", "in")
    out = Tensor("out", ("time_k",), "f32", "out")
    limits = (scalar("T_q"), scalar("T_k"))
    b_x = b.let("b_x", Load(x, (Arange("BM"), Arange("BN")), limits))
    first = (tile.Number(0, "i32"), Arange("BN"))
    b_a = b.let("b_a", Load(x, first, (None, scalar("T_k"))))
    b_s = b.let("b_s", Reduce("sum", b.op("*", b_x, b_a), "BM"))
    b.add(tile.Store(out, (Arange("BN"),), b_s, limits[1:]))
    kernel = one_tile(b, x, out)
    given = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    tensors = {"x": given, "out": np.zeros(3, np.float32)}
    numbers = {"T_q": 2, "T_k": 3, "BM": 4, "BN": 4}
    launch(load(print_module([kernel], "f32", jit=False), "one"), kernel, tensors, numbers)
    np.testing.assert_array_equal(tensors["out"], given.sum(0) * given[0])


def test_a_carried_value_is_read_before_it_is_set() -> None:
    """m_new and the rescaling need the old maximum; the new one is set only then."""
    text = lines(tile_kernels.forward(gate=True))
    rescale = next(n for n, line in enumerate(text) if "exp2(b_m[r]" in line)
    changed = next(n for n, line in enumerate(text) if line.startswith("b_m[r] ="))
    assert rescale < changed


def test_a_second_loop_may_use_the_same_names() -> None:
    """The same name for a scalar of the iteration, then for a tile, then for a vector."""
    b = Block(("BM", "BN"))
    x = Tensor("x", ("time_q", "time_k"), "f32", "in")
    out = Tensor("out", ("time_q", "time_k"), "f32", "out")
    index, limits = (Arange("BM"), Arange("BN")), (scalar("T_q"), scalar("T_k"))
    b_x = b.let("b_x", Load(x, index, limits))
    b_a = b.let("b_a", Full(0.0, Type("f32", ("BM", "BN"))))
    with b.loop("i", 0, 2, 1):
        b.set(b_a, b.op("+", b_a, b.let("b_y", b.op("*", b_x, 2.0))))
    with b.loop("j", 0, 2, 1):
        b_y = b.let("b_y", b.op("+", b_x, 1.0))
        with b.loop("k", 0, 3, 1):
            b.set(b_a, b.op("+", b_a, b_y))
    with b.loop("j", 0, 2, 1):
        b_y = b.let("b_y", Reduce("sum", b_x, "BN"))
        with b.loop("k", 0, 2, 1):
            b.set(b_a, b.op("+", b_a, b_y))
    b.add(tile.Store(out, index, b_a, limits))
    sizes = (tile.Scalar("T_q", "i32"), tile.Scalar("T_k", "i32"))
    params = (x, out, *sizes, tile.Tunable("BM"), tile.Tunable("BN"))
    kernel = Kernel("twice", "", params, (("i_m", tile.Number(1, "i32")),), tuple(b.body))
    tensors = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "out": np.zeros((2, 3), "f")}
    numbers = {"T_q": 2, "T_k": 3, "BM": 2, "BN": 4}
    launch(load(print_module([kernel], "f32", jit=False), "twice"), kernel, tensors, numbers)
    given = tensors["x"]
    want = 4 * given + 6 * (given + 1) + 4 * given.sum(1, keepdims=True)
    np.testing.assert_array_equal(tensors["out"], want)


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


def test_a_value_may_be_called_like_a_parameter_or_like_another_values_element() -> None:
    """b_k is an input (of a variant whose input is called b) and a tile; b_x_r is a vector."""
    b = Block(("BM", "BN"))
    given = Tensor("b_k", ("time_q",), "f32", "in")
    out = Tensor("out", ("time_q",), "f32", "out")
    index, limits = (Arange("BM"),), (scalar("T_q"),)
    b_k = b.let("b_k", Load(given, index, limits))
    b_x_r = b.let("b_x_r", b.op("+", b_k, 1.0))
    square = b.let("b_x", b.op("*", b_k, b_k))
    b_y = b.let("b_y", b.op("*", square, b_x_r))
    with b.loop("i", 0, 2, 1):
        b.set(b_y, b.op("+", b_y, b.op("+", square, b_x_r)))
    b.add(tile.Store(out, index, b_y, limits))
    params = (given, out, tile.Scalar("T_q", "i32"), tile.Tunable("BM"))
    kernel = Kernel("names", "", params, (("i_m", tile.Number(1, "i32")),), tuple(b.body))
    x = np.array([2.0, 3.0, -1.0], np.float32)
    tensors, numbers = {"b_k": x, "out": np.zeros(3, np.float32)}, {"T_q": 3, "BM": 4}
    launch(load(print_module([kernel], "f32", jit=False), "names"), kernel, tensors, numbers)
    np.testing.assert_array_equal(tensors["out"], x * x * (x + 1) + 2 * (x * x + x + 1))

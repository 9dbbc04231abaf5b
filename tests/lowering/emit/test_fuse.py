"""Steps fuse into loops over rows, values find a home, and the kernel still means its program."""

import math
from typing import Literal

import numpy as np
import tile_kernels
import torch
from printed_numba import launch, load
from tile_kernels import scalar

from gnomon.lowering import tile
from gnomon.lowering.build import Block
from gnomon.lowering.emit.numba import print_kernel, print_module
from gnomon.lowering.tile import Arange, Full, Kernel, Load, Reduce, Tensor, Type

MODES: tuple[tuple[str, Literal["in", "out"]], ...] = (("x", "in"), ("out", "out"))


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

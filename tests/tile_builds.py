"""Tile programs made by hand for the tests of passes over them."""

from collections.abc import Callable

from gnomon.lowering.build import Block
from gnomon.lowering.tile import Arange, Kernel, Load, Ref, Scalar, Store, Tensor, Tunable, Type

X = Tensor("x", ("time",), "f32", "in")
Y = Tensor("y", ("time",), "f32", "out")
TABLE = Tensor("table", ("time", "entry"), "f32", "inout")
N, BM = Ref("N", Type("i32")), Ref("BM", Type("i32"))
I_M = Ref("i_m", Type("i32"))


def kernel(build: Callable[[Block], None]) -> Kernel:
    """A kernel over blocks of a vector, with the body that `build` writes."""
    block = Block(("BM", "BN"))
    build(block)
    params = (X, Y, TABLE, Scalar("N", "i32"), Tunable("BM"), Tunable("BN"))
    grid = (("i_m", Ref("NM", Type("i32"))),)
    return Kernel("made", "a test", params, grid, tuple(block.body))


def offsets(b: Block) -> Ref:
    """The elements of this program."""
    return b.let("o_m", b.op("+", b.op("*", I_M, BM), Arange("BM")))


def load(o_m: Ref) -> Load:
    """x at the elements, 0 past the end."""
    return Load(X, (o_m,), (N,))


def store(o_m: Ref, value: Ref) -> Store:
    """y at the elements."""
    return Store(Y, (o_m,), value, (N,))

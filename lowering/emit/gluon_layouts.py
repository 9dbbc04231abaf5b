"""Layouts of a kernel in Gluon: which thread holds which element, by name.

    mma_mn    the result of a warpgroup's product [BM, BN], and everything pointwise of that shape
    copy_nd   how threads read a tile [BN, BD0] from memory, 16 bytes each
    smem_nd   how that tile lies in shared memory, for the matrix unit
    left_mv   the first operand of a product [BM, BV], in registers

A vector is a slice of the score tile's layout, along its rows or its columns.
"""

from dataclasses import dataclass, field

from gnomon.lowering import tile
from gnomon.lowering.emit.text import Code, atom, call


def letter(extent: str) -> str:
    """The letter of an extent: BM m, BN n, BD0 d, BV v."""
    return extent.removeprefix("B").lower().rstrip("0")


@dataclass(slots=True)
class Layouts:
    """The layouts that the printed kernel names, each with its definition, and its offsets."""

    score: tuple[str, str]
    io: str
    defined: dict[str, Code] = field(default_factory=dict)
    offsets: dict[str, Code] = field(default_factory=dict)

    def mma(self, shape: tuple[str, ...]) -> str:
        """The layout of a product: a warp has 16 rows and every column."""
        rows, columns = shape
        of = (atom("[3, 0]"), atom("[num_warps, 1]"), atom(f"[16, {columns}, 16]"))
        return self._define("mma", (rows, columns), call("gl.NVMMADistributedLayout", *of))

    def copy(self, shape: tuple[str, ...]) -> str:
        """The layout in which a tile is read from memory."""
        of = (atom("[1, 8]"), atom("[4, 8]"), atom("[num_warps, 1]"), atom("[1, 0]"))
        return self._define("copy", shape, call("gl.BlockedLayout", *of))

    def smem(self, shape: tuple[str, ...]) -> str:
        """The layout of a tile in shared memory."""
        of = (atom(f"[{', '.join(shape)}]"), atom(self.io))
        return self._define("smem", shape, call("gl.NVMMASharedLayout.get_default_for", *of))

    def left(self, shape: tuple[str, ...]) -> str:
        """The layout of a first operand in registers: two 16-bit numbers together."""
        of = (atom("0"), atom(self.mma(shape)), atom("2"))
        return self._define("left", shape, call("gl.DotOperandLayout", *of))

    def slice(self, matrix: str, axis: int) -> Code:
        """The layout of a vector along an axis of a matrix."""
        return call("gl.SliceLayout", atom(str(1 - axis)), atom(matrix))

    def arange(self, extent: str, matrix: str, axis: int) -> Code:
        """The name of 0, 1, ... along an axis of a matrix."""
        name = f"{letter(extent)}_{matrix}"
        self.offsets[name] = call("gl.arange", atom("0"), atom(extent), self.slice(matrix, axis))
        return atom(name)

    def home(self, extent: str) -> tuple[str, int]:
        """The matrix and the axis of the vectors of an extent."""
        if extent not in self.score:
            raise TypeError(f"vectors of {extent} have no layout")
        return self.mma(self.score), self.score.index(extent)

    def _define(self, kind: str, shape: tuple[str, ...], code: Code) -> str:
        name = f"{kind}_{''.join(letter(extent) for extent in shape)}"
        self.defined[name] = code
        return name


def io_type(kernel: tile.Kernel) -> str:
    """The element type of the call, as the kernel can read it."""
    tensors = [p.name for p in kernel.params if isinstance(p, tile.Tensor) and p.dtype == "io"]
    return f"{'v' if 'v' in tensors else tensors[0]}.dtype.element_ty"

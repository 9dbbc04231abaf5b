"""The sizes of a kernel in TileLang: what its builder takes, and the shapes of its tensors."""

from gnomon.lowering import tile
from gnomon.lowering.emit import text

_BLOCKS = {"NM": ("T_q", "BM"), "NN": ("T_k", "BN")}


class Sizes:
    """Arguments of the builder, and what follows from them.

    arguments  what the builder takes
    numbers    scalars of each call: fp32 numbers such as the scale
    counts     integers of each call: in a packed call the blocks of its longest sequence
    limits     the names of the sizes that end the axes of tensors, by axis
    extents    the extents of tiles
    """

    def __init__(self, kernel: tile.Kernel) -> None:
        self.kernel = kernel
        scalars = [p for p in kernel.params if isinstance(p, tile.Scalar)]
        tensors = [p for p in kernel.params if isinstance(p, tile.Tensor)]
        given = [p.name for p in scalars if p.dtype == "i32"]
        self.packed = any("offset" in t.axes for t in tensors)
        self.numbers = [p.name for p in scalars if p.dtype != "i32"]
        self.counts = [name for name in given if name in _BLOCKS] if self.packed else []
        self.extents = [p.name for p in kernel.params if isinstance(p, tile.Tunable)]
        lengths = {"time_q": "T_q", "time_k": "T_k"}
        self.axes = {"batch": "B", "sequence": "B", "head": "H", "kv_head": "KV", "one": "1"}
        self.limits: dict[str, str] = {}
        if self.packed:
            lengths = {"time_q": "total_q", "time_k": "total_k"}
            self.axes |= {"batch": "1", "offset": "B + 1"}
            given = [*lengths.values(), *given]
        else:
            self.limits |= lengths
        self.axes |= {**lengths, "block": "NM"}
        widths = {axis for t in tensors for axis in t.axes} - set(self.axes)
        self.limits |= {axis: axis for axis in widths}
        self.given = [name for name in given if name not in _BLOCKS]
        self.arguments = ["B", *self.given, *self.extents]
        self.blocks = [name for name in scalars_of(kernel) if name in _BLOCKS]

    def signature(self, options: tuple[str, ...]) -> list[str]:
        """The first lines of the builder."""
        names = [*self.arguments, "*", *options]
        line = f"def {self.kernel.name}({', '.join(names)}):"
        if len(line) <= text.WIDTH:
            return [line]
        inner = f"{text.INDENT}{', '.join(names)}"
        if len(inner) <= text.WIDTH:
            return [f"def {self.kernel.name}(", inner, "):"]
        return [f"def {self.kernel.name}(", *(f"{text.INDENT}{n}," for n in names), "):"]

    def derived(self, depth: int) -> list[str]:
        """What the builder derives from its arguments."""
        indent, lines = text.INDENT * depth, []
        if any("kv_head" in p.axes for p in self.kernel.params if isinstance(p, tile.Tensor)):
            lines.append(f"{indent}KV = H // G")
        if not self.packed:
            for name in self.blocks:
                length, extent = _BLOCKS[name]
                lines.append(f"{indent}{name} = T.ceildiv({length}, {extent})")
        return lines

    def shape(self, tensor: tile.Tensor) -> str:
        """The sizes of a tensor's axes."""
        sizes = [self._size(axis) for axis in tensor.axes]
        return ", ".join(sizes) if len(sizes) > 1 else f"{sizes[0]},"

    def _size(self, axis: str) -> str:
        return " * ".join(self.axes.get(part, part) for part in axis.split("*"))


def scalars_of(kernel: tile.Kernel) -> list[str]:
    """The names of a kernel's scalar parameters."""
    return [p.name for p in kernel.params if isinstance(p, tile.Scalar)]

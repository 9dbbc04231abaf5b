"""Launch functions of the stages of a transport: allocate what a kernel writes, and run it.

    launch_<kernel>(tree, <tensors it reads>[, <tensors it writes a part of>])  ->  what it writes

`tree` (transport_kernels.py) has the sizes. Where the GPU copies tiles by hardware and every tensor
suits it, the kernel with descriptors runs, else the one with pointers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gnomon.lowering import tile
from gnomon.lowering.emit import triton, triton_descriptors
from gnomon.lowering.emit.text import (
    INDENT,
    Code,
    atom,
    call,
    docstring,
    infix,
    keyword,
    statement,
)
from gnomon.lowering.emit.triton_names import Argument

_SIZES = {
    "batch": "tree.B",
    "time": "tree.T",
    "head": "tree.H",
    "kv_head": "tree.KV",
    "D": "tree.D",
    "padded": "tree.padded",
    "version": "tree.versions",
    "node": "tree.nodes",
    "leaf": "tree.leaf",
    "token": "tree.block",
    "pair": "tree.pairs * tree.block",
    "pair_tile": "tree.pairs",
    "block": "tree.padded // tree.block",
}
_NUMBERS = {
    **{name: f"tree.{name}" for name in ("T", "H", "G", "N", "L", "R", "D", "B")},
    "BT": "tree.block",
    "LEAF": "tree.leaf",
    "BD": "padded_width(tree.D)",
    "TOP_NODE": "tree.first_node(tree.L - 1)",
}
_DTYPES = {"f16": "torch.float16", "f32": "torch.float32"}
_OF_TRANSITIONS = ("dw", "du")
LEVEL = ("NODES", "PARENTS", "FIRST", "SPAN")
"""Numbers of one level, which a launch is given."""


@dataclass(frozen=True, slots=True)
class StageLaunch:
    """One kernel and how it is launched.

    tiles   BM, BR, BK, num_warps, num_stages and maxnreg
    given   outputs that the caller allocates: a level of a tensor with all of them
    sizes   where the size of an axis differs from that of the whole tree
    """

    kernel: tile.Kernel
    tiles: Mapping[str, int]
    given: tuple[str, ...] = ()
    sizes: Mapping[str, str] | None = None

    @property
    def described(self) -> tile.Kernel:
        """The form with descriptors."""
        return replace(self.kernel, name=f"{self.kernel.name}_tma")

    @property
    def tensors(self) -> list[tile.Tensor]:
        """The tensors of the kernel, in its order."""
        return [p for p in self.kernel.params if isinstance(p, tile.Tensor)]

    @property
    def inputs(self) -> list[str]:
        """What a launch is given, besides the tree."""
        read = [t.name for t in self.tensors if t.mode == "in"]
        levels = [p.name for p in self.kernel.params if p.name in LEVEL]
        return [*read, *self.given, *(name.lower() for name in levels)]

    @property
    def outputs(self) -> list[tile.Tensor]:
        """What a launch returns."""
        return [t for t in self.tensors if t.mode != "in" and t.name not in self.given]

    def lines(self) -> list[str]:
        """The function."""
        names = [atom(name) for name in ("tree", *self.inputs)]
        lines = statement(f"def launch_{self.kernel.name}", call("", *names), 0, ":")
        lines += docstring(self.kernel.doc, 1)
        like = next(t.name for t in self.tensors if t.mode == "in")
        for tensor in self.outputs:
            lines += self._allocate(tensor, like)
        lines += self._grid()
        by_hardware = triton_descriptors.described_tensors(self.described)
        lines += statement("if ", call("has_descriptors", *map(atom, by_hardware)), 1, ":")
        lines += self._launch(self.described, like, 2)
        lines += [f"{INDENT}else:", *self._launch(self.kernel, like, 2)]
        if self.outputs:
            lines.append(f"{INDENT}return {', '.join(t.name for t in self.outputs)}")
        return lines

    def _allocate(self, tensor: tile.Tensor, like: str) -> list[str]:
        """Versions are full of zeros where the leaves are no power of two: rows of no rectangle."""
        sizes = {**_SIZES, **(self.sizes or {})}
        shape = [atom(sizes[axis]) for axis in tensor.axes]
        io = "tree.transition" if tensor.name in _OF_TRANSITIONS else "tree.dtype"
        dtype = _DTYPES.get(tensor.dtype, io)
        options = [keyword("dtype", atom(dtype)), keyword("device", atom(f"{like}.device"))]
        made = "tree.empty_versions" if "version" in tensor.axes else "torch.empty"
        return statement(f"{tensor.name} = ", call(made, *shape, *options), 1)

    def _grid(self) -> list[str]:
        """The number of programs."""
        total: Code | None = None
        for _, extent in self.kernel.grid:
            size = self._extent(extent)
            total = size if total is None else infix("*", total, size)
        assert total is not None
        return statement("grid = ", total, 1)

    def _extent(self, extent: tile.Expr) -> Code:
        match extent:
            case tile.Op("cdiv", (a, b), _, _):
                return call("triton.cdiv", self._extent(a), self._extent(b))
            case tile.Op("//", (tile.Ref("H"), tile.Ref("G")), _, _):
                return atom("tree.KV")
            case tile.Op(fn, (a, b), _, _):
                return infix(fn, self._extent(a), self._extent(b))
            case tile.Ref(name, _):
                return atom(self._number(name))
        raise TypeError(f"no extent {extent!r}")

    def _number(self, name: str) -> str:
        if name in LEVEL:
            return name.lower()
        return str(self.tiles[name]) if name in self.tiles else _NUMBERS[name]

    def _launch(self, kernel: tile.Kernel, like: str, depth: int) -> list[str]:
        printed = triton.printed(kernel, descriptors=kernel.name.endswith("_tma"))
        args = [self._argument(a) for a in printed.arguments]
        options = [o for o in ("num_warps", "num_stages", "maxnreg") if o in self.tiles]
        args += [keyword(o, atom(str(self.tiles[o]))) for o in options]
        lines = [f"{INDENT * depth}with device_of({like}):"]
        return lines + statement("", call(f"{kernel.name}[(grid,)]", *args), depth + 1)

    def _argument(self, a: Argument) -> Code:
        match a.kind:
            case "pointer":
                return atom(a.name)
            case "descriptor":
                extents = (atom(self._number(x)) for x in a.block)
                return call("described", atom(a.name), *extents)
            case "stride":
                return call(f"{a.tensor}.stride", atom(str(a.axis)))
        return atom(self._number(a.name))


def printed_stages(launches: Iterable[StageLaunch]) -> list[str]:
    """The kernels, in both forms, and the functions that launch them."""
    parts = []
    for launch in launches:
        parts.append(triton.printed(launch.kernel).source.strip("\n"))
        parts.append(triton.printed(launch.described, descriptors=True).source.strip("\n"))
        parts.append("\n".join(launch.lines()))
    return parts

"""Launch functions: torch tensors in, one kernel, torch tensors out.

    launch_<kernel>(call, <hosts>, <tensors in>)  ->  outputs, allocated by the names of their axes

One function serves a kernel and its form for packed sequences, which differ in their parameters.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gnomon.dsl.errors import CompilerBug
from gnomon.lowering import tile
from gnomon.lowering.emit import triton as triton_printer
from gnomon.lowering.emit import triton_descriptors
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
from gnomon.lowering.made import Powers, Reach, SumByTile
from gnomon.lowering.passes.tabulate_powers import tabulate_powers

Target = Literal["numba", "triton"]
OFFSETS = ("cu_seqlens_q", "cu_seqlens_k")
_CALL = {
    "batch": "call.B",
    "sequence": "call.sequences",
    "time_q": "call.T_q",
    "time_k": "call.T_k",
    "head": "call.H",
    "kv_head": "call.KV",
    "one": "1",
}
_NUMBERS = {
    "T_q": "call.T_q",
    "T_k": "call.T_k",
    "shift": "call.T_k - call.T_q",
    "H": "call.H",
    "G": "call.H // call.KV",
    "B": "call.sequences",
    "L": "level_count(call)",
    "R": "(LEAF << level_count(call)) // 2",
    "LEAF": "LEAF",
}


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel for padded and for packed calls; where one is missing such calls are refused.

    `described` is the padded one once more, for GPUs and tensors that descriptors suit.
    """

    padded: tile.Kernel | None
    packed: tile.Kernel | None
    described: tile.Kernel | None = None

    @property
    def kernel(self) -> tile.Kernel:
        """The one that says what both read and write."""
        kernel = self.padded or self.packed
        if kernel is None:
            raise CompilerBug("a launch without a kernel", "print_module")
        return kernel

    @property
    def name(self) -> str:
        """The name of the launch function."""
        return f"launch_{self.kernel.name.removesuffix('_packed')}"

    @property
    def inputs(self) -> list[tile.Tensor]:
        """What it reads, without the offsets of packed sequences."""
        return [p for p in _tensors(self.kernel) if p.mode == "in" and p.name not in OFFSETS]

    @property
    def outputs(self) -> list[tile.Tensor]:
        """What it writes."""
        return [p for p in _tensors(self.kernel) if p.mode in ("out", "inout")]

    @property
    def reach(self) -> Reach | None:
        """How far its tiles weigh, where tiles are skipped: the launch is given the margin."""
        forms = [x for x in (self.padded, self.packed, self.described) if x is not None]
        return next((m for x in forms for m in x.made if isinstance(m, Reach)), None)

    @property
    def hosts(self) -> list[str]:
        """Python numbers that the formula reads."""
        return [
            p.name for p in self.kernel.params if isinstance(p, tile.Scalar) and p.dtype == "f32"
        ]


def packed_name(kernel: tile.Kernel) -> tile.Kernel:
    """A kernel for packed sequences beside the one for padded calls."""
    return replace(kernel, name=f"{kernel.name}_packed")


def described_form(kernel: tile.Kernel) -> tile.Kernel | None:
    """A kernel whose tiles come through descriptors, beside the one with pointers."""
    if not triton_descriptors.described_tensors(kernel):
        return None
    return tabulate_powers(replace(kernel, name=f"{kernel.name}_tma"))


def _tensors(kernel: tile.Kernel) -> list[tile.Tensor]:
    return [p for p in kernel.params if isinstance(p, tile.Tensor)]


class LaunchPrinter:
    """Prints one launch function."""

    def __init__(self, launched: Launched, target: Target, tiles: Mapping[str, int]) -> None:
        self.launched, self.target, self.tiles = launched, target, tiles
        self.sizes = self._sizes()

    def _sizes(self) -> dict[str, str]:
        """Where the size of each axis stands."""
        sizes = dict(_CALL)
        for tensor in self.launched.inputs:
            for axis, name in enumerate(tensor.axes):
                sizes.setdefault(name, f"{tensor.name}.shape[{axis - len(tensor.axes)}]")
        sizes["part"] = "level_count(call) + 1"
        sizes["block"] = self._blocks("q", "BM")
        return sizes

    def _blocks(self, side: str, extent: str) -> str:
        function = "cdiv" if self.target == "numba" else "triton.cdiv"
        return f"{function}(call.longest_{side}, {self.tiles[extent]})"

    def lines(self) -> list[str]:
        """The function."""
        outputs = [tensor.name for tensor in self.launched.outputs]
        given = ["call", *self.launched.hosts, *(t.name for t in self.launched.inputs)]
        given += ["margin"] if self.launched.reach is not None else []
        lines = statement(f"def {self.launched.name}", _arguments(given), 0, ":")
        lines += docstring(f"{self._doc()}", 1)
        for tensor in self.launched.outputs:
            lines += self._allocate(tensor)
        lines += self._launches()
        return [*lines, f"{INDENT}return {', '.join(outputs)}"]

    def _doc(self) -> str:
        outputs = self.launched.outputs
        shown = [f"{t.name} [{', '.join(_axis(name) for name in t.axes)}]" for t in outputs]
        text = ", ".join(shown)
        return f"{text}." if len(text) < 88 else ",\n".join(shown) + "."

    def _allocate(self, tensor: tile.Tensor) -> list[str]:
        """Full of zeros where the kernel adds to it, or where short packed sequences leave gaps."""
        adds = tensor.mode == "inout" or tensor.axes[0] == "sequence"
        shape = [self._size(name) for name in tensor.axes]
        # CPU kernels write fp32, and the function around them casts
        dtype = "v.dtype" if tensor.dtype == "io" and self.target == "triton" else "torch.float32"
        options = [keyword("dtype", atom(dtype)), keyword("device", atom("v.device"))]
        made = f"torch.{'zeros' if adds else 'empty'}"
        if not along_time(tensor):
            return statement(f"{tensor.name} = ", call(made, *map(atom, shape), *options), 1)
        batch, time, head = map(atom, shape)
        lines = statement(f"{tensor.name} = ", call(made, batch, head, time, *options), 1)
        return [*lines, f"{INDENT}{tensor.name} = {tensor.name}.transpose(1, 2)"]

    def _size(self, axis: str) -> str:
        return " * ".join(self.sizes[name] for name in axis.split("*"))

    # ---- the launch itself

    def _launches(self) -> list[str]:
        """One launch for each form of the kernel, under its condition."""
        padded, packed = self.launched.padded, self.launched.packed
        described = self.launched.described
        forms: list[tuple[Code | None, tile.Kernel]] = []
        if packed is not None:
            forms.append((atom("call.cu_seqlens_q is not None"), packed))
        if described is not None:
            names = triton_descriptors.described_tensors(described)
            forms.append((call("has_descriptors", *map(atom, names)), described))
        if padded is not None:
            forms.append((None, padded))
        if len(forms) == 1:
            return self._launch(forms[0][1], 1)
        lines = []
        for place, (condition, kernel) in enumerate(forms):
            if condition is None or place == len(forms) - 1:
                lines.append(f"{INDENT}else:")
            else:
                lines += statement("elif " if place else "if ", condition, 1, ":")
            lines += self._launch(kernel, 2)
        return lines

    def _launch(self, kernel: tile.Kernel, depth: int) -> list[str]:
        if self.target == "numba":
            made = [line for each in kernel.made for line in self._made(each, depth)]
            args = [self._numba(param, kernel) for param in kernel.params]
            return made + statement("", call("run", atom(kernel.name), *args), depth)
        return self._triton(kernel, depth)

    def _made(self, made: SumByTile | Powers | Reach, depth: int) -> list[str]:
        """A prefix sum tile by tile, a table of powers, or what tiles weigh for."""
        if isinstance(made, Reach):
            return self._reach(made, depth)
        if isinstance(made, Powers):
            reach = f"call.T_k + {self.tiles['BM'] + self.tiles['BN']}"
            table = call("table_of_powers", atom(str(made.exponent)), atom(reach), atom("v.device"))
            return statement(f"{made.tensor} = ", table, depth)
        given = [made.high, made.low, str(self.tiles[made.extent])]
        given += [made.base] if made.base else []
        function = "until_tile_end" if made.anchor == "last" else "since_tile_start"
        return statement(f"{made.tensor} = ", call(function, *map(atom, given)), depth)

    def _reach(self, made: Reach, depth: int) -> list[str]:
        tiles = [str(self.tiles[extent]) for extent in ("BM", "BN")]
        function = "first_keys" if made.tensor == "first_key" else "last_queries"
        found = call(function, *map(atom, ["margin", *made.sums, *tiles, "call.H"]))
        return statement(f"{made.tensor} = ", found, depth)

    def _numba(self, param: tile.Tensor | tile.Scalar | tile.Tunable, kernel: tile.Kernel) -> Code:
        if isinstance(param, tile.Tensor):
            return call("array", atom(self._tensor(param.name)))
        number = atom(self._number(param.name, kernel))
        return call("np.float32", number) if getattr(param, "dtype", "") == "f32" else number

    def _tensor(self, name: str) -> str:
        return f"call.{name}" if name in OFFSETS else name

    def _number(self, name: str, kernel: tile.Kernel) -> str:
        """A scalar or a tunable of the launch."""
        if name in self.tiles:
            return str(self.tiles[name])
        if name in ("NM", "NN"):
            return self._blocks(*(("q", "BM") if name == "NM" else ("k", "BN")))
        widths = dict(kernel.widths)
        if name in widths:
            true = self.sizes[widths[name]]
            return f"padded_width({true})" if self.target == "triton" else true
        if name in _NUMBERS:
            return _NUMBERS[name]
        return self.sizes.get(name, name)

    def _triton(self, kernel: tile.Kernel, depth: int) -> list[str]:
        by_descriptor = kernel is self.launched.described
        given = triton_printer.printed(kernel, descriptors=by_descriptor).arguments
        args = [self._data(x, kernel) for x in given if x.kind in ("pointer", "descriptor")]
        steps = [x for x in given if x.kind == "stride"]
        for tensor, group in itertools.groupby(steps, key=lambda x: x.tensor):
            args += self._strides(tensor, [x.axis for x in group], kernel)
        args += [atom(self._number(x.name, kernel)) for x in given if x.kind == "scalar"]
        sizes = [x for x in given if x.kind == "constexpr"]
        args += [keyword(x.name, atom(self._number(x.name, kernel))) for x in sizes]
        options = [k for k in ("num_warps", "num_stages") if k in self.tiles]
        args += [keyword(k, atom(str(self.tiles[k]))) for k in options]
        args += [] if kernel.fuses else [keyword("enable_fp_fusion", atom("False"))]
        grid = self._grid(kernel)
        lines = statement("grid = ", grid, depth)
        lines += [f"{INDENT * depth}if grid:"]
        lines += [line for each in kernel.made for line in self._made(each, depth + 1)]
        lines += [f"{INDENT * (depth + 1)}with device_of(v):"]
        return lines + statement("", call(f"{kernel.name}[(grid,)]", *args), depth + 2)

    def _data(self, given: Argument, kernel: tile.Kernel) -> Code:
        """A tensor, or the descriptor of its tiles."""
        tensor = atom(self._tensor(given.name))
        if given.kind == "pointer":
            return tensor
        return call("described", tensor, *(atom(self._number(x, kernel)) for x in given.block))

    def _strides(self, name: str, axes: list[int], kernel: tile.Kernel) -> list[Code]:
        """The strides of a tensor that the kernel uses."""
        tensor = self._tensor(name)
        rank = next(len(t.axes) for t in _tensors(kernel) if t.name == name)
        first = axes[0]
        if rank > 1 and axes == list(range(first, rank)):
            return [atom(f"*{tensor}.stride()" + (f"[{first}:]" if first else ""))]
        return [atom(f"{tensor}.stride({axis})") for axis in axes]

    def _grid(self, kernel: tile.Kernel) -> Code:
        """The number of programs."""
        total: Code | None = None
        for _, extent in kernel.grid:
            size = self._extent(extent, kernel)
            total = size if total is None else infix("*", total, size)
        assert total is not None
        return total

    def _extent(self, extent: tile.Expr, kernel: tile.Kernel) -> Code:
        match extent:
            case tile.Op("//", (tile.Ref("H"), tile.Ref("G")), _, _):
                return atom("call.KV")
            case tile.Ref(name):
                return atom(self._number(name, kernel))
        raise CompilerBug(f"no grid extent {extent!r}", "print_module")


def margin(reach: Reach) -> Code:
    """The decay from which on keys are skipped, [batch, head]."""
    if reach.bound is not None:
        given = [str(reach.bound), "call.T_k", str(reach.log_eps), "v.device"]
        return call("margin_of_bound", *map(atom, given))
    given = [*reach.dot, reach.scale, "call.T_k", str(reach.log_eps)]
    return call("margin_of_norms", *map(atom, given))


def along_time(tensor: tile.Tensor) -> bool:
    """Whether it has one number for each token and head: a tile of them is contiguous then."""
    return len(tensor.axes) == 3 and tensor.axes[1] in ("time_q", "time_k")


def _axis(name: str) -> str:
    words = {"DV": "d_v", "one": "1"}
    return words.get(name, name.removeprefix("N_") if name.startswith("N_") else name)


def _arguments(names: list[str]) -> Code:
    return call("", *map(atom, names))

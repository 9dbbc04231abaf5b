"""What the Triton kernels of a variant need of a GPU, compiled for it without one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gnomon.dsl.nodes import Width
from gnomon.lowering.emit.launch import OFFSETS, described_form
from gnomon.lowering.emit.triton import print_module, printed
from gnomon.lowering.pipelines import Kernels
from gnomon.lowering.schedules.widths import Widths
from gnomon.lowering.tile import Kernel
from gnomon.runtime import gpus
from gnomon.runtime.offline import IO, TARGETS, Report, Target, compile_kernel, specialise
from gnomon.runtime.stages import KERNELS

OTHER_AXIS = 32
"""The size of an axis that neither d nor d_v decides (a hidden layer)."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel: its tiles, what the compiled code needs, and the program in the GPU's form."""

    kernel: str
    tiles: Mapping[str, int]
    report: Report
    program: Kernel

    @property
    def by_descriptor(self) -> bool:
        """Whether tiles are copied by hardware."""
        return self.kernel.endswith("_tma")


def gpu(name: str) -> Target:
    """The target of a GPU's name or of an architecture. Raises InputError with the known ones."""
    return TARGETS[gpus.gpu(name).target]


def reports(
    attentions: Sequence[Kernels],
    target: Target,
    io: IO,
    width: int,
    value_width: int,
    *,
    roles: Sequence[str] = KERNELS,
) -> Iterator[KernelReport]:
    """A report on each kernel of these roles for vectors of `width` channels, at default tiles.

    Where the GPU copies tiles by hardware, of the kernel that lets it. Raises WorkerError where
    Triton cannot compile one.
    """
    from gnomon.runtime.configs import default_config, is_described  # it asks here for widths

    widths, short = (width, value_width), {"fp32": "f32", "fp16": "f16"}.get(io, io)
    for each in attentions:
        config = default_config((each,), widths, short, shared=target.shared).config
        constants = {**constants_of(each, width, value_width), "LEAF": config.leaf}
        for role in roles:
            kernel = getattr(each, role)
            if kernel is None:
                continue
            packed = any(p.name in OFFSETS for p in kernel.params)
            if target.has_descriptors and io != "fp32" and not packed:
                described = described_form(kernel) if is_described(each, kernel) else None
                kernel = described or kernel
            tiles = getattr(config, role).numbers("triton")
            report = _report(kernel, target, io, {**constants, **tiles})
            yield KernelReport(kernel.name, tiles, report, kernel)


def _report(kernel: Kernel, target: Target, io: IO, constants: Mapping[str, int]) -> Report:
    by_descriptor = kernel.name.endswith("_tma")
    how = specialise(printed(kernel, descriptors=by_descriptor).arguments, io, constants)
    return compile_kernel(
        print_module([kernel], kernel.doc, descriptors=by_descriptor),
        kernel.name,
        how.signature,
        how.constexprs,
        target.name,
        num_warps=constants["num_warps"],
        num_stages=constants["num_stages"],
        divisible=how.divisible,
        fuses=kernel.fuses,
    )


def constants_of(kernels: Kernels, width: int, value_width: int) -> dict[str, int]:
    """True and padded widths, by name (D0, DV, BD0, BV), of vectors of `width` channels."""
    true = widths_of(kernels, width, value_width)
    padded = {name: _power_of_two(true[of]) for name, of in kernels.fwd.widths}
    return {**true, **padded}


def widths_of(kernels: Kernels, width: int, value_width: int) -> dict[str, int]:
    """True widths by name (D0, DV, E0)."""
    widths = Widths.of(kernels.attention)
    true = {"DV": value_width}
    true |= {f"D{n}": size_of(w, width, value_width) for n, w in enumerate(widths.dots)}
    true |= {f"E{n}": size_of(w, width, value_width) for n, w in enumerate(widths.vectors)}
    return true


def size_of(axis: Width, width: int, value_width: int) -> int:
    """A symbolic number of channels for vectors of `width` channels."""
    sizes = {"d": width, "d_v": value_width, "Block": max(width // 4, 1)}
    for symbol, _ in axis.parts:
        sizes.setdefault(symbol, OTHER_AXIS)
    return axis.size(sizes)


def _power_of_two(size: int) -> int:
    """The least power of two that a matrix product takes: 16 or more."""
    return max(16, 1 << (size - 1).bit_length())

"""Compiles printed Triton kernels for a GPU that is not there, and says what they would need of it.

Triton compiles for any target without a driver, and accepts what can never be loaded: the limits of
a target are ours to know.
"""

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gnomon.lowering.emit.triton_names import Argument
from gnomon.runtime.worker import Worker

_JOB = Path(__file__).with_name("offline_job.py")
ENVIRONMENT = {"TRITON_INTERPRET": None}
_worker = Worker(ENVIRONMENT)
atexit.register(_worker.close)

IO = Literal["bf16", "fp16", "fp32"]


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU: how Triton names it, and what one program may use.

    `shared` is the shared memory of a program in bytes, `registers` those of a thread;
    `has_descriptors`: it copies tiles by hardware, and that is worth it (compile.copies_tiles).
    """

    name: str
    triton: tuple[str, int | str, int]
    shared: int
    registers: int
    has_descriptors: bool


def _cuda(capability: int, kilobytes: int, *, has_descriptors: bool = False) -> Target:
    name = f"sm_{capability}"
    return Target(name, ("cuda", capability, 32), kilobytes * 1024, 255, has_descriptors)


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": maximum amount of
# shared memory per thread block (by request), maximum number of 32-bit registers per thread.
# AMD CDNA3 Instruction Set Architecture: 64 KB of LDS for a workgroup, 512 vector registers.
TARGETS = {
    target.name: target
    for target in (
        _cuda(80, 163),
        _cuda(86, 99),
        _cuda(89, 99),
        _cuda(90, 227, has_descriptors=True),
        _cuda(100, 227, has_descriptors=True),
        _cuda(120, 99),
        Target("gfx942", ("hip", "gfx942", 64), 64 * 1024, 512, False),
    )
}


@dataclass(frozen=True, slots=True)
class Report:
    """What a compiled kernel needs.

    shared     bytes of shared memory of a program
    registers  of a thread
    spills     bytes that a thread writes to memory for want of registers
    kinds      the matrix and copy instructions in it: mma, wgmma, tcgen05, tma, mfma, wmma
    warnings   numbers of the assembler's warnings (C75xx: matrix products that wait for each other)
    seconds    what compiling took; next to nothing where Triton's cache had the kernel
    assembly   PTX, or AMD's assembly
    """

    shared: int
    registers: int
    spills: int
    kinds: tuple[str, ...]
    warnings: tuple[str, ...]
    seconds: float
    assembly: str

    def fits(self, target: Target) -> bool:
        """Whether the target can load the kernel."""
        return self.shared <= target.shared


def compile_kernel(
    source: str | Path,
    kernel: str,
    signature: Mapping[str, str],
    constexprs: Mapping[str, int | float | bool],
    target: str,
    *,
    num_warps: int = 4,
    num_stages: int = 2,
    divisible: Sequence[str] = (),
    fuses: bool = True,
    timeout: float = 120.0,
    worker: Worker | None = None,
) -> Report:
    """A kernel of a module (its text, or the path of its file), compiled for one of TARGETS.

    `signature` gives each argument its Triton type ("*bf16", "i32", "fp32", "constexpr");
    `divisible` names those that are multiples of 16; `fuses`: the compiler may make fused
    multiply-adds of its own. Compiling happens in a process of its own,
    where the interpreter is off, by default one for all callers. Raises WorkerError where it fails,
    crashes or takes too long, KeyError for an unknown target.
    """
    text = source.read_text() if isinstance(source, Path) else source
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": fuses}
    job = (text, kernel, dict(signature), dict(constexprs), list(divisible), TARGETS[target].triton)
    found = (worker or _worker).run(_JOB, "compile_source", *job, options, timeout=timeout)
    return Report(**{**found, "kinds": tuple(found["kinds"]), "warnings": tuple(found["warnings"])})


@dataclass(frozen=True, slots=True)
class Specialisation:
    """How a launch specialises a kernel: the types, the constants and the multiples of 16."""

    signature: dict[str, str]
    constexprs: dict[str, int | float | bool]
    divisible: tuple[str, ...]


_TYPES = {"f16": "fp16", "f32": "fp32", "f64": "fp64", "i32": "i32", "i64": "i64", "bool": "i1"}
"""Triton's names of the types."""


def specialise(
    arguments: Sequence[Argument], io: IO, constants: Mapping[str, int | float | bool]
) -> Specialisation:
    """What Triton does at a launch with contiguous tensors of even widths.

    The last stride of a tensor is 1, and so a constant, where the kernel is specialised on it;
    pointers are aligned to 16 bytes, and the other strides of a tensor that has channels are
    multiples of 16, and so is the shift. `constants` gives the tunables and true widths.
    """
    types = {"io": io, **_TYPES}
    signature: dict[str, str] = {}
    constexprs: dict[str, int | float | bool] = {}
    divisible = []
    for a in arguments:
        match a.kind:
            case "pointer":
                signature[a.name] = f"*{types[a.dtype]}"
                divisible.append(a.name)
            case "descriptor":
                extents = ", ".join(map(str, [1] * a.leading + [constants[x] for x in a.block]))
                signature[a.name] = f"tensordesc<{types[a.dtype]}[{extents}]>"
            case "stride" if a.is_unit and not a.varies:
                signature[a.name], constexprs[a.name] = "constexpr", 1
            case "stride":
                signature[a.name] = "i32"
                if a.is_even:
                    divisible.append(a.name)
            case "scalar":
                signature[a.name] = types[a.dtype]
                if a.name == "shift":
                    divisible.append(a.name)
            case "constexpr":
                signature[a.name], constexprs[a.name] = "constexpr", constants[a.name]
    return Specialisation(signature, constexprs, tuple(divisible))

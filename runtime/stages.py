"""A variant at every stage of the compiler as text, from the formula to the source of a target."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Literal

from gnomon.dsl.errors import InputError
from gnomon.dsl.nodes import Variant
from gnomon.dsl.show import text
from gnomon.lowering.core import Program
from gnomon.lowering.emit import gluon, numba, tilelang, triton
from gnomon.lowering.emit.plain import print_reference
from gnomon.lowering.pipelines import Lowered, lower, stages
from gnomon.lowering.show import kernel_text, program_text
from gnomon.lowering.tile import Kernel

Io = Literal["f32", "f16", "bf16"]
PRINTERS = ("triton", "numba", "tilelang", "gluon", "torch")
KERNELS = ("fwd", "bwd_rows", "bwd_columns")


def passes(variant: Variant) -> list[tuple[str, str]]:
    """Name and purpose of each stage, in order."""
    return [(name, purpose) for name, purpose, _ in stages(variant)]


def after(variant: Variant, stage: str, kernels: Sequence[str] = ()) -> str:
    """What a stage left, as stable text. Raises InputError where there is no such stage."""
    made = [(name, left) for name, _, left in stages(variant)]
    names = list(dict.fromkeys(name for name, _ in made))
    if stage not in names:
        near = get_close_matches(stage, names, 1)
        fix = f"did you mean {near[0]}?" if near else ""
        raise InputError("--after", f"one of {', '.join(names)}", repr(stage), fix)
    parts = [_text(left, kernels) for name, left in made if name == stage]
    return "\n\n\n".join(part.rstrip("\n") for part in parts)


def _text(left: object, kernels: Sequence[str]) -> str:
    match left:
        case Variant():
            return text(left)
        case Program():
            return program_text(left)
        case tuple():
            return "\n\n\n".join(kernel_text(kernel) for kernel in chosen(left, kernels))
    raise TypeError(f"no text for {type(left).__name__}")


def chosen(found: Sequence[Kernel], roles: Sequence[str]) -> list[Kernel]:
    """The kernels of these roles, all where none is named."""
    ends = tuple(f"_{role}" for role in known_roles(roles))
    return [kernel for kernel in found if kernel.name.endswith(ends)]


def known_roles(roles: Sequence[str]) -> Sequence[str]:
    """These roles, all where none is named. Raises InputError for one that no kernel has."""
    for role in roles:
        if role not in KERNELS:
            raise InputError("--kernel", f"one of {', '.join(KERNELS)}", repr(role))
    return roles or KERNELS


def kernels_of(lowered: Lowered, roles: Sequence[str]) -> list[Kernel]:
    """The kernels of these roles of every attention."""
    return chosen([kernel for each in lowered.kernels for kernel in each.all()], roles)


def source(
    variant: Variant,
    target: str,
    *,
    packed: bool = False,
    positions: bool = False,
    io: Io = "f32",
    roles: Sequence[str] = (),
) -> str:
    """The kernels printed for a target; for torch, the whole variant in plain float64 code.

    Raises UnsupportedError where the variant has no lowering or the target lacks something.
    """
    if target not in PRINTERS:
        near = get_close_matches(target, PRINTERS, 1)
        fix = f"did you mean {near[0]}?" if near else ""
        raise InputError("--to", f"one of {', '.join(PRINTERS)}", repr(target), fix)
    lowered = lower(variant, packed=packed, positions=positions)
    if target == "torch":
        return print_reference(lowered.program)
    return print_kernels(target, kernels_of(lowered, roles), header(variant), io)


def header(variant: Variant) -> str:
    """The first line of printed kernels: the name and the formula."""
    formula = " ".join(variant.formula.strip().partition("\n\n")[0].split())
    return f"{variant.name}: {formula}"


def print_kernels(target: str, kernels: Sequence[Kernel], header: str, io: Io = "f32") -> str:
    """The kernels in the words of a target; `io` is the dtype of q, k and v for Numba's.

    Raises UnsupportedError where the target lacks something.
    """
    match target:
        case "numba":
            parts = [numba.print_kernel(kernel, io).strip("\n") for kernel in kernels]
            return "\n\n\n".join(parts) + "\n"
        case "triton":
            return triton.print_module(kernels, header)
        case "tilelang":
            return tilelang.print_module(kernels, header)
        case "gluon":
            return gluon.print_module(kernels, header)
    raise ValueError(f"no printer for {target!r}")

"""The compiler, read from top to bottom: which passes run, in which order, and why.

    variant --canonical--> canonical variant --split_prologue--> program
      --ATTENTION_PASSES--> attentions in normal form
      --schedules--> tile programs --KERNEL_PASSES--> tile programs that a printer prints

`stages(variant)` runs them one by one and shows what each left (gnomon lower NAME --after PASS);
after each, `legal.py` checks that it is legal there. `dump` writes their texts into a folder.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gnomon.dsl.canonical import canonical
from gnomon.dsl.nodes import Variant
from gnomon.lowering.core import Attention, Program
from gnomon.lowering.legal import verify_kernel, verify_program
from gnomon.lowering.passes.drop_row_constants import drop_row_constants
from gnomon.lowering.passes.hoist_invariants import hoist_invariants
from gnomon.lowering.passes.remove_dead import remove_dead
from gnomon.lowering.passes.rescale_ratio import rescale_ratio
from gnomon.lowering.passes.split_prologue import split_prologue
from gnomon.lowering.schedules.backward_columns import backward_columns
from gnomon.lowering.schedules.backward_rows import backward_rows
from gnomon.lowering.schedules.forward import forward
from gnomon.lowering.show import stage_text
from gnomon.lowering.tile import Kernel


@dataclass(frozen=True, slots=True)
class Pass:
    """A named step from one valid program to another."""

    name: str
    purpose: str


@dataclass(frozen=True, slots=True)
class AttentionPass(Pass):
    """A step over one attention in normal form."""

    run: Callable[[Attention], Attention]


@dataclass(frozen=True, slots=True)
class KernelPass(Pass):
    """A step over one tile program."""

    run: Callable[[Kernel], Kernel]


ATTENTION_PASSES = (
    # before anything looks at the logit: what is constant in a row needs neither pairs nor a
    # derivative
    AttentionPass(
        "drop_row_constants",
        "terms of a softmax logit without a key leave the pairs",
        drop_row_constants,
    ),
    # after the split, since only then every exponential of the pair is one node
    AttentionPass(
        "rescale_ratio",
        "exponentials of a ratio are measured from the row's maximum",
        rescale_ratio,
    ),
)

KERNEL_PASSES = (
    # the schedules form every value where it is needed; what does not change leaves loops first,
    KernelPass(
        "hoist_invariants",
        "vectors and scalars that a loop does not change leave it",
        hoist_invariants,
    ),
    # so that what nobody reads any more (a side's unused offsets, a settled stream) is seen as such
    KernelPass("remove_dead", "values that reach no store are removed", remove_dead),
)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one attention; bwd_rows is None where it would write nothing."""

    attention: Attention
    fwd: Kernel
    bwd_rows: Kernel | None
    bwd_columns: Kernel

    def all(self) -> tuple[Kernel, ...]:
        """The kernels that exist, forward first."""
        return tuple(k for k in (self.fwd, self.bwd_rows, self.bwd_columns) if k is not None)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A variant as kernels: a program and the kernels of each of its attentions."""

    program: Program
    kernels: tuple[Kernels, ...]


class Stage(NamedTuple):
    """What a pass left."""

    name: str
    purpose: str
    left: Variant | Program | tuple[Kernel, ...]


def to_program(variant: Variant, *, positions: bool = False) -> Program:
    """The normal form of a variant. Raises UnsupportedError where no schedule exists yet."""
    *_, program = _program_steps(canonical(variant), positions=positions)
    return program


def _program_steps(variant: Variant, *, positions: bool) -> Iterator[Program]:
    program = verify_program(split_prologue(variant, positions=positions), "split_prologue")
    yield program
    for each in ATTENTION_PASSES:
        attentions = tuple(each.run(attention) for attention in program.attentions)
        program = verify_program(replace(program, attentions=attentions), each.name)
        yield program


def to_kernels(attention: Attention, *, packed: bool = False) -> Kernels:
    """The three kernels of an attention as tile programs."""
    rows = backward_rows(attention, packed=packed)
    return Kernels(
        attention,
        finish(forward(attention, packed=packed)),
        None if rows is None else finish(rows),
        finish(backward_columns(attention, packed=packed)),
    )


def finish(kernel: Kernel) -> Kernel:
    """A schedule's kernel after the passes over tile programs."""
    *_, finished = _kernel_steps(kernel)
    return finished


def _kernel_steps(kernel: Kernel) -> Iterator[Kernel]:
    yield verify_kernel(kernel, "schedule")
    for each in KERNEL_PASSES:
        kernel = verify_kernel(each.run(kernel), each.name)
        yield kernel


def lower(variant: Variant, *, packed: bool = False, positions: bool = False) -> Lowered:
    """Variant to tile programs, for every target alike."""
    program = to_program(variant, positions=positions)
    kernels = tuple(to_kernels(attention, packed=packed) for attention in program.attentions)
    return Lowered(program, kernels)


def stages(variant: Variant, *, packed: bool = False, positions: bool = False) -> Iterator[Stage]:
    """Every stage in order; from the schedules on, one after another for each attention."""
    made = canonical(variant)
    yield Stage("canonical", "two spellings of one formula become one", made)
    split = Pass("split_prologue", "what runs once a token leaves the formula of the pair")
    program_passes = (split, *ATTENTION_PASSES)
    steps = _program_steps(made, positions=positions)
    for each, program in zip(program_passes, steps, strict=True):
        yield Stage(each.name, each.purpose, program)
    schedule = Pass("schedule", "loops over tiles: forward, rows and columns of the backward pass")
    for attention in program.attentions:
        made_here = (
            forward(attention, packed=packed),
            backward_rows(attention, packed=packed),
            backward_columns(attention, packed=packed),
        )
        grown = [_kernel_steps(kernel) for kernel in made_here if kernel is not None]
        kernel_passes = (schedule, *KERNEL_PASSES)
        for step, kernels in zip(kernel_passes, zip(*grown, strict=True), strict=True):
            yield Stage(step.name, step.purpose, kernels)


def dump(variant: Variant, folder: Path, *, packed: bool = False, positions: bool = False) -> None:
    """Write 00-canonical.txt, 01-split_prologue.txt, ... : `diff` of two is what a pass did."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, stage in enumerate(stages(variant, packed=packed, positions=positions)):
        text = f"# {stage.name}: {stage.purpose}\n\n{stage_text(stage.left)}\n"
        (folder / f"{number:02}-{stage.name}.txt").write_text(text)

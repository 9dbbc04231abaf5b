"""The compiler, read from top to bottom: which passes run, in which order, and why.

    variant --canonical--> canonical variant --split_prologue--> program
      --ATTENTION_PASSES--> attentions in normal form
      --schedules--> tile programs --KERNEL_PASSES--> tile programs that a printer prints

`stages(variant)` runs them one by one and shows what each left (gnomon lower NAME --after PASS).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gnomon.dsl.canonical import canonical
from gnomon.dsl.nodes import Variant
from gnomon.lowering.core import Attention, Program
from gnomon.lowering.passes.drop_row_constants import drop_row_constants
from gnomon.lowering.passes.hoist_invariants import hoist_invariants
from gnomon.lowering.passes.remove_dead import remove_dead
from gnomon.lowering.passes.rescale_ratio import rescale_ratio
from gnomon.lowering.passes.split_prologue import split_prologue
from gnomon.lowering.schedules.backward import backward_columns, backward_rows
from gnomon.lowering.schedules.forward import forward
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


def to_program(variant: Variant, *, positions: bool = False) -> Program:
    """The normal form of a variant. Raises UnsupportedError where no schedule exists yet."""
    program = split_prologue(canonical(variant), positions=positions)
    attentions = program.attentions
    for each in ATTENTION_PASSES:
        attentions = tuple(each.run(attention) for attention in attentions)
    return replace(program, attentions=attentions)


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
    for each in KERNEL_PASSES:
        kernel = each.run(kernel)
    return kernel


def lower(variant: Variant, *, packed: bool = False, positions: bool = False) -> Lowered:
    """Variant to tile programs, for every target alike."""
    program = to_program(variant, positions=positions)
    kernels = tuple(to_kernels(attention, packed=packed) for attention in program.attentions)
    return Lowered(program, kernels)


def stages(variant: Variant) -> Iterator[tuple[str, str, object]]:
    """(name, purpose, what it left) of every stage in order."""
    made = canonical(variant)
    yield "canonical", "two spellings of one formula become one", made
    program = split_prologue(made)
    yield "split_prologue", "what runs once a token leaves the formula of the pair", program
    for each in ATTENTION_PASSES:
        program = replace(program, attentions=tuple(each.run(a) for a in program.attentions))
        yield each.name, each.purpose, program
    for attention in program.attentions:
        schedules = (forward(attention), backward_rows(attention), backward_columns(attention))
        kernels = tuple(k for k in schedules if k is not None)
        yield (
            "schedule",
            "loops over tiles: forward, rows and columns of the backward pass",
            kernels,
        )
        for step in KERNEL_PASSES:
            kernels = tuple(step.run(k) for k in kernels)
            yield step.name, step.purpose, kernels

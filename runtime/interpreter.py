"""Runs printed Triton kernels on CPU tensors, in Triton's interpreter: slow, and for tests only.

The interpreter must be switched on before triton is imported and then compiles nothing, so it has a
process of its own, which also survives what a wrong pointer does.
"""

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnomon.lowering.emit.triton_names import Argument
from gnomon.runtime.worker import Worker

_JOB = Path(__file__).with_name("interpreter_job.py")
_worker = Worker({"TRITON_INTERPRET": "1"})
atexit.register(_worker.close)


Given = Tensor | int | float | tuple[Any, ...]
"""An argument: a tensor, a number, or (tensor, *extents) for a descriptor of such tiles."""


@dataclass(frozen=True, slots=True)
class Call:
    """A launch: the kernel's name, its number of programs, all its arguments by name."""

    kernel: str
    programs: int
    arguments: Mapping[str, Given]


def run_kernels(
    source: str, calls: Sequence[Call], *, timeout: float = 120.0
) -> list[dict[str, Tensor]]:
    """The tensors of each call after it, by name; the tensors given stay as they are.

    `source` is the text of a module (print_module). All calls run one after another in one process
    that is kept for the next time. Raises ValueError for bf16, which the interpreter computes
    wrongly without a word, and WorkerError where a kernel raises, crashes or takes too long.
    """
    for call in calls:
        for name, x in call.arguments.items():
            if isinstance(x, Tensor) and x.dtype == torch.bfloat16:
                raise ValueError(
                    f"{call.kernel}: {name} is bf16; the interpreter computes it wrongly"
                )
    jobs = [(call.kernel, call.programs, dict(call.arguments)) for call in calls]
    results: list[dict[str, Tensor]] = _worker.run(_JOB, "run", source, jobs, timeout=timeout)
    return results


def launch_arguments(
    arguments: Sequence[Argument], tensors: Mapping[str, Tensor], numbers: Mapping[str, int | float]
) -> dict[str, Given]:
    """What a launch gives each argument of a printed kernel: tensors, their strides, numbers."""
    given: dict[str, Given] = {}
    for argument in arguments:
        if argument.kind == "pointer":
            given[argument.name] = tensors[argument.tensor]
        elif argument.kind == "descriptor":
            extents = (int(numbers[extent]) for extent in argument.block)
            given[argument.name] = (tensors[argument.tensor], *extents)
        elif argument.kind == "stride":
            given[argument.name] = tensors[argument.tensor].stride(argument.axis)
        else:
            given[argument.name] = numbers[argument.name]
    return given

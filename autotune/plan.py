"""What is tuned together: the kernels of one variant at one shape, each distinct kernel once.

    plan = Plan.of(Problem(fox, dim=128), device)

The three kernels of an attention read each other's tensors and none of each other's tiles, so that
the best plan is the best of each; they are compiled, timed and checked in one go.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gnomon.autotune.space import Situation
from gnomon.dsl.errors import InputError
from gnomon.dsl.nodes import Variant
from gnomon.dsl.show import digest
from gnomon.lowering.config import Tiles
from gnomon.lowering.pipelines import Kernels, lower
from gnomon.runtime.configs import ROLES, Site, default_config, is_described, key_of
from gnomon.runtime.gpus import Device, gpu
from gnomon.runtime.offline import IO, TARGETS
from gnomon.runtime.reports import constants_of
from gnomon.runtime.tuned import GROUPS, LENGTHS, Key

DTYPES: Mapping[str, str] = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}
NAMES: Mapping[str, IO] = {"bf16": "bf16", "f16": "fp16", "f32": "fp32"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A variant at a shape: T tokens, `dim` channels of queries and values, `groups` a key head.

    Raises InputError where no bucket has the length or the group size.
    """

    variant: Variant
    dim: int
    length: int = 8192
    groups: int = 1
    dtype: str = "bf16"
    packed: bool = False

    def __post_init__(self) -> None:
        for option, value, allowed in (
            ("--lengths", self.length, LENGTHS),
            ("--groups", self.groups, GROUPS),
            ("--dtype", self.dtype, DTYPES),
        ):
            if value not in allowed:
                known = ", ".join(map(str, allowed))
                raise InputError(option, f"one of {known}", repr(value))
        if not 8 <= self.dim <= 256 or self.dim % 8:
            raise InputError("--dims", "multiples of 8 up to 256", str(self.dim))

    def __str__(self) -> str:
        shared = f" groups={self.groups}" if self.groups > 1 else ""
        packed = " packed" if self.packed else ""
        return f"{self.variant.name} T={self.length} D={self.dim} {self.dtype}{shared}{packed}"


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel of a plan; `names` are the kernels of the variant that are this one."""

    key: Key
    situation: Situation
    names: tuple[str, ...]
    variant: str
    formula: str
    default: Tiles

    @property
    def role(self) -> str:
        """fwd, bwd_rows or bwd_columns."""
        return self.key.role


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks of a problem on a device."""

    problem: Problem
    device: Device
    tasks: tuple[Task, ...]

    @classmethod
    def of(cls, problem: Problem, device: Device) -> "Plan":
        """The plan of a problem. Raises UnsupportedError where the variant has no lowering."""
        found: dict[Key, Task] = {}
        for kernels in lower(problem.variant, packed=problem.packed).kernels:
            for task in _tasks(problem, device, kernels):
                same = found.get(task.key)
                names = (*(same.names if same else ()), *task.names)
                found[task.key] = Task(
                    task.key, task.situation, names, task.variant, task.formula, task.default
                )
        return cls(problem, device, tuple(found.values()))


def _tasks(problem: Problem, device: Device, kernels: Kernels) -> Iterator[Task]:
    target = TARGETS[device.target]
    io, widths = DTYPES[problem.dtype], (problem.dim, problem.dim)
    descriptors = target.has_descriptors and io != "f32" and not problem.packed
    site = Site.of(device, problem.length, problem.groups)
    default = default_config([kernels], widths, io, device=device).config
    for role in ROLES:
        kernel = getattr(kernels, role)
        if kernel is None:
            continue
        key = key_of(
            kernels, role, widths, io, site, packed=problem.packed, descriptors=descriptors
        )
        situation = Situation(
            kernel,
            kernels.attention.mask,
            role,
            io,
            constants_of(kernels, *widths),
            target,
            gpu(device.family or device.target),
            problem.dim,
            problem.length,
            problem.groups,
            descriptors and is_described(kernels, kernel),
        )
        formula = digest(problem.variant)
        yield Task(
            key, situation, (kernel.name,), problem.variant.name, formula, getattr(default, role)
        )

"""The space of a kernel: typed tunables, and rules that say why a point is illegal on a target.

    space = Space.of(situation)
    points, refusals = space.sifted()

A tunable comes from the schedule: whatever a tile program leaves open (`tile.Tunable`) and what a
launch takes. A schedule that leaves more open (a superblock, a leaf) is tuned without a change here
beyond a line of `TUNABLES`. A rule returns a reason, or None; it never refuses what would load.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from gnomon.dsl.nodes import Mask
from gnomon.lowering import tile
from gnomon.lowering.config import Tiles
from gnomon.lowering.cost import Costs, costs
from gnomon.runtime.gpus import Gpu
from gnomon.runtime.offline import Target

Point = Mapping[str, int]
Kind = Literal["tile", "launch"]


@dataclass(frozen=True, slots=True)
class Tunable:
    """A number to be chosen.

    kind   tile: an extent of the tile program; launch: an option of the target's launch
    """

    name: str
    kind: Kind
    values: tuple[int, ...]
    doc: str


TUNABLES: Mapping[str, Tunable] = {
    each.name: each
    for each in (
        Tunable("BM", "tile", (32, 64, 128), "queries of a tile"),
        Tunable("BN", "tile", (32, 64, 128), "keys of a tile"),
        Tunable("num_warps", "launch", (4, 8), "warps of a program"),
        Tunable("num_stages", "launch", (1, 2, 3, 4), "loads in flight, of a loop's turns"),
    )
}


@dataclass(frozen=True, slots=True)
class Situation:
    """What shall be tuned, and for which GPU.

    sizes   true and padded widths by name (runtime/reports.py)
    dim     channels of a query, d
    length  tokens of a sequence; with 16384 tokens in all and 2048 query channels, as benchmarks
            have them: 16384 / length sequences (at least one), 2048 / d heads
    """

    kernel: tile.Kernel
    mask: Mask
    role: str
    io: str
    sizes: Mapping[str, int]
    target: Target
    gpu: Gpu
    dim: int
    length: int = 8192
    groups: int = 1
    descriptors: bool = False
    _costs: dict[tuple[int, int], Costs] = field(default_factory=dict, compare=False, repr=False)

    def costs(self, point: Point) -> Costs:
        """The work for one pair (lowering/cost.py): it depends on the tile alone."""
        shape = point["BM"], point["BN"]
        if shape not in self._costs:
            self._costs[shape] = costs(self.kernel, tiles_of(point), self.sizes)
        return self._costs[shape]

    @property
    def is_cuda(self) -> bool:
        """Whether the target is NVIDIA's."""
        return self.target.triton[0] == "cuda"

    @property
    def capability(self) -> int:
        """90 for sm_90; 0 for a GPU of another maker."""
        return int(self.target.triton[1]) if self.is_cuda else 0

    @property
    def warp(self) -> int:
        """Threads of a warp."""
        return self.target.triton[2]

    def extent(self, name: str, point: Point) -> int:
        """The number behind a named extent of a tile."""
        return point[name] if name in point else self.sizes.get(name, 64)


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition of a target: `why_not` gives the reason against a point, or None."""

    name: str
    why_not: Callable[[Situation, Point], str | None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A point that is out, by which rule, and why."""

    point: Point
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Space:
    """The points of a kernel."""

    situation: Situation
    tunables: tuple[Tunable, ...]
    rules: tuple[Rule, ...] = field(default=())

    @classmethod
    def of(cls, situation: Situation) -> "Space":
        """By the tunables that its tile program leaves open; KeyError for an unknown one."""
        padded = {name for name, _ in situation.kernel.widths}
        open_ = [p.name for p in situation.kernel.params if isinstance(p, tile.Tunable)]
        names = [name for name in open_ if name not in padded and name not in ("NM", "NN")]
        launch = [name for name, each in TUNABLES.items() if each.kind == "launch"]
        return cls(situation, tuple(TUNABLES[name] for name in (*names, *launch)), RULES)

    def points(self) -> Iterator[dict[str, int]]:
        """Every point, in a fixed order."""
        names = [each.name for each in self.tunables]
        for values in product(*(each.values for each in self.tunables)):
            yield dict(zip(names, values, strict=True))

    def why_not(self, point: Point) -> Refusal | None:
        """The first rule against a point."""
        for rule in self.rules:
            reason = rule.why_not(self.situation, point)
            if reason is not None:
                return Refusal(point, rule.name, reason)
        return None

    def sifted(self) -> tuple[list[dict[str, int]], list[Refusal]]:
        """The legal points, and the others with their reasons."""
        legal, refused = [], []
        for point in self.points():
            refusal = self.why_not(point)
            if refusal is None:
                legal.append(point)
            else:
                refused.append(refusal)
        return legal, refused


def tiles_of(point: Point) -> Tiles:
    """A point as the lowering takes it."""
    return Tiles(**point)


# ---- rules


def _threads(s: Situation, point: Point) -> str | None:
    threads = point["num_warps"] * s.warp
    return f"{threads} threads, of at most 1024 in a program" if threads > 1024 else None


def _fragments(s: Situation, point: Point) -> str | None:
    """Every warp of a matrix product has a fragment of 16 x 16 of its own."""
    fragments = (point["BM"] // 16) * (point["BN"] // 16)
    if fragments < point["num_warps"]:
        return f"{point['num_warps']} warps share {fragments} fragments of 16 x 16"
    return None


def _exact(s: Situation, point: Point) -> str | None:
    """Exact products of fp32 go through registers."""
    if s.io == "f32" and point["BM"] * point["BN"] > 64 * 64:
        return "exact products of fp32 in tiles beyond 64 x 64 spill for minutes"
    return None


def _stages(s: Situation, point: Point) -> str | None:
    if not s.is_cuda and point["num_stages"] > 2:
        return "more than two stages: its loads go through registers, and two hide them"
    return None


def _accumulators(s: Situation, point: Point) -> str | None:
    """Sums that a loop carries stay in registers, but where tensor memory holds them (sm_100)."""
    if s.capability in range(100, 120):
        return None
    numbers = carried_numbers(s, point) // (point["num_warps"] * s.warp)
    limit = s.target.registers
    return f"{numbers} registers of sums alone, of {limit}" if numbers >= limit else None


def _shared(s: Situation, point: Point) -> str | None:
    bytes_ = least_shared(s, point)
    if bytes_ > s.target.shared:
        most = s.target.shared
        return f"{bytes_} bytes of shared memory at least, of {most} that a program may have"
    return None


RULES: tuple[Rule, ...] = (
    Rule("threads", _threads),
    Rule("fragments", _fragments),
    Rule("exact products", _exact),
    Rule("stages", _stages),
    Rule("registers", _accumulators),
    Rule("shared memory", _shared),
)


# ---- estimates from the tile program


def loops(kernel: tile.Kernel) -> list[tile.For]:
    """The loops over tiles."""
    return [
        stmt
        for stmt in tile.walk(kernel.body)
        if isinstance(stmt, tile.For) and isinstance(stmt.step, tile.Ref)
    ]


def carried_numbers(s: Situation, point: Point) -> int:
    """The fp32 numbers of matrices that a loop carries: every turn adds to them."""
    carried: dict[str, int] = {}
    for loop in loops(s.kernel):
        for stmt in tile.walk(loop.body):
            if isinstance(stmt, tile.Set) and len(stmt.ref.type.shape) == 2:
                carried[stmt.ref.name] = _size(s, point, stmt.ref.type.shape)
    return sum(carried.values())


def least_shared(s: Situation, point: Point) -> int:
    """Bytes of the tiles that wait for a matrix product: the kernel needs no less.

    Of what a loop loads Triton holds `num_stages` copies where products read shared memory by
    themselves (sm_90 and newer), one less where they come from registers. What stays for the whole
    loop is there once on NVIDIA, and in registers on AMD.
    """
    buffers = _buffers(s, point["num_stages"])
    moving = max((sum(staged(s, point, x.body)) * buffers for x in loops(s.kernel)), default=0)
    outside = tuple(stmt for stmt in s.kernel.body if not isinstance(stmt, tile.For))
    return moving + (sum(staged(s, point, outside)) if s.is_cuda else 0)


def _buffers(s: Situation, stages: int) -> int:
    return stages if s.capability in range(90, 120) else max(stages - 1, 1)


def staged(s: Situation, point: Point, body: tuple[tile.Stmt, ...]) -> list[int]:
    """The bytes of each tile of vectors that these statements load for matrix products."""
    width = 4 if s.io == "f32" else 2
    found: dict[tuple[str, str], int] = {}
    for stmt in tile.walk(body):
        for expr in tile.expressions(stmt):
            if isinstance(expr, tile.Load) and expr.tensor.dtype == "io":
                shape = tile.type_of(expr).shape
                if len(shape) == 2:
                    index = ",".join(sorted(n for part in expr.index for n in tile.names_in(part)))
                    found[expr.tensor.name, index] = width * _size(s, point, shape)
    return list(found.values())


def _size(s: Situation, point: Point, shape: tuple[str, ...]) -> int:
    total = 1
    for name in shape:
        total *= s.extent(name, point)
    return total

"""A roofline model of a kernel at a point: what limits it, and how long it would take.

For a tile of BM x BN pairs a processor spends cycles in five units, from the counted work of the
tile program (lowering/cost.py):

    matrix   products, at the rate of the tensor cores
    special  exponentials, cosines, quotients
    issue    every other operation on a score
    shared   operands of products, read from shared memory
    cache    tiles from the last cache

With W groups of four warps at work beside each other t = max + a (sum - max) / W: what one group
waits for, another does. Registers and shared memory say how many programs are resident, hence W; a
load that is started too late shows its latency; spilled registers are traffic of their own; the
last wave of programs leaves processors idle. The model ranks. Its times are no measurement.
"""

from dataclasses import dataclass
from math import ceil, sqrt

from gnomon.autotune.space import Point, Situation, carried_numbers, least_shared
from gnomon.dsl.nodes import Mask
from gnomon.lowering.cost import BYTES, Cost

TOKENS, CHANNELS = 16384, 2048
SPECIAL, LANES, SHARED, CACHE = 8.6, 147.0, 128.0, 60.0
"""Results, lanes and bytes of a processor in a cycle."""
LATENCY, SLACK = 800.0, 550.0
"""Cycles: of a load from the last cache; of a load that is late, with two stages."""
SERIAL, BESIDE = 0.31, 0.2
"""What one group cannot overlap by itself; what a second group of a program adds to the first."""
SPEED = 0.82
"""Of the clock: the card is limited by its power.

All of these but SHARED and LATENCY were fitted to some 50 launches of plain attention, ALiBi and
TAPA on an H200 (T = 8192, D = 64 and 128): with them ratios of two points of a kernel are right to
7 %. On other cards they are a guess, scaled by the rates of the card.
"""
FILE = 65536
"""Registers of a processor."""
RESERVED = 1024
"""Bytes of shared memory that each resident program costs beside its own."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a compiled kernel takes: bytes of a program; registers, spilled bytes of a thread."""

    shared: int
    registers: int
    spills: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """The modelled time of a launch, and what it comes from.

    units     unit -> cycles of one turn of the loop, in one program
    resident  programs on a processor at a time
    """

    microseconds: float
    units: dict[str, float]
    resident: int
    needs: Needs

    @property
    def limit(self) -> str:
        """The unit that takes longest."""
        return max(self.units, key=self.units.__getitem__)


def guessed_needs(s: Situation, point: Point) -> Needs:
    """What a kernel will take, before it is compiled: sums, one score tile, and addresses."""
    threads = point["num_warps"] * s.warp
    score = point["BM"] * point["BN"]
    tiles = 1 if s.role == "fwd" else 2
    wanted = (carried_numbers(s, point) + tiles * score) // threads + 60
    most = s.target.registers
    spills = 4 * max(0, wanted - most)
    return Needs(least_shared(s, point) + 1024, min(wanted, most), spills)


def estimate(s: Situation, point: Point, needs: Needs | None = None) -> Estimate:
    """The model at a point, by what the compiled kernel needs where that is known."""
    needs = needs or guessed_needs(s, point)
    found = s.costs(point)
    pairs = point["BM"] * point["BN"]
    units = _units(s, point, found.interior.times(pairs))
    edge = _units(s, point, found.edge.times(pairs))
    resident = _resident(s, point, needs)
    turn, edge_turn = (_turn(s, point, x, resident, needs) for x in (units, edge))
    stationary, moving = (point[name] for name in s.kernel.order)
    seen, edges = visible(s.mask, s.length)
    rows = ceil(s.length / stationary)
    turns = s.length * max(seen - edges * moving, 0.0) / pairs
    edge_turns = rows * edges * (stationary / moving + 1)
    programs = _programs(s, rows)
    total = programs / rows * (turns * turn + edge_turns * edge_turn)
    # programs of a launch are long and short: the last to start is a short one
    longest = seen / moving * turn * resident
    waves = programs / (s.gpu.processors * resident)
    tail = longest * (0.5 if waves >= 1 else 1.0) * (ceil(waves) - waves if waves < 8 else 0.25)
    cycles = total / s.gpu.processors + tail
    return Estimate(cycles / (SPEED * s.gpu.clock * 1e3), units, resident, needs)


def visible(mask: Mask, length: int) -> tuple[float, float]:
    """The keys that a row sees on average, and how many ends of its stretch are edges."""
    parts = [visible(m, length) for m in mask.operands if isinstance(m, Mask)]
    match mask.rule:
        case "and":
            return min(seen for seen, _ in parts), sum(edges for _, edges in parts)
        case "or":
            return min(sum(seen for seen, _ in parts), length), sum(edges for _, edges in parts)
        case "causal" | "negligible":
            return length / 2, 0.5
        case "window" | "first_keys":
            size = next((n for n in mask.operands if isinstance(n, int)), length)
            return float(min(size, length)), 1.0
        case "same_document":
            return length / 4, 1.0
    return float(length), 0.0


def _programs(s: Situation, rows: int) -> float:
    """Programs of a launch at the sizes that are timed."""
    sequences = max(TOKENS // s.length, 1)
    heads = max(CHANNELS // s.dim, 1)
    heads = heads if s.length <= TOKENS else max(heads * TOKENS // s.length, 1)
    shared_heads = heads if s.role != "bwd_columns" else max(heads // s.groups, 1)
    return float(sequences * shared_heads * rows)


def _units(s: Situation, point: Point, work: Cost) -> dict[str, float]:
    """Cycles of a turn in each unit."""
    gpu = s.gpu
    rate = gpu.matrix * 1e3 / (gpu.processors * gpu.clock)
    if s.io == "f32":
        rate = 2 * LANES  # exact products
    rows = point[s.kernel.order[0]]
    if s.capability in range(90, 120) and rows < 64:
        rate /= 2  # wgmma and tcgen05 take 64 rows: below it is mma
    # a product reads its second operand once for each 64 rows of the first
    lines = max(point[s.kernel.order[0]] // 64, 1)
    moving = point[s.kernel.order[1]]
    operands = work.flops / (2 * 64 * max(min(moving, 128), 16)) * BYTES["io"] * 64
    repeated = 1.0 if s.is_cuda else 1.5
    return {
        "matrix": work.flops / rate,
        "special": work.special / SPECIAL,
        "issue": (work.simple + work.special + 2 * work.gathers) / LANES,
        "shared": repeated * (operands + work.bytes * lines) / SHARED,
        "cache": work.bytes / CACHE,
    }


def _resident(s: Situation, point: Point, needs: Needs) -> int:
    """Programs that a processor holds at a time."""
    threads = point["num_warps"] * s.warp
    by_shared = s.gpu.shared // (needs.shared + RESERVED)
    by_registers = FILE // max(-(-needs.registers // 8) * 8 * threads, 1)
    if not s.is_cuda:
        by_registers = 4 * 512 * s.warp // max(needs.registers * threads, 1)
    return max(1, min(by_shared, by_registers, s.gpu.threads // threads))


def _turn(
    s: Situation, point: Point, units: dict[str, float], resident: int, needs: Needs
) -> float:
    """Cycles of a processor for one turn of one of its programs.

    Groups of one program wait for each other at barriers, the more so where they share rows.
    """
    own = point["num_warps"] * s.warp / 128
    share_rows = point[s.kernel.order[0]] < 64 * own
    groups = resident * (1 + (own - 1) * (0.0 if share_rows else BESIDE))
    most, whole = max(units.values()), sum(units.values())
    busy = most + SERIAL * (whole - most) / max(groups, 1.0)
    ahead = (point["num_stages"] - 1) * whole * resident
    late = SLACK / max(point["num_stages"] - 1, 1) ** 2 / sqrt(resident)
    exposed = (max(0.0, LATENCY - ahead) + late) / resident
    threads = point["num_warps"] * s.warp
    spilled = 2 * needs.spills * threads / 64.0  # stored and read, 64 bytes a cycle
    return busy + exposed + spilled

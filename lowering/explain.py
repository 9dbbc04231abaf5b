"""Every choice that the compiler makes for a variant, what else there was, and what each costs.

Costs are those of `lowering/cost.py`, for one pair of a query and a key. Where an alternative can
be lowered it is lowered and counted like the choice itself; else its note says what differs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gnomon.dsl.canonical import canonical
from gnomon.dsl.nodes import At, Input, Node, Variant, walk
from gnomon.lowering.config import Config, Tiles
from gnomon.lowering.core import Anchored, Attention, PairDot, Read, Stream, TransportDot
from gnomon.lowering.cost import WIDTH, Cost, costs
from gnomon.lowering.passes.split_prologue import split_prologue
from gnomon.lowering.pipelines import ATTENTION_PASSES, Kernels, finish, to_kernels
from gnomon.lowering.schedules.forward import forward
from gnomon.lowering.schedules.frame import Place
from gnomon.lowering.schedules.gradients import Accumulated, adjoints, collect
from gnomon.lowering.schedules.widths import Widths
from gnomon.lowering.show import formula_text, mask_text
from gnomon.lowering.tile import For, Kernel, Ref
from gnomon.lowering.tile import walk as statements

USUAL = Config(Tiles(64, 64), Tiles(64, 64), Tiles(64, 64))

LONGEST = 100
"""Characters of a formula that a reason quotes."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What could have been done instead, what it costs for a pair, and what else would differ."""

    what: str
    cost: Cost | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice: of what, what was chosen, why, its cost for a pair, and the alternatives."""

    subject: str
    chosen: str
    why: str
    cost: Cost | None = None
    alternatives: tuple[Alternative, ...] = ()


def explain(
    variant: Variant,
    config: Config = USUAL,
    *,
    sizes: Mapping[str, int] | None = None,
    positions: bool = False,
) -> list[Choice]:
    """The choices for a variant in the order in which they are made.

    `config`: the tiles that the costs are for; `sizes`: widths by name (D0, DV, E0, N_bias).
    Raises UnsupportedError where the variant has no lowering.
    """
    program = split_prologue(canonical(variant), positions=positions)
    found: list[Choice] = []
    for before in program.attentions:
        made = before
        for each in ATTENTION_PASSES:
            made = each.run(made)
        choices = _Explained(before, made, to_kernels(made), config, dict(sizes or {})).choices()
        name = f"{made.name}: " if len(program.attentions) > 1 else ""
        found += [replace(choice, subject=name + choice.subject) for choice in choices]
    return found


class _Explained:
    """The choices for one attention: before its passes, after them, and its kernels."""

    def __init__(
        self,
        before: Attention,
        made: Attention,
        kernels: Kernels,
        config: Config,
        sizes: dict[str, int],
    ) -> None:
        self.before, self.made, self.kernels = before, made, kernels
        self.config, self.sizes = config, sizes

    def choices(self) -> Iterator[Choice]:
        """Every choice, in the order of the passes."""
        yield from (self.stream(stream) for stream in self.made.streams)
        yield from self.prefix_sums()
        if self.made.normaliser == "softmax":
            yield self.row_terms()
            yield self.logarithms()
        if self.made.normaliser == "ratio":
            yield self.exponentials()
        yield self.mask()
        yield from self.gradients()
        yield from self.tiles()

    def forward(self, kernel: Kernel) -> Cost:
        """The cost of a forward kernel, whether it was chosen or not."""
        return costs(kernel, self.config.fwd, self.sizes).interior

    # -- streams

    def stream(self, stream: Stream) -> Choice:
        """Whether a stream is a tensor of the call, or made from some before the kernel."""
        subject = f"stream {stream.name}"
        value = stream.value.x if isinstance(stream.value, At) else stream.value
        if isinstance(value, Input):
            return Choice(subject, "passed through untouched", "it is a tensor of the call")
        if stream.role == "host":
            return Choice(subject, "a number of the launch", "it is known from the shapes alone")
        if stream.role in ("version", "near"):
            return self.of_transport(stream)
        if stream.role == "prefix":
            why = "a sum over what lies between is a difference of two of them"
            return Choice(subject, "summed along the sequence, before the kernel", why, Cost())
        functions = float(sum(1 for n in walk(value) if n.children() and not isinstance(n, At)))
        again = Alternative("formed for every pair", Cost(simple=functions))
        if stream.role == "dot":
            (width,) = Widths.of(self.made).axes(stream)
            tokens = functions * self.sizes.get(width, WIDTH) / self.config.fwd.BM
            again = Alternative("formed for every tile of queries", Cost(simple=tokens))
        when = "for each head" if stream.place == "constant" else "for each token"
        return Choice(
            subject,
            f"mapped once {when}, before the kernel",
            "nothing in it depends on the pair",
            Cost(),
            (again,),
        )

    def of_transport(self, stream: Stream) -> Choice:
        """How the dots through an ordered product are formed."""
        subject = f"stream {stream.name}"
        if stream.role == "near":
            why = "its queries and keys have steps between them that no edge of a leaf parts"
            return Choice(subject, "dots inside of a leaf, formed before the kernel", why, Cost())
        why = "siblings of a tree share an edge: there a dot through all steps is a plain product"
        chain = Alternative(
            "moved from block to block by the kernel",
            Cost(flops=2 * float(self.sizes.get("D0", WIDTH))),
            "a product of d by d for each block that a query passes, in the inner loop",
        )
        chosen = "moved once for each level of a tree over leaves, before the kernel"
        return Choice(subject, chosen, why, Cost(), (chain,))

    def prefix_sums(self) -> Iterator[Choice]:
        """How differences of prefix sums are formed."""
        if any(stream.role == "prefix" for stream in self.made.streams):
            yield Choice(
                "prefix sums",
                "float64, held as two fp32, read relative to the first row of the query tile",
                "a difference of two large sums must not lose the small steps between them",
                Cost(),
                (
                    Alternative(
                        "plain fp32 sums",
                        Cost(bytes=-4 / self.config.fwd.BM),
                        "the error of a near pair grows with the sum from the start on",
                    ),
                ),
            )

    # -- normalisers

    def row_terms(self) -> Choice:
        """Whether terms of the logit left the pairs."""
        cost = self.forward(self.kernels.fwd)
        if self.made.row_term is None:
            return Choice("row terms", "none", "every term of the logit reads the key", cost)
        term = formula_text(self.made.row_term)
        return Choice(
            "row terms",
            f"{term} left the pairs",
            "a softmax does not see what is constant in a row; the log-sum-exp gets it once",
            cost,
            (Alternative("kept in the logit", self.forward(finish(forward(self.before)))),),
        )

    def logarithms(self) -> Choice:
        """In which units the logit is."""
        cost = self.forward(self.kernels.fwd)
        return Choice(
            "exponential",
            "exp2, log2(e) folded into what varies least",
            "the hardware has exp2; a scale takes the factor without a further operation",
            cost,
            (Alternative("exp of the logit", cost + Cost(simple=1.0)),),
        )

    def exponentials(self) -> Choice:
        """Whether the exponentials of a ratio are measured from the row's maximum."""
        cost = self.forward(self.kernels.fwd)
        if self.made.exponent is None:
            why = "its sums have no exponential of a dot that could overflow, or no common one"
            return Choice("ratio", "sums as they are", why, cost)
        return Choice(
            "ratio",
            f"both sums divided by exp(max {formula_text(self.made.exponent)})",
            "both are homogeneous in the exponential, which could overflow",
            cost,
            (
                Alternative(
                    "sums as they are",
                    self.forward(finish(forward(self.before))),
                    "fp32 overflows beyond x = 88",
                ),
            ),
        )

    # -- loops

    def mask(self) -> Choice:
        """Which loops walk the tiles of a mask."""
        made = costs(self.kernels.fwd, self.config.fwd, self.sizes)
        loops = [s for s in statements(self.kernels.fwd.body) if isinstance(s, For)]
        count = len([loop for loop in loops if isinstance(loop.step, Ref)])
        if made.interior == made.edge:
            why = "where a pair stands says nothing about the tile around it"
            chosen = f"{mask_text(self.made.mask)}: every tile that may have pairs, with masks"
            return Choice("mask", chosen, why, made.edge)
        return Choice(
            "mask",
            f"{mask_text(self.made.mask)}: {count} loops over keys, edge tiles apart",
            "tiles that a row sees whole pay for no mask; tiles that none sees are not walked",
            made.interior,
            (Alternative("masks in every tile", made.edge),),
        )

    # -- gradients

    def gradients(self) -> Iterator[Choice]:
        """Where and how the gradient of each stream is collected."""
        found = adjoints(self.made)
        sides: tuple[tuple[Place, Kernel | None], ...] = (
            ("row", self.kernels.bwd_rows),
            ("column", self.kernels.bwd_columns),
        )
        collected: set[str] = set()
        for place, kernel in sides:
            for name, each in collect(found, place).items():
                collected.add(name)
                assert kernel is not None
                yield self._gradient(each, kernel)
        for stream in self.made.streams:
            if stream.name not in collected:
                yield Choice(
                    f"gradient of {stream.name}", "none in a kernel", self._why_not(stream)
                )

    def _gradient(self, each: Accumulated, kernel: Kernel) -> Choice:
        how = {
            "matrix": "by products of tiles",
            "lines": "as one sum for each line",
            "total": "as one partial sum for each program",
            "channels": "as partial sums for each channel",
            "entries": "scattered into entries that one program owns",
            "tile": "pair by pair for each leaf",
        }[each.kind]
        alternatives = (
            Alternative("atomic additions", None, "the order of the sums would change by the run"),
        )
        return Choice(
            f"gradient of {each.stream.name}",
            f"{how} in {kernel.name}",
            f"its derivative is {_shortened(formula_text(each.leaves[0][1]))}",
            None,
            alternatives if each.kind in ("total", "channels", "entries") else (),
        )

    def _why_not(self, stream: Stream) -> str:
        row_term = self.made.row_term
        if row_term is not None and any(_reads(node, stream) for node in walk(row_term)):
            return "it stands in the row term, whose gradient is that of the log-sum-exp"
        if stream is self.made.sink:
            return "the sink's gradient is a sum over rows, behind the kernel"
        if not stream.differentiable:
            return "no real input of the call is behind it"
        return "nothing with a derivative reads it"

    # -- tiles

    def tiles(self) -> Iterator[Choice]:
        """The tile sizes that were given, beside wider and narrower ones."""
        given = (self.config.fwd, self.config.bwd_rows, self.config.bwd_columns)
        kernels = (self.kernels.fwd, self.kernels.bwd_rows, self.kernels.bwd_columns)
        for kernel, tiles in zip(kernels, given, strict=True):
            if kernel is None:
                continue
            others = (
                replace(tiles, BM=tiles.BM * 2),
                replace(tiles, BN=tiles.BN * 2),
                replace(tiles, BM=max(tiles.BM // 2, 1)),
            )
            yield Choice(
                f"tiles of {kernel.name}",
                f"{tiles.BM} queries by {tiles.BN} keys",
                "as given: the lowering chooses no configuration",
                costs(kernel, tiles, self.sizes).interior,
                tuple(
                    Alternative(
                        f"{other.BM} by {other.BN}", costs(kernel, other, self.sizes).interior
                    )
                    for other in others
                ),
            )


def _shortened(formula: str) -> str:
    return formula if len(formula) <= LONGEST else f"{formula[: LONGEST - 4]} ..."


def _reads(node: Node, stream: Stream) -> bool:
    match node:
        case Read(of) | Anchored(of, _):
            return of == stream
        case PairDot(row, column):
            return stream in (row, column)
        case TransportDot(row, column, near):
            return stream in (row, column, near)
    return False


def text(choices: list[Choice]) -> str:
    """The choices as a list, each with its reason, its cost and its alternatives."""
    lines: list[str] = []
    for choice in choices:
        cost = "" if choice.cost is None else f"  [{choice.cost}]"
        lines += [f"{choice.subject}: {choice.chosen}{cost}", f"    because {choice.why}"]
        for other in choice.alternatives:
            cost = "" if other.cost is None else f"  [{other.cost}]"
            note = f"; {other.note}" if other.note else ""
            lines.append(f"    or {other.what}{cost}{note}")
    return "\n".join(lines)

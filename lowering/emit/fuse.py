"""Fusion: steps over the elements of tiles become loops over rows that do several things at once.

    point, fold, point, ...   ->   Rows(outer, members)          for r in range(outer): ...

A member stands on a level. Level 0 is done for a row before any loop over its columns; level n > 0
has a loop over the columns (for each inner extent a loop of its own) and what is done for the row
after it. A member goes as far forward as the members that it must follow allow:

    a value of the columns, after one of the columns    the same level
    a value of the columns, after a value of the row    one level later
    a value of the row, after a fold over the columns   the same level

A step joins the first loop over the same outer extent that can take it: what it depends on comes
before that loop, or (loads, dots of other tiles) may as well be moved there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gnomon.lowering.emit.normal import Step, reads, writes
from gnomon.lowering.tile import Reduce


@dataclass(slots=True, eq=False)
class Member:
    """A step inside a loop over rows, the level it stands on, and its extent along the columns."""

    step: Step
    level: int
    inner: str | None
    reads: set[str]
    writes: set[str]

    @property
    def folds_rows(self) -> bool:
        """Whether it is a reduction along the loop itself, done only when the loop is."""
        return self.step.kind == "fold" and not self.folds_columns

    @property
    def folds_columns(self) -> bool:
        """Whether it is a reduction along the columns, which gives a value of the row."""
        return isinstance(self.step.value, Reduce) and self.step.value.axis == self.inner


@dataclass(slots=True, eq=False)
class Rows:
    """for r in range(outer): the members, in their order within a row."""

    outer: str
    members: list[Member] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def late(self) -> set[str]:
        """What exists only after the last row."""
        return set().union(*(m.writes for m in self.members if m.folds_rows))

    def add(self, step: Step) -> None:
        """The step as a member, on the first level where everything it needs is done."""
        inner = step.domain[1] if len(step.domain) == 2 else None
        member = Member(step, 1 if inner else 0, inner, reads(step), writes(step))
        for earlier in self.members:
            if _conflict(earlier, member):
                member.level = max(member.level, _level_after(earlier, member))
        self.members.append(member)
        self.reads |= member.reads
        self.writes |= member.writes

    def levels(self) -> list[tuple[list[list[Member]], list[Member]]]:
        """For each level its loops over columns, one an extent, and what is done for the row."""
        made = []
        for level in range(1 + max(member.level for member in self.members)):
            here = [member for member in self.members if member.level == level]
            extents = dict.fromkeys(m.inner for m in here if m.inner is not None)
            loops = [[m for m in here if m.inner == extent] for extent in extents]
            made.append((loops, [m for m in here if m.inner is None]))
        return made

    def in_order(self) -> list[Member]:
        """The members as they are done within one row."""
        return [m for loops, row in self.levels() for part in (*loops, row) for m in part]


@dataclass(slots=True, eq=False)
class Alone:
    """A step that is no loop over elements, with the body of a loop fused in its turn."""

    step: Step
    body: list["Alone | Rows"]
    reads: set[str]
    writes: set[str]


Block = Alone | Rows


def fuse(steps: Iterable[Step]) -> list[Block]:
    """The steps as loops over rows, and what stands between them."""
    blocks: list[Block] = []
    for step in steps:
        alone = Alone(step, fuse(step.body), reads(step), writes(step))
        if step.kind not in ("point", "fold"):
            blocks.append(alone)
        elif not _joins(blocks, alone):
            rows = Rows(step.domain[0])
            rows.add(step)
            blocks.append(rows)
    return blocks


def _joins(blocks: list[Block], new: Alone) -> bool:
    """Add a step to a loop over rows, the first that can take it, and say whether there is one."""
    walls = [place for place, block in enumerate(blocks) if _is_wall(block)]
    for place in range(walls[-1] + 1 if walls else 0, len(blocks)):
        rows = blocks[place]
        if not isinstance(rows, Rows) or rows.outer != new.step.domain[0]:
            continue
        if rows.late() & (new.reads | new.writes):
            continue
        before, after = _parted(rows, blocks[place + 1 :])
        if not any(_conflict(block, new) for block in after):
            if any(_conflict(block, new) for block in before):
                blocks[place:] = [*before, rows, *after]
            rows.add(new.step)
            return True
    return False


def _parted(rows: Rows, blocks: list[Block]) -> tuple[list[Block], list[Block]]:
    """The blocks behind a loop that may as well stand before it, and those that may not."""
    before: list[Block] = []
    after: list[Block] = []
    for block in blocks:
        stuck = any(_conflict(earlier, block) for earlier in (rows, *after))
        (after if stuck else before).append(block)
    return before, after


def _is_wall(block: Block) -> bool:
    return isinstance(block, Alone) and block.step.kind in ("loop", "exit")


def _conflict(a: Block | Member, b: Block | Member) -> bool:
    """Whether the order of the two matters."""
    return bool(a.writes & (b.reads | b.writes) or a.reads & b.writes)


def _level_after(earlier: Member, later: Member) -> int:
    """The first level on which `later` may stand."""
    if later.inner is None:
        return earlier.level
    if earlier.inner is None or earlier.folds_columns or earlier.inner != later.inner:
        return earlier.level + 1
    return earlier.level

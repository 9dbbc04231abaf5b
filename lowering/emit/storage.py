"""Where the values of a fused body live: in a local scalar, or in a buffer.

    local    an element of it is used only in the iteration that makes it
    buffer   everything else with a shape: carried values, operands of dots, what a later loop reads
             (what starts outside every loop full of one number is made there, and lives on)

Buffers of one shape and dtype share memory where their lives do not meet. A life runs from the
making to the last use; a use inside a loop of a value from outside lasts to the end of the loop.
Inside loops over rows a tile that is touched row by row lives from member to member, so that
p = exp(s - m) may overwrite s; a vector of the columns is touched by every row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gnomon.lowering import tile
from gnomon.lowering.emit.fuse import Block, Member, Rows
from gnomon.lowering.emit.normal import Step
from gnomon.lowering.tile import Ref, Type


@dataclass(slots=True)
class Life:
    """A buffer's first and last moment; at the last moment its element may be overwritten."""

    ref: Ref
    first: int
    last: int


@dataclass(slots=True)
class Storage:
    """What of a body is local, and the buffers: name -> the name whose memory it has."""

    local: set[str] = field(default_factory=set)
    both: set[str] = field(default_factory=set)
    """Values in a buffer whose element is used again in the iteration that makes it."""
    buffers: dict[str, Ref] = field(default_factory=dict)
    shares: dict[str, str] = field(default_factory=dict)
    filled: dict[str, Ref] = field(default_factory=dict)
    """Values that are made full of one number, outside every loop."""

    def printed(self, names: dict[str, str]) -> dict[str, str]:
        """How names are printed: what has a memory of its own has a name of its own."""
        made, owners = dict(names), dict[str, str]()
        scalars = [name for name in names if name not in self.buffers and name not in self.filled]
        for name in (*self.filled, *self.buffers, *scalars):
            home = name if name in self.filled else self.shares.get(name, "")
            word, number = names[name], 2
            while owners.setdefault(word, home) != home:
                word, number = f"{names[name]}_{number}", number + 1
            made[name] = word
        return made


@dataclass(slots=True, eq=False)
class _Use:
    """A name touched at a moment: by a member of rows, or by a step that stands alone."""

    name: str
    moment: int
    loops: tuple[tuple[int, int], ...]
    rows: Rows | None = None
    member: Member | None = None
    makes: Ref | None = None
    filled: bool = False
    """Whether it is made full of one number."""
    span: tuple[int, int] = (0, 0)
    """The moments of the whole loop over rows."""


def storage(body: list[Block], names: dict[str, str]) -> Storage:
    """A home for every value of a fused body."""
    uses = list(_Moments().uses(body, ()))
    by_name: dict[str, list[_Use]] = {}
    for use in uses:
        by_name.setdefault(use.name, []).append(use)
    made = Storage()
    lives = []
    for name, group in by_name.items():
        maker = next((use for use in group if use.makes is not None), None)
        if maker is None or maker.makes is None or not maker.makes.type.shape:
            continue
        if _is_local(maker, group):
            made.local.add(name)
            continue
        if any(_beside(maker, use) for use in group if use is not maker):
            made.both.add(name)
        if maker.filled and not maker.loops:
            made.filled[name] = maker.makes
            continue
        made.buffers[name] = maker.makes
        lives.append(_life(maker, maker.makes, group))
    made.shares = _share(lives, names)
    return made


class _Moments:
    """A clock that ticks from step to step."""

    def __init__(self) -> None:
        self.now = 0

    def uses(self, body: list[Block], loops: tuple[tuple[int, int], ...]) -> Iterator[_Use]:
        for block in body:
            self.now += 1
            if isinstance(block, Rows):
                yield from self._rows(block, loops)
            elif block.step.kind == "loop":
                start = self.now
                inner = list(self.uses(block.body, (*loops, (start, -1))))
                self.now += 1
                for use in inner:
                    spans = ((a, self.now if a == start else b) for a, b in use.loops)
                    use.loops = tuple(spans)
                yield from inner
                yield from (_Use(name, start, loops) for name in sorted(_own_reads(block.step)))
            else:
                makes = block.step.ref if block.step.ref.name and not block.step.carried else None
                for name in sorted(block.reads | block.writes):
                    own = makes if makes is not None and makes.name == name else None
                    filled = block.step.kind == "fill"
                    # a product reads its operands while it writes: they outlive its first element
                    moment = self.now if own is not None else self.now + 1
                    yield _Use(name, moment, loops, makes=own, filled=filled)
                self.now += 1

    def _rows(self, rows: Rows, loops: tuple[tuple[int, int], ...]) -> Iterator[_Use]:
        start = self.now
        found = []
        for member in rows.in_order():
            self.now += 1
            makes = None if member.step.carried else member.step.ref
            for name in sorted(member.reads | member.writes):
                own = makes if makes is not None and makes.name == name else None
                found.append(_Use(name, self.now, loops, rows, member, own))
        self.now += 1
        for use in found:
            use.span = (start, self.now)
        yield from found


def _own_reads(step: Step) -> set[str]:
    found: set[str] = set()
    stack = list(tile.expressions(step.stmt)) if step.stmt else []
    while stack:
        x = stack.pop()
        if isinstance(x, Ref):
            found.add(x.name)
        stack.extend(tile.operands(x))
    return found


def _is_local(maker: _Use, group: list[_Use]) -> bool:
    if maker.member is None or maker.member.folds_rows:
        return False
    return all(use is maker or _beside(maker, use) for use in group)


def _beside(maker: _Use, use: _Use) -> bool:
    """Whether an element is used in the very iteration that makes it."""
    a, b = maker.member, use.member
    if a is None or b is None or maker.rows is not use.rows or a.folds_rows:
        return False
    if use.name in b.writes:
        return False
    if a.inner is None or a.folds_columns:
        return True
    return a.inner == b.inner and a.level == b.level


def _life(maker: _Use, ref: Ref, group: list[_Use]) -> Life:
    first = min(_moment(use, ref, last=False) for use in group)
    last = max(_moment(use, ref, last=True) for use in group)
    for use in group:
        for start, end in use.loops[len(maker.loops) :]:
            first, last = min(first, start), max(last, end)
    return Life(ref, first, last)


def _moment(use: _Use, ref: Ref, *, last: bool) -> int:
    if use.rows is not None and use.member is not None:
        by_row = ref.type.shape[0] == use.rows.outer and not use.member.folds_rows
        return use.moment if by_row else use.span[last]
    return use.moment


def _share(lives: list[Life], names: dict[str, str]) -> dict[str, str]:
    """The owner of each buffer's memory; values that are printed alike share if they can."""
    free: dict[str, int] = {}
    homes: dict[str, tuple[str, tuple[str, ...]]] = {}
    latest: dict[str, str] = {}
    shares = {}
    for life in sorted(lives, key=lambda life: life.first):
        name, home = life.ref.name, _home(life.ref.type)
        fitting = [o for o, until in free.items() if homes[o] == home and until <= life.first]
        alike = latest.get(names[name], "")
        owner = alike if alike in fitting else next(iter(fitting), name)
        shares[name] = latest[names[name]] = owner
        free[owner], homes[owner] = life.last, home
    return shares


def _home(type: Type) -> tuple[str, tuple[str, ...]]:
    return ("f32" if type.dtype in ("io", "f16") else type.dtype), type.shape

"""Masks as loops: which tiles of the moving axis a stationary tile sees, and which of them whole.

A mask becomes a list of spans. A span has the elements that *some* line of the stationary tile sees
and, inside them, those that *every* line sees; each rule gives both by interval arithmetic on the
tile's first and last position, `and` intersects, `or` unites. A span is walked by at most three
loops: an edge with masks, an interior without, an edge with masks. Rules that know no interval
(documents, selected blocks) see everything and fill nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

from gnomon.dsl.nodes import Mask
from gnomon.lowering.build import Block, Operand, lift
from gnomon.lowering.tile import Expr, Number, Ref

Interval = tuple[Expr, Expr]


@dataclass(frozen=True, slots=True)
class Span:
    """Elements [some[0], some[1]) of the moving axis; every line sees [every[0], every[1]).

    `every` is None where there is no interior. `rank` orders the spans of a union along the axis.
    """

    some: Interval
    every: Interval | None
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Stationary:
    """The stationary tile in positions: lines first ... end - 1.

    The moving axis has `total` elements; element e stands at position e + shift.
    """

    side: Literal["row", "column"]
    first: Expr
    end: Expr
    total: Expr
    shift: Expr


class Ranges:
    """Interval arithmetic in scalars of the program."""

    def __init__(self, block: Block, tile: Stationary, step: Ref) -> None:
        self.block, self.tile, self.step = block, tile, step

    # -- arithmetic that folds what is known

    def add(self, a: Operand, b: Operand) -> Expr:
        """The sum, folded where a side is a number."""
        x, y = lift(a), lift(b)
        if isinstance(x, Number) and isinstance(y, Number):
            return Number(int(x.value + y.value), "i32")
        if isinstance(y, Number):
            if y.value == 0:
                return x
            return self.block.op("-" if y.value < 0 else "+", x, abs(int(y.value)))
        if isinstance(x, Number) and x.value == 0:
            return y
        return self.block.op("+", x, y)

    def sub(self, a: Expr, b: Expr) -> Expr:
        """The difference, folded where the second side is a number."""
        if isinstance(b, Number):
            return self.add(a, -int(b.value))
        return self.block.op("-", a, b)

    def least(self, a: Expr, b: Expr) -> Expr:
        """The smaller one."""
        return a if a == b else self.block.op("minimum", a, b)

    def most(self, a: Expr, b: Expr) -> Expr:
        """The greater one."""
        return a if a == b else self.block.op("maximum", a, b)

    # -- spans

    def spans(self, mask: Mask) -> list[Span]:
        """The spans of a mask in the order in which they are walked."""
        match mask.rule:
            case "and":
                left, right = (self.spans(cast(Mask, part)) for part in mask.operands)
                return [self._meet(a, b) for a in left for b in right]
            case "or":
                left, right = (self.spans(cast(Mask, part)) for part in mask.operands)
                return self._unite(left + right)
        return [self._rule(mask)]

    def _rule(self, mask: Mask) -> Span:
        zero: Expr = Number(0, "i32")
        whole: Interval = (zero, self.tile.total)
        first, end = self.tile.first, self.tile.end
        match mask.rule, self.tile.side:
            case "everything", _:
                return Span(whole, whole)
            case "causal", "row":
                less = -1 if mask.operands[0] else 0
                return Span((zero, self.add(end, less)), (zero, self.add(first, 1 + less)))
            case "causal", "column":
                more = 1 if mask.operands[0] else 0
                start, filled = self.add(first, more), self.add(end, more - 1)
                return Span(self._moving(start, whole[1]), self._moving(filled, whole[1]))
            case "window", _:
                size = int(cast(int, mask.operands[0]))
                some = (self.add(first, 1 - size), self.add(end, size - 1))
                every = (self.add(end, -size), self.add(first, size))
                return Span(
                    self._moving(*some), self._moving(*every), 1 if self.tile.side == "row" else 0
                )
            case "first_keys", "row":
                count = self.least(Number(int(cast(int, mask.operands[0])), "i32"), self.tile.total)
                return Span((zero, count), (zero, count))
            case "first_keys", "column":
                count = Number(int(cast(int, mask.operands[0])), "i32")
                total = self.tile.total
                seen = self.block.op("where", self.block.op("<", first, count), zero, total)
                filled = self.block.op("where", self.block.op("<=", end, count), zero, total)
                return Span((seen, total), (filled, total), 1)
        return Span(whole, None)

    def _moving(self, low: Expr, high: Expr) -> Interval:
        """Positions to elements of the moving axis, except where the end of the axis is meant."""
        ends = tuple(
            x if x is self.tile.total else self.sub(x, self.tile.shift) for x in (low, high)
        )
        return cast(Interval, ends)

    def _meet(self, a: Span, b: Span) -> Span:
        every = None
        if a.every is not None and b.every is not None:
            every = self._intersect(a.every, b.every)
        return Span(self._intersect(a.some, b.some), every, max(a.rank, b.rank))

    def _intersect(self, a: Interval, b: Interval) -> Interval:
        zero = Number(0, "i32")
        low = b[0] if a[0] == zero else a[0] if b[0] == zero else self.most(a[0], b[0])
        total = self.tile.total
        high = b[1] if a[1] is total else a[1] if b[1] is total else self.least(a[1], b[1])
        return low, high

    def _unite(self, spans: list[Span]) -> list[Span]:
        merged: list[Span] = []
        for span in sorted(spans, key=lambda s: s.rank):
            last = merged[-1] if merged else None
            if last is not None and (last.some[0] == span.some[0] or last.some[1] is span.some[1]):
                merged[-1] = self._join(last, span)
            elif last is not None and last.rank == span.rank:
                hull = (
                    self.least(last.some[0], span.some[0]),
                    self.most(last.some[1], span.some[1]),
                )
                merged[-1] = Span(hull, None, span.rank)
            else:
                merged.append(span)
        return merged

    def _join(self, a: Span, b: Span) -> Span:
        """Two spans that start, or end, together."""
        some = self._hull(a.some, b.some)
        if a.every is None or b.every is None:
            return Span(some, a.every or b.every, a.rank)
        return Span(some, self._hull(a.every, b.every), a.rank)

    def _hull(self, a: Interval, b: Interval) -> Interval:
        if a[0] == b[0]:
            return a[0], self.most(a[1], b[1])
        return self.least(a[0], b[0]), a[1]

    # -- loops

    def loops(
        self, mask: Mask, *, interior: Expr | None = None
    ) -> Iterator[tuple[Expr, Expr, bool]]:
        """(start, stop, masked) of each loop over the moving axis, in steps of its tile.

        `interior`: a condition under which there may be unmasked tiles at all (None: always).
        """
        zero: Expr = Number(0, "i32")
        previous: Expr = zero
        spans = self.spans(mask)
        for number, span in enumerate(spans):
            tag = "" if len(spans) == 1 else f"_{number + 1}"
            low, high = self._clipped(span.some)
            start = low if low == zero else self._let(f"start{tag}", self._round_down(low))
            if number > 0:
                start = self._let(f"next{tag}", self.most(start, previous))
            stop = self._let(f"stop{tag}", high) if not isinstance(high, Ref) else high
            if span.every is None:
                yield start, stop, True
            else:
                yield from self._three(span.every, start, stop, tag, interior)
            previous = self._round_up(stop)

    def _three(
        self, every: Interval, start: Expr, stop: Expr, tag: str, interior: Expr | None
    ) -> Iterator[tuple[Expr, Expr, bool]]:
        zero = Number(0, "i32")
        low, high = every
        full = start
        if low != zero:
            edge = self.most(self._round_up(self.most(low, zero)), start)
            full = self._let(f"full{tag}", edge)
        end = self._round_down(
            self.most(self.least(high, stop) if high is not stop else high, zero)
        )
        if interior is not None:
            end = self.block.op("where", interior, end, full)
        full_stop = self._let(f"full_stop{tag}", self.most(end, full) if full != zero else end)
        if full is not start:
            yield start, self.least(full, stop), True
        yield full, full_stop, False
        yield full_stop, stop, True

    def _clipped(self, some: Interval) -> Interval:
        zero, total = Number(0, "i32"), self.tile.total
        low = some[0] if some[0] == zero else self.most(some[0], zero)
        high = some[1] if some[1] is total else self.least(some[1], total)
        return low, high

    def _round_down(self, x: Expr) -> Expr:
        return self.block.op("*", self.block.op("//", x, self.step), self.step)

    def _round_up(self, x: Expr) -> Expr:
        return self.block.op("*", self.block.op("cdiv", x, self.step), self.step)

    def _let(self, name: str, value: Expr) -> Expr:
        return self.block.let(name, value)

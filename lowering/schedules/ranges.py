"""Masks as loops: which tiles of the moving axis a stationary tile sees, and which of them whole.

A mask becomes a list of spans. A span has the elements that *some* line of the stationary tile sees
and, inside them, those that *every* line sees; each rule gives both by interval arithmetic on the
tile's first and last position. `and` intersects. `or` unites: two spans stay apart where the second
is known not to start before the first; else they become one that has both. A span is walked by at
most two loops: its edges with masks, before them the first or behind them the last or both in one
loop that jumps over the interior, and the interior without. The walk begins at the first element of
the span and an edge reads nothing behind the last one, so that an element that nobody sees,
whatever stands there, is not met. Rules that know no interval (documents, selected
blocks) see everything and fill nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple, cast

from gnomon.dsl.nodes import Mask
from gnomon.lowering.build import Block, Operand, lift
from gnomon.lowering.tile import Expr, Number, Ref

ZERO = Number(0, "i32")


@dataclass(frozen=True, slots=True)
class Interval:
    """Elements max(0, *lows) <= e < min(total, *highs) of the moving axis."""

    lows: tuple[Expr, ...] = ()
    highs: tuple[Expr, ...] = ()

    def contains(self, other: "Interval") -> bool:
        """Whether it has all of the other, as far as the terms tell."""
        return set(self.lows) <= set(other.lows) and set(self.highs) <= set(other.highs)

    def touches(self, other: "Interval") -> bool:
        """Whether both start, or both end, in one place: then their union has no gap."""
        return set(self.lows) == set(other.lows) or set(self.highs) == set(other.highs)

    def meet(self, other: "Interval") -> "Interval":
        """What both have."""
        return Interval(_union(self.lows, other.lows), _union(self.highs, other.highs))


@dataclass(frozen=True, slots=True)
class Span:
    """What some line sees, and what every line sees; `every` is None where there is no interior."""

    some: Interval
    every: Interval | None


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


class Loop(NamedTuple):
    """A loop over the moving axis, in steps of its tile.

    end   where its loads must stop, if that is before the end of the sequence
    cut   whether other loops have what its last tile would reach behind `end`
    jump  (from, by): elements from there on are as many further; one body for both edges
    short whether it has a tile or two beside an interior: nothing to be loaded ahead
    """

    start: Expr
    stop: Expr
    masked: bool
    end: Expr | None = None
    cut: bool = False
    jump: tuple[Expr, Expr] | None = None
    short: bool = False

    @contextmanager
    def walk(self, block: Block, name: str, step: Ref) -> Iterator[Ref]:
        """The loop in a kernel; gives the first element of a tile."""
        stages = 1 if self.short else 0
        if self.jump is None:
            with block.loop(name, self.start, self.stop, step, stages) as index:
                yield index
            return
        there, by = self.jump
        with block.loop("i_t", self.start, self.stop, step, stages) as index:
            further = block.op("where", block.op("<", index, there), 0, by)
            yield block.let(name, block.op("+", index, further))

    def note(self, lines: str) -> str:
        """What stands above the loop."""
        return (
            "edge tiles: pairs are masked"
            if self.masked
            else f"tiles that every {lines} sees whole"
        )


class Ranges:
    """Interval arithmetic in scalars of the program."""

    def __init__(self, block: Block, tile: Stationary, step: Ref) -> None:
        self.block, self.tile, self.step = block, tile, step
        self.to_end = False
        self.first: Expr | None = None
        """A multiple of the step before which nothing weighs."""
        self.last: Expr | None = None
        """One behind which nothing weighs."""

    # -- arithmetic that folds what is known

    def add(self, a: Expr, b: int) -> Expr:
        """The sum with a number."""
        if isinstance(a, Number):
            return Number(int(a.value) + b, "i32")
        return a if b == 0 else self.block.op("-" if b < 0 else "+", a, abs(b))

    def sub(self, a: Expr, b: Expr) -> Expr:
        """The difference, folded where the second side is a number."""
        return self.add(a, -int(b.value)) if isinstance(b, Number) else self.block.op("-", a, b)

    def least(self, a: Operand, b: Operand) -> Expr:
        """The smaller one."""
        return lift(a) if a == b else self.block.op("minimum", a, b)

    def most(self, a: Operand, b: Operand) -> Expr:
        """The greater one."""
        return lift(a) if a == b else self.block.op("maximum", a, b)

    # -- spans

    def spans(self, mask: Mask) -> list[Span]:
        """The spans of a mask in the order in which they are walked."""
        if mask.rule not in ("and", "or"):
            return [self._rule(mask)]
        left, right = (self.spans(cast(Mask, part)) for part in mask.operands)
        if mask.rule == "or":
            return self._unite(left + right)
        return self._unite([_meet(a, b) for a in left for b in right])

    def _rule(self, mask: Mask) -> Span:
        first, end = self.tile.first, self.tile.end
        match mask.rule, self.tile.side:
            case "everything", _:
                return Span(Interval(), Interval())
            case "causal", "row":
                less = -1 if mask.operands[0] else 0
                # the last query stands on the last key: a ragged tile has no line behind it
                last = self.least(end, self.tile.total) if less else end
                seen, filled = self.add(last, less), self.add(first, 1 + less)
                return Span(Interval(highs=(seen,)), Interval(highs=(filled,)))
            case "causal", "column":
                more = 1 if mask.operands[0] else 0
                seen, filled = self.add(first, more), self.add(end, more - 1)
                return Span(self._between(seen, None), self._between(filled, None))
            case "window", _:
                size = int(cast(int, mask.operands[0]))
                return Span(
                    self._between(self.add(first, 1 - size), self.add(end, size - 1)),
                    self._between(self.add(end, -size), self.add(first, size)),
                )
            case "first_keys", _:
                return self._first_keys(int(cast(int, mask.operands[0])))
        return Span(Interval(), None)

    def _first_keys(self, count: int) -> Span:
        if self.tile.side == "row":
            keys = Interval(highs=(Number(count, "i32"),))
            return Span(keys, keys)
        # every query or none: said by the start where all spans end together, else by the end
        op, total = self.block.op, self.tile.total
        shown, hidden = (ZERO, total) if self.to_end else (total, ZERO)
        seen = (op("where", op("<", self.tile.first, count), shown, hidden),)
        filled = (op("where", op("<=", self.tile.end, count), shown, hidden),)
        if self.to_end:
            return Span(Interval(lows=seen), Interval(lows=filled))
        return Span(Interval(highs=seen), Interval(highs=filled))

    def _between(self, low: Expr, high: Expr | None) -> Interval:
        """From position to position, as elements of the moving axis."""
        shift = self.tile.shift
        ends = () if high is None else (self.sub(high, shift),)
        return Interval((self.sub(low, shift),), ends)

    def _unite(self, spans: list[Span]) -> list[Span]:
        """Spans of which each is known to start not before the one in front of it."""
        merged: list[Span] = []
        for span in sorted(spans, key=lambda s: len(s.some.lows)):
            while merged and not _is_behind(span.some, merged[-1].some):
                span = self._join(merged.pop(), span)
            merged.append(span)
        return merged

    def _join(self, a: Span, b: Span) -> Span:
        every = a.every or b.every
        if a.every is not None and b.every is not None and a.every.touches(b.every):
            every = self._hull(a.every, b.every)
        return Span(self._hull(a.some, b.some), every)

    def _hull(self, a: Interval, b: Interval) -> Interval:
        """The smallest interval around both."""
        return Interval(
            _around(a.lows, b.lows, self.most, self.least),
            _around(a.highs, b.highs, self.least, self.most),
        )

    # -- loops

    def whole(self, within: Interval) -> Loop:
        """The loop over elements that every line sees, in whole tiles."""
        start = self._let("start", self._low(within))
        return Loop(start, self._let("stop", reduce(self.least, within.highs)), False)

    def loops(
        self,
        mask: Mask,
        *,
        interior: Expr | None = None,
        within: Interval | None = None,
        all_masked: bool = False,
        aligned: bool = False,
    ) -> Iterator[Loop]:
        """The loops over what some line sees, in order.

        `interior`: a condition under which there may be unmasked tiles at all (None: always).
        `within`: the elements of which these loops are; `all_masked`: none without masks.
        `aligned`: tiles of the one span begin at multiples of their size, a little before it.
        """
        previous: Expr = ZERO
        spans = self._spans(mask, within, all_masked=all_masked)
        for number, span in enumerate(spans):
            tag = "" if len(spans) == 1 else f"_{number + 1}"
            start = self._start(span, tag, aligned=aligned)
            if number > 0:
                start = self._let(f"next{tag}", self.most(start, previous))
            stop = self._stop(span, tag)
            cut = number + 1 < len(spans)
            # under a causal mask the last query sees every key: all of memory is somebody's
            is_seen = self.tile.side == "row" and mask.rule == "causal" and not mask.operands[0]
            end = None if stop == self.tile.total or is_seen else stop
            edges = Loop(start, stop, True, end, cut)
            if span.every is None:
                yield edges
            else:
                starts_whole = span.every.lows == span.some.lows and number == 0
                full, full_stop = self._interior(
                    span.every, start, stop, tag, interior, starts_whole=starts_whole
                )
                yield from self._around(edges, full, full_stop, tag)
            previous = stop

    def _start(self, span: Span, tag: str, *, aligned: bool) -> Expr:
        if not span.some.lows:
            return ZERO if self.first is None else self.first
        low = self._low(span.some)
        return self._let(f"start{tag}", self._tiles(ZERO, low, "//") if aligned else low)

    def _stop(self, span: Span, tag: str) -> Expr:
        stop = self.tile.total
        if self.last is not None:
            stop = self._let("stop", self.least(stop, self.last))
        if span.some.highs:
            high = reduce(self.least, span.some.highs)
            stop = self._let(f"stop{tag}", self.least(high, stop))
        return stop

    def _spans(self, mask: Mask, within: Interval | None, *, all_masked: bool) -> list[Span]:
        self.to_end = _runs_to_the_end(mask)
        if within is None:
            return self.spans(mask)
        bounds = Span(within, None if all_masked else within)
        return [_meet(span, bounds) for span in self.spans(mask)]

    def _around(self, edges: Loop, full: Expr, full_stop: Expr, tag: str) -> Iterator[Loop]:
        """The whole tiles, and the edges behind them or on both sides of them."""
        filled, edges = Loop(full, full_stop, False), edges._replace(short=True)
        if full is edges.start:
            yield from (filled, edges._replace(start=full_stop))
            return
        inside = self._let(f"inside{tag}", self.sub(full_stop, full))
        yield edges._replace(stop=self.sub(edges.stop, inside), jump=(full, inside))
        yield filled

    def _interior(
        self,
        every: Interval,
        start: Expr,
        stop: Expr,
        tag: str,
        interior: Expr | None,
        *,
        starts_whole: bool,
    ) -> tuple[Expr, Expr]:
        """Where the whole tiles begin and end; tiles are counted from the start."""
        full = start
        if every.lows and not starts_whole:
            low = self.most(self._low(every), start)
            full = self._let(f"full{tag}", self._tiles(start, low, "cdiv"))
        end = self.least(reduce(self.least, every.highs), stop) if every.highs else stop
        end = self._tiles(full, self.most(end, full), "//")
        if interior is not None:
            end = self.block.op("where", interior, end, full)
        return full, self._let(f"full_stop{tag}", end)

    def _tiles(self, start: Expr, end: Expr, divide: Literal["//", "cdiv"]) -> Expr:
        """The start plus as many tiles as fit (//) or as it takes (cdiv) to get to the end."""
        op = self.block.op
        length = end if start == ZERO else op("-", end, start)
        whole = op("*", op(divide, length, self.step), self.step)
        return whole if start == ZERO else op("+", start, whole)

    def _low(self, interval: Interval) -> Expr:
        return self.most(reduce(self.most, interval.lows), ZERO)

    def _let(self, name: str, value: Expr) -> Expr:
        return self.block.let(name, value)


def _runs_to_the_end(mask: Mask) -> bool:
    """Whether the queries of a key, where it has any, reach to the last one."""
    if mask.rule in ("and", "or"):
        return all(_runs_to_the_end(cast(Mask, part)) for part in mask.operands)
    return mask.rule != "window"


def _meet(a: Span, b: Span) -> Span:
    every = None if a.every is None or b.every is None else a.every.meet(b.every)
    return Span(a.some.meet(b.some), every)


def _is_behind(a: Interval, b: Interval) -> bool:
    """Whether `a` starts nowhere before `b`, and both are worth loops of their own."""
    return set(b.lows) < set(a.lows) and not b.contains(a) and not a.touches(b)


def _union(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(dict.fromkeys(a + b))


def _around(
    a: tuple[Expr, ...],
    b: tuple[Expr, ...],
    inner: Callable[[Expr, Expr], Expr],
    outer: Callable[[Expr, Expr], Expr],
) -> tuple[Expr, ...]:
    """outer(inner(*a), inner(*b)) as terms of `inner`: what both have stays, the rest is one."""
    common = tuple(x for x in a if x in b)
    rest_a, rest_b = ([x for x in side if x not in common] for side in (a, b))
    if not rest_a or not rest_b:
        return common
    return (*common, outer(reduce(inner, rest_a), reduce(inner, rest_b)))

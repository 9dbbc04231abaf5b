"""Loops over rows, as text: what `fuse.py` put together, with one accumulator for each reduction.

for r in range(BM):
    for c in range(BN):        level 1: values of the columns, and their reductions
        ...
    ...                        level 1: values of the row
    for c in range(BN):        level 2
        ...
"""

from dataclasses import dataclass

from gnomon.lowering.emit.fuse import Member, Rows
from gnomon.lowering.emit.numba_expressions import Writer, assignment, number
from gnomon.lowering.emit.storage import Storage
from gnomon.lowering.emit.text import INDENT, WIDTH, Code, atom, call, remark, statement
from gnomon.lowering.tile import Expr, Reduce, Ref, extent_of, type_of


@dataclass(slots=True)
class Loops:
    """Prints the loops of one kernel."""

    writer: Writer
    storage: Storage

    def rows(self, rows: Rows, depth: int) -> list[str]:
        """The lines of a loop over rows."""
        writer = self.writer
        row = writer.axes[rows.outer] = writer.indices[0]
        folds = [m for m in rows.members if m.folds_rows]
        lines = self._above(rows, depth)
        for member in folds:
            lines += self._start_rows(member, depth)
        lines.append(f"{INDENT * depth}for {row} in range({extent_of(rows.outer)}):")
        for loops, members in rows.levels():
            for loop in loops:
                lines += self._columns(loop, depth + 1)
            for member in members:
                lines += self._member(member, depth + 1)
        del writer.axes[rows.outer]
        writer.local.clear()
        return lines

    def _above(self, rows: Rows, depth: int) -> list[str]:
        """What stands over the loop: a blank where one stood over a step, and its results."""
        names = dict.fromkeys(self.writer.name(m.step.ref) for m in rows.in_order())
        extents = dict.fromkeys((rows.outer, *(m.inner for m in rows.members if m.inner)))
        shape = f"[{', '.join(extents)}]"
        blank = [""] if any("" in m.step.above for m in rows.members) else []
        return [*blank, *remark(f"{shape} {', '.join(names)}", depth)]

    def _columns(self, loop: list[Member], depth: int) -> list[str]:
        """One loop over columns, with its accumulators before it and their results after it."""
        inner = loop[0].inner
        assert inner is not None
        folds = [m for m in loop if m.folds_columns]
        lines = []
        for member in folds:
            name, start = self._accumulator(member), self._neutral(member)
            lines += statement(f"{name} = ", start, depth)
        column = self.writer.axes[inner] = self.writer.indices[1]
        lines.append(f"{INDENT * depth}for {column} in range({extent_of(inner)}):")
        outside = dict(self.writer.local)
        for member in loop:
            lines += self._member(member, depth + 1)
        del self.writer.axes[inner]
        self.writer.local = outside
        for member in folds:
            lines += self._folded(member, depth)
        return lines

    # -- one member

    def _member(self, member: Member, depth: int) -> list[str]:
        step = member.step
        lines = [line for text in step.above if text for line in remark(text, depth)]
        if member.folds_rows:
            return [*lines, *self._fold_row(step.ref, step.value, depth)]
        if member.folds_columns:
            return [*lines, *self._fold_column(member, depth)]
        return [*lines, *self._assign(step.ref, step.value, depth, carried=step.carried)]

    def _assign(self, ref: Ref, value: Expr, depth: int, *, carried: bool) -> list[str]:
        """An element that is used here, or elsewhere, or both."""
        writer = self.writer
        code = writer.real(value, ref.type.dtype)
        if ref.name in self.storage.local:
            writer.local[ref.name] = writer.name(ref)
            return assignment(writer.name(ref), code, depth)
        place = writer.place(ref)
        if carried or ref.name not in self.storage.both:
            return assignment(place, code, depth, self._element(ref))
        element = self._element(ref)
        writer.local[ref.name] = element
        return [*assignment(element, code, depth), f"{INDENT * depth}{place} = {element}"]

    def _element(self, ref: Ref) -> str:
        """The scalar beside a buffer."""
        return self.writer.beside(ref, "rc" if len(ref.type.shape) == 2 else "r")

    # -- reductions along the columns

    def _accumulator(self, member: Member) -> str:
        ref = member.step.ref
        if _is_ordered(member.step.value):
            return self.writer.beside(ref, "key")
        return self._result(ref)

    def _result(self, ref: Ref) -> str:
        return self.writer.name(ref) if ref.name in self.storage.local else self._element(ref)

    def _neutral(self, member: Member) -> Code:
        value = member.step.value
        assert isinstance(value, Reduce)
        start = neutral(value)
        return call("ordered", start) if _is_ordered(value) else start

    def _fold_column(self, member: Member, depth: int) -> list[str]:
        value = member.step.value
        assert isinstance(value, Reduce)
        name, x = self._accumulator(member), self.writer.code(value.x)
        if value.fn == "sum":
            return _added(name, x, depth)
        x = call("ordered", x) if _is_ordered(value) else x
        return statement(f"{name} = ", call(value.fn, atom(name), x), depth)

    def _folded(self, member: Member, depth: int) -> list[str]:
        """After the loop: the reduction as a value of the row."""
        ref, lines, indent = member.step.ref, [], INDENT * depth
        result = self._result(ref)
        if _is_ordered(member.step.value):
            lines.append(f"{indent}{result} = unordered({self._accumulator(member)})")
        self.writer.local[ref.name] = result
        if ref.name not in self.storage.local:
            lines.append(f"{indent}{self.writer.place(ref)} = {result}")
        return lines

    # -- reductions along the rows

    def _start_rows(self, member: Member, depth: int) -> list[str]:
        ref, value = member.step.ref, member.step.value
        assert isinstance(value, Reduce)
        place = f"{self.writer.name(ref)}[:]" if ref.type.shape else self.writer.name(ref)
        return statement(f"{place} = ", neutral(value), depth)

    def _fold_row(self, ref: Ref, value: Expr, depth: int) -> list[str]:
        assert isinstance(value, Reduce)
        place = self.writer.place(ref) if ref.type.shape else self.writer.name(ref)
        x = self.writer.code(value.x)
        if value.fn == "sum":
            return _added(place, x, depth, self._element(ref))
        return statement(f"{place} = ", call(value.fn, atom(place), x), depth)


def _added(target: str, x: Code, depth: int, scalar: str = "") -> list[str]:
    """Print target = added(target, x); a long x is made in a step of its own."""
    whole = call("added", atom(target), x)
    if len(f"{INDENT * depth}{target} = {whole}") <= WIDTH or len(x.chain) != 2:
        return statement(f"{target} = ", whole, depth)
    term = f"{scalar or target}_term"
    added = call("added", atom(target), atom(term))
    return [*assignment(term, x, depth), *statement(f"{target} = ", added, depth)]


def _is_ordered(value: Expr) -> bool:
    """Whether a maximum runs over integers made of fp32 numbers."""
    return (
        isinstance(value, Reduce)
        and value.fn != "sum"
        and type_of(value).dtype in ("f32", "f16", "io")
    )


def neutral(value: Reduce) -> Code:
    """What a reduction starts from."""
    dtype = type_of(value).dtype
    if value.fn == "sum":
        return number(0, dtype)
    sign = 1 if value.fn == "min" else -1
    if dtype in ("i32", "i64"):
        return number(sign * 2**31, dtype)
    return number(sign * float("inf"), dtype)

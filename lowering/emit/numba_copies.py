"""Rectangles between tensors and tiles, and entries that are added to a table, as text."""

from dataclasses import dataclass

from gnomon.lowering import tile
from gnomon.lowering.emit.normal import first_of
from gnomon.lowering.emit.numba_expressions import Writer, number
from gnomon.lowering.emit.text import INDENT, WIDTH, Code, atom, call, infix, statement
from gnomon.lowering.tile import Expr, Load, Ref, type_of

Limits = tuple[Expr | None, ...]


@dataclass(slots=True)
class Copies:
    """Prints loads, stores and scatters of one kernel."""

    writer: Writer

    def load(self, ref: Ref, load: Load) -> Code:
        """A rectangle of a tensor into a buffer."""
        word = "load_tile" if len(ref.type.shape) == 2 else "load_vector"
        if load.tensor.dtype == "io" and self.writer.io != "f32":
            word += f"_{self.writer.io}"
        view, start, limit = self._rectangle(load.tensor, load.index, load.limits)
        fill = [number(load.fill, load.tensor.dtype)] if load.fill != 0 else []
        return call(word, atom(self.writer.name(ref)), view, start, limit, *fill)

    def store(self, store: tile.Store, depth: int) -> list[str]:
        """A value into a rectangle of a tensor, or element by element where it is none."""
        value = store.value
        vectors = [part for part in store.index if type_of(part).shape]
        axes = tuple(name for part in vectors for name in type_of(part).shape)
        if vectors and isinstance(value, Ref) and value.type.shape == axes:
            word = "store_tile" if len(vectors) == 2 else "store_vector"
            view, start, limit = self._rectangle(store.tensor, store.index, store.limits)
            name = atom(self.writer.name(value))
            return statement("", call(word, view, name, start, limit), depth)
        return self._elements(store.tensor, store.index, store.limits, value, "=", depth)

    def scatter(self, scatter: tile.Scatter, depth: int) -> list[str]:
        """tensor[*index, entry] += value, element by element."""
        index = (*scatter.index, scatter.entry)
        return self._elements(scatter.tensor, index, scatter.limits, scatter.value, "+=", depth)

    def _elements(
        self,
        tensor: tile.Tensor,
        index: tuple[Expr, ...],
        limits: Limits,
        value: Expr,
        operator: str,
        depth: int,
    ) -> list[str]:
        """Loops over the elements of a value; a limit stands where its index is known."""
        writer, lines = self.writer, []
        shape = _shape((*index, value))
        pending = dict(enumerate(limits))
        for name in (None, *shape):
            if name is not None:
                variable = writer.axes[name] = writer.indices[len(writer.axes)]
                lines.append(f"{INDENT * depth}for {variable} in range({tile.extent_of(name)}):")
                depth += 1
            ready = [n for n in pending if set(type_of(index[n]).shape) <= set(writer.axes)]
            picked = tuple(pending.pop(n) for n in ready)
            condition = writer.inside(tuple(index[n] for n in ready), picked)
            if condition is not None:
                lines += statement("if ", condition, depth, ":")
                depth += 1
        place = ", ".join(str(writer.code(part)) for part in index)
        code = writer.real(value, tensor.dtype)
        start = f"{tensor.name}[{place}] {operator} "
        if len(f"{INDENT * depth}{start}{code}") > WIDTH:
            lines += statement("term = ", code, depth)
            code = atom("term")
        lines += statement(start, code, depth)
        writer.axes.clear()
        return lines

    def _rectangle(
        self, tensor: tile.Tensor, index: tuple[Expr, ...], limits: Limits
    ) -> tuple[Code, Code, Code]:
        """A view of the tensor over the axes that vary, and where they start and end."""
        parts, starts, ends = [], [], []
        for part, limit in zip(index, limits, strict=True):
            shape = type_of(part).shape
            if not shape:
                parts.append(str(self.writer.code(part)))
                continue
            first = self._first(part)
            end = (
                infix("+", first, atom(tile.extent_of(shape[0])))
                if limit is None
                else self.writer.code(limit)
            )
            parts.append(":")
            starts.append(first)
            ends.append(end)
        whole = all(part == ":" for part in parts)
        view = atom(tensor.name if whole else f"{tensor.name}[{', '.join(parts)}]")
        if len(starts) == 1:
            return view, starts[0], ends[0]
        return view, call("", *starts), call("", *ends)

    def _first(self, part: Expr) -> Code:
        """The first element of an index that counts upwards."""
        first = first_of(part, self.writer.firsts)
        assert first is not None
        return self.writer.code(first)


def _shape(parts: tuple[Expr, ...]) -> tuple[str, ...]:
    """The extents of several expressions together, those of the widest first."""
    shapes = sorted((type_of(part).shape for part in parts), key=len, reverse=True)
    return tuple(dict.fromkeys(name for shape in shapes for name in shape))

"""What the catalogue says about a variant, and how a family file says it.

BIAS = Family("additive bias")

@BIAS.row(16, "Lin et al. 2025, Forgetting Transformer, arXiv 2503.02130")
@gn.variant
def fox(q, k, log_f: Token[Head]):
    "formula, then a paragraph of remarks"
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnomon.dsl.errors import LawError
from gnomon.dsl.nodes import Input, Variant
from gnomon.dsl.signature import axes_of
from gnomon.dsl.trace import Declaration, variant


@dataclass(frozen=True, slots=True)
class Entry:
    """One declaration of a published variant, or one variant with the law that refuses it."""

    row: int
    name: str
    family: str
    formula: str
    remarks: str
    source: str
    inputs: Mapping[str, str]
    defaults: Mapping[str, object]
    declaration: Declaration | None = None
    refusal: LawError | None = None

    @property
    def reason(self) -> str | None:
        """Why the grammar refuses it, or None."""
        return None if self.refusal is None else self.refusal.headline()


@dataclass(frozen=True)
class Family:
    """A file of the catalogue; collects its entries in the order of their declaration."""

    name: str
    entries: list[Entry] = field(default_factory=list)

    def row(self, number: int, source: str) -> Callable[[Declaration], Declaration]:
        """What marks a declaration as row `number` of the catalogue."""

        def mark(declaration: Declaration) -> Declaration:
            node = declaration.node
            formula, remarks = _paragraphs(node.formula)
            self.entries.append(
                Entry(
                    number,
                    node.name,
                    self.name,
                    formula,
                    remarks,
                    source,
                    _inputs(node),
                    dict(node.hyperparameters),
                    declaration,
                )
            )
            return declaration

        return mark

    def refused(
        self, number: int, source: str
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """What marks the natural program of a row that is no sentence of the grammar.

        The program is traced here; the error that stops it is the entry's reason. TypeError where
        nothing stops it.
        """

        def mark(function: Callable[..., Any]) -> Callable[..., Any]:
            formula, remarks = _paragraphs(inspect.getdoc(function) or "")
            try:
                variant(function)
            except LawError as error:
                name = function.__name__
                self.entries.append(
                    Entry(number, name, self.name, formula, remarks, source, {}, {}, refusal=error)
                )
                return function
            raise TypeError(f"{function.__name__} is a sentence of the grammar")

        return mark


def _paragraphs(text: str) -> tuple[str, str]:
    """The formula, on one line, and what follows it."""
    first, _, rest = inspect.cleandoc(text).partition("\n\n")
    return " ".join(first.split()), " ".join(rest.split())


def _inputs(node: Variant) -> dict[str, str]:
    """The shape of each declared input, as text."""
    return {item.name: _shape(item) for item in node.inputs if item.name not in ("q", "k")}


def _shape(item: Input) -> str:
    shape = ", ".join(str(axis) for axis in axes_of(item))
    return f"[{shape}]" + (" of integers" if item.element == "int" else "")

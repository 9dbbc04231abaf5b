"""`gnomon show`: a variant as text, LaTeX or graph."""

from pathlib import Path
from typing import Annotated

import typer

from gnomon.runtime.commands.console import examples, progress_console, write, write_json
from gnomon.runtime.commands.variants import Variant, find

EXAMPLES = examples(
    ("gnomon show fox", "formula, inputs, conventions"),
    ("gnomon show my_variants.py:mine", "a variant of yours"),
    ("gnomon show tapa --latex", "for a paper"),
    ("gnomon show path_fox --svg path_fox.svg", "its graph"),
)


def show(
    variant: Variant,
    latex: Annotated[bool, typer.Option("--latex", help="The formula as LaTeX.")] = False,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Write the graph as SVG.", dir_okay=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object.")] = False,
) -> None:
    """Show a variant's formula, inputs and conventions: text, LaTeX, graph."""
    from gnomon.dsl import show as words
    from gnomon.dsl.signature import axes_of, call_inputs

    node = find(variant).node
    if svg is not None:
        svg.write_text(words.svg(node))
        progress_console().print(f"wrote {svg}", markup=False)
    if as_json:
        write_json(
            {
                "name": node.name,
                "formula": node.formula,
                "digest": words.digest(node),
                "inputs": {x.name: [str(a) for a in axes_of(x)] for x in call_inputs(node)},
                "hyperparameters": dict(node.hyperparameters),
                "text": words.text(node),
                "latex": words.latex(node),
            }
        )
    elif latex:
        write(words.latex(node))
    elif svg is None:
        write(words.text(node))

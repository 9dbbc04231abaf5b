"""`gnomon demo`: the main job from end to end, on a machine with no GPU."""

import importlib.util
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table

from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.nodes import Variant as Node
from gnomon.runtime.commands import check, export
from gnomon.runtime.commands.console import FAILED, console, examples
from gnomon.runtime.commands.variants import find

EXAMPLES = examples(
    ("gnomon demo", "declare, check, print, compile, export, train: four minutes"),
    ("gnomon demo --variant tapa --seconds 20", "a variant of the catalogue, a shorter training"),
)


@dataclass(slots=True)
class Step:
    """One line of the table at the end."""

    name: str
    result: str
    seconds: float
    passed: bool = True


def demo(
    variant: Annotated[
        str | None,
        typer.Option("--variant", metavar="VARIANT", help="Instead of one that nobody published."),
    ] = None,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Where everything goes.", file_okay=False)
    ] = Path("demo_out"),
    seconds: Annotated[float, typer.Option("--seconds", help="Of training.")] = 60.0,
) -> None:
    """Declare a variant, check it, print and compile its kernels, export it, train with it."""
    folder = _examples()
    chosen = variant or f"{folder / 'own_variant.py'}:fading"
    declaration = find(chosen)
    to.mkdir(parents=True, exist_ok=True)
    out, steps = console(), list[Step]()
    for title, run in (
        ("declare", _declare),
        ("check against the float64 oracle", _check),
        ("print the Triton kernels, compile them for sm_90", _compile),
        ("export and run the exported tests", _export),
    ):
        out.rule(f"[bold]{title}")
        begin = time.perf_counter()
        result, passed = run(out, declaration, to)
        steps.append(Step(title, result, time.perf_counter() - begin, passed))
    out.rule(f"[bold]train a byte-level model for {seconds:.0f} seconds")
    steps.append(_train(out, declaration, to, folder, seconds))
    out.rule("[bold]what came of it")
    out.print(_table(steps))
    if not all(step.passed for step in steps):
        raise typer.Exit(FAILED)


def _examples() -> Path:
    """The examples of the checkout that this package runs from."""
    folder = Path(__file__).resolve().parents[2] / "examples"
    if not (folder / "byte_lm.py").is_file():
        raise UnsupportedError(
            "the demo runs the examples of a checkout, and this is an installed wheel",
            "clone the repository and run make demo",
        )
    return folder


# ---- the steps: what they show, (result, passed)


def _declare(out: Console, declaration: Any, to: Path) -> tuple[str, bool]:
    from gnomon.dsl import show

    source = _source(declaration)
    out.print(Panel(Syntax(source, "python", background_color="default"), title="the declaration"))
    node: Node = declaration.node
    out.print(show.text(node).split("\n\n")[0], markup=False)
    (to / f"{node.name}.svg").write_text(show.svg(node))
    (to / f"{node.name}.tex").write_text(show.latex(node) + "\n")
    out.print(
        f"formula as LaTeX [cyan]{to / node.name}.tex[/], graph [cyan]{to / node.name}.svg[/]"
    )
    return f"digest {show.digest(node)}", True


def _source(declaration: Any) -> str:
    import inspect

    return inspect.getsource(declaration.function).rstrip()


def _check(out: Console, declaration: Any, to: Path) -> tuple[str, bool]:
    outcome = check.check_one(declaration.node, check.Place.CPU, quick=True)
    check.print_one(outcome, check.Place.CPU)
    cases = len({(record.dtype, record.case) for record in outcome.records})
    return f"{len(outcome.records)} tensors in {cases} calls", outcome.passed


def _compile(out: Console, declaration: Any, to: Path) -> tuple[str, bool]:
    from gnomon.lowering.pipelines import lower
    from gnomon.runtime.offline import TARGETS
    from gnomon.runtime.reports import reports
    from gnomon.runtime.stages import source

    node: Node = declaration.node
    path = to / f"{node.name}_triton.py"
    path.write_text(source(node, "triton"))
    out.print(f"the kernels [cyan]{path}[/]")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("kernel", "instructions", "registers", "spills", "shared memory"):
        table.add_column(name, justify="left" if name in ("kernel", "instructions") else "right")
    spills = 0
    with out.status("compiling for sm_90, bf16, d = 64"):
        for made in reports(lower(node).kernels, TARGETS["sm_90"], "bf16", 64, 64):
            report = made.report
            spills += report.spills
            numbers = (f"{report.registers}", f"{report.spills} B", f"{report.shared} B")
            table.add_row(made.kernel, " ".join(report.kinds), *numbers)
    out.print(table)
    return f"{len(table.rows)} kernels, {spills} bytes spilled", True


def _export(out: Console, declaration: Any, to: Path) -> tuple[str, bool]:
    node: Node = declaration.node
    folder = to / f"{node.name}_attention"
    written = export.write(node, folder, ["numba", "triton"], None, f"gnomon export {node.name}")
    out.print("\n".join(f"[cyan]{path}[/]" for path in written))
    passed = export.run_tests(folder, quiet=False)
    return f"{len(written)} files, tests {'passed' if passed else 'FAILED'}", passed


def _train(out: Console, declaration: Any, to: Path, folder: Path, seconds: float) -> Step:
    example: Any = _module(folder / "byte_lm.py")
    options = example.Options(seconds=seconds)
    (run,) = example.train_with_progress([declaration], options, out)
    out.print(example.table([run], options))
    path = to / f"{declaration.node.name}_bytes.png"
    example.plot([run], options, path)
    out.print(f"the plot [cyan]{path}[/]")
    result = f"{run.first_bits:.2f} -> {run.bits:.2f} bits a byte on held-out text"
    return Step("train", result, run.seconds, run.bits < run.first_bits)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gnomon_example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _table(steps: list[Step]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("step")
    table.add_column("result")
    table.add_column("seconds", justify="right")
    table.add_column("")
    for step in steps:
        sign = "[green]right[/]" if step.passed else "[red]WRONG[/]"
        table.add_row(step.name, step.result, f"{step.seconds:.0f}", sign)
    return table

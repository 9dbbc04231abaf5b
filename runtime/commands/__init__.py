"""The command line: `gnomon list | show | lower | check | tune | bench | export | demo | doctor`.

Each command is a file of this folder; what takes long to import is imported when a command runs.
"""

from typing import Annotated

import typer

from gnomon.runtime.commands import (
    bench,
    catalogue,
    check,
    demo,
    doctor,
    export,
    lower,
    show,
    tune,
)
from gnomon.runtime.commands.console import Commands, write

HELP = """
A kernel compiler for attention whose positions are encoded inside the score.

A VARIANT is a name of the catalogue, [cyan]fox[/], or a function of a file of yours,
[cyan]my_variants.py:mine[/].
"""

app = typer.Typer(
    cls=Commands,
    help=HELP,
    epilog="Begin with [cyan]gnomon list[/], [cyan]gnomon show fox[/], [cyan]gnomon check fox[/].",
    rich_markup_mode="rich",
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """What stands before a command; its help is that of the app."""
    if version:
        from gnomon.runtime.compile import installed_version

        write(f"gnomon {installed_version()}")
        raise typer.Exit


app.command("list", epilog=catalogue.EXAMPLES)(catalogue.list_variants)
app.command("show", epilog=show.EXAMPLES)(show.show)
app.command("lower", epilog=lower.EXAMPLES)(lower.lower)
app.command("check", epilog=check.EXAMPLES)(check.check)
app.add_typer(tune.app, name="tune")
app.command("bench", epilog=bench.EXAMPLES)(bench.bench)
app.command("export", epilog=export.EXAMPLES)(export.export)
app.command("demo", epilog=demo.EXAMPLES)(demo.demo)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)


def main() -> None:
    """Run the command line on the arguments of the process."""
    app(prog_name="gnomon")

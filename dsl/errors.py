"""Every error of the package, one class each: place and what, source line, what to do, in which function."""

import os
from pathlib import Path

from gnomon.dsl.nodes import Where, origin


class GnomonError(Exception):
    """Whatever this package refuses or fails at."""


def _shown_path(file: str) -> str:
    """The path from the working directory where it lies below it: short, and a link in a terminal."""
    here = os.path.join(os.getcwd(), "")
    return os.path.relpath(file, here) if os.path.isabs(file) and file.startswith(here) else file


class VariantError(GnomonError):
    """The user's variant is wrong: `what` is wrong `where`, and `fix` says what to write instead."""

    def __init__(self, what: str, fix: str, where: Where | None = None) -> None:
        where = where or origin()
        super().__init__(what, fix, where)  # the arguments as they are: it pickles
        self.what, self.fix, self.where = what, fix, where

    def headline(self) -> str:
        return self.what

    def __str__(self) -> str:
        place = f"{_shown_path(self.where.file)}:{self.where.line}"
        lines = [f"{place}: {self.headline()}"]
        lines += [f"    {line}" for line in (self.where.text, self.fix) if line]
        return "\n".join([*lines, f"in {self.where.function}"])


class UnknownWord(VariantError, AttributeError):
    """`gn.` has no such word; an AttributeError, so that hasattr and import keep working."""


class LawError(VariantError):
    """Well formed, but no sentence of the grammar: `law` names the reason."""

    def __init__(self, law: str, what: str, fix: str, where: Where | None = None) -> None:
        super().__init__(what, fix, where)
        self.law = law
        self.args = (law, what, fix, self.where)

    def headline(self) -> str:
        return f"law '{self.law}': {self.what}"


class BrokenLaws(LawError):
    """Several laws of the whole variant are broken; `errors` has each, `law` is the first one's."""

    def __init__(self, errors: tuple[VariantError, ...]) -> None:
        first = errors[0]
        super().__init__(getattr(first, "law", ""), first.what, first.fix, first.where)
        self.errors = errors
        self.args = (errors,)

    def __str__(self) -> str:
        return "\n\n".join(str(error) for error in self.errors)


class CallError(GnomonError, ValueError):
    """The call does not fit the variant: names the argument, what was expected, what came."""


class UnsupportedError(GnomonError):
    """A right variant without a lowering: which node, which pass, which target, what would work."""

    def __init__(
        self, what: str, fix: str, where: Where | None = None, stage: str = "", target: str = ""
    ) -> None:
        super().__init__(what, fix, where, stage, target)
        self.what, self.fix, self.where, self.stage, self.target = what, fix, where, stage, target

    def __str__(self) -> str:
        first, last = self.what, ""
        if self.where is not None:
            first = f"{_shown_path(self.where.file)}:{self.where.line}: {self.what}\n    {self.where.text}"
            last = f"\nin {self.where.function}"
        by = [f"pass {self.stage}"] * bool(self.stage) + [f"target {self.target}"] * bool(
            self.target
        )
        return f"{first}\n    {self.fix}{last}" + (f" ({', '.join(by)})" if by else "")


class CompilerBug(GnomonError):
    """An invariant of the compiler broke: the pass, where its dump lies, the command that repeats it."""

    def __init__(
        self, what: str, stage: str = "", dump: Path | None = None, repeat: str = ""
    ) -> None:
        super().__init__(what, stage, dump, repeat)
        self.what, self.stage, self.dump, self.repeat = what, stage, dump, repeat

    def __str__(self) -> str:
        lines = [
            f"bug in the compiler: {self.what}" + (f" (after {self.stage})" if self.stage else "")
        ]
        lines += [f"    dump: {self.dump}"] if self.dump else []
        lines += [f"    repeat: {self.repeat}"] if self.repeat else []
        return "\n".join([*lines, "    please report this with the variant's source"])

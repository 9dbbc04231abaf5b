"""Every error of the package, one class each: place, what, source line, what to do, function."""

import os
from pathlib import Path

from gnomon.dsl.nodes import Where, origin


class GnomonError(Exception):
    """Whatever this package refuses or fails at."""


def _shown_path(file: str) -> str:
    """The path from the working directory where the file lies below it."""
    here = os.path.join(os.getcwd(), "")
    return os.path.relpath(file, here) if file.startswith(here) else file


class VariantError(GnomonError):
    """The user's variant is wrong: `what` is wrong, `where`, and `fix` says what to write."""

    def __init__(self, what: str, fix: str, where: Where | None = None) -> None:
        where = where or origin()
        super().__init__(what, fix, where)  # the arguments as they are: it pickles
        self.what, self.fix, self.where = what, fix, where

    def headline(self) -> str:
        """What is wrong, with the name of the law if one is broken."""
        return self.what

    def __str__(self) -> str:
        first = f"{_shown_path(self.where.file)}:{self.where.line}: {self.headline()}"
        lines = [f"    {line}" for line in (self.where.text, self.fix) if line]
        return "\n".join([first, *lines, f"in {self.where.function}"])


class UnknownWordError(VariantError, AttributeError):
    """`gn.` has no such word; an AttributeError, so that hasattr and import keep working."""


class LawError(VariantError):
    """Well formed, but no sentence of the grammar: `law` names the reason."""

    def __init__(self, law: str, what: str, fix: str, where: Where | None = None) -> None:
        super().__init__(what, fix, where)
        self.law = law
        self.args = (law, what, fix, self.where)

    def headline(self) -> str:
        """The law and how it is broken."""
        return f"law '{self.law}': {self.what}"


class BrokenLawsError(LawError):
    """Several laws of the whole variant are broken: `errors` has all, `law` the first one's."""

    def __init__(self, errors: tuple[LawError, ...]) -> None:
        first = errors[0]
        super().__init__(first.law, first.what, first.fix, first.where)
        self.errors = errors
        self.args = (errors,)

    def __str__(self) -> str:
        return "\n\n".join(str(error) for error in self.errors)


class InputError(GnomonError, ValueError):
    """A tensor or option of the call is not what the variant declares."""

    def __init__(self, argument: str, expected: str, got: str, fix: str = "") -> None:
        super().__init__(argument, expected, got, fix)
        self.argument, self.expected, self.got, self.fix = argument, expected, got, fix

    def __str__(self) -> str:
        text = f"{self.argument}: expected {self.expected}; got {self.got}"
        return f"{text}\n    {self.fix}" if self.fix else text


class UnsupportedError(GnomonError):
    """A right variant without a lowering: which node, which pass, which target, what would work."""

    def __init__(
        self, what: str, fix: str, where: Where | None = None, stage: str = "", target: str = ""
    ) -> None:
        super().__init__(what, fix, where, stage, target)
        self.what, self.fix, self.where, self.stage, self.target = what, fix, where, stage, target

    def __str__(self) -> str:
        by = ", ".join(
            f"{word} {name}"
            for word, name in (("pass", self.stage), ("target", self.target))
            if name
        )
        what = self.what + (f" ({by})" if by else "")
        if self.where is None:
            return f"{what}\n    {self.fix}"
        return str(VariantError(what, self.fix, self.where))


class CompilerBug(GnomonError):  # noqa: N818  the name says whose error it is
    """An invariant of the compiler broke: the pass, where its dump lies, how to repeat it."""

    def __init__(
        self, what: str, stage: str = "", dump: Path | None = None, repeat: str = ""
    ) -> None:
        super().__init__(what, stage, dump, repeat)
        self.what, self.stage, self.dump, self.repeat = what, stage, dump, repeat

    def __str__(self) -> str:
        after = f" (in {self.stage})" if self.stage else ""
        lines = [f"bug in the compiler{after}: {self.what}"]
        lines += [f"    dump: {self.dump}"] if self.dump else []
        lines += [f"    repeat: {self.repeat}"] if self.repeat else []
        return "\n".join([*lines, "    please report it, with the source of the variant"])

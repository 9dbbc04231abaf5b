"""The identity of a printed kernel: its text with that of every helper it calls, names apart.

Two variants whose kernels differ in names, comments and docstrings only have one digest, so that
what was measured for one holds for the other. Whatever else changes in a kernel, in a helper or in
the printer gives another digest.
"""

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator

from gnomon.lowering import tile
from gnomon.lowering.emit import triton

_LAYOUT = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)


def digest_of(kernel: tile.Kernel, *, descriptors: bool = False) -> str:
    """Sixteen hexadecimal digits that stand for what the kernel does and how."""
    return digest_of_source(triton.print_module([kernel], "One kernel.", descriptors=descriptors))


def digest_of_source(source: str) -> str:
    """The digest of a module: tokens, with the names that it binds numbered as they appear.

    Tokens do not depend on the version of Python, as trees and their text do.
    """
    bound, texts = _bound(ast.parse(source)), _docstrings(source)
    numbers: dict[str, str] = {}
    found = hashlib.sha256()
    before = ""
    for token in _tokens(source):
        text = token.string
        if token.type == tokenize.STRING and token.start in texts:
            continue
        if token.type == tokenize.NAME and text in bound and before != ".":
            text = numbers.setdefault(text, f"n{len(numbers)}")
        elif token.type == tokenize.INDENT:
            text = "indent"
        found.update(f"{text}\0".encode())
        before = token.string
    return found.hexdigest()[:16]


def _tokens(source: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens that say something; where a block begins and ends does."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.INDENT:
            yield token
        elif token.type == tokenize.DEDENT:
            yield token._replace(string="dedent")
        elif token.type not in _LAYOUT:
            yield token


def _bound(tree: ast.Module) -> set[str]:
    """The names of functions, arguments and local values."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _docstrings(source: str) -> set[tuple[int, int]]:
    """Where the strings begin that are statements of their own, and the names in decorators.

    `do_not_specialize` lists arguments by name: their order follows the arguments, so that it says
    nothing that their number does not.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.add((node.value.lineno, node.value.col_offset))
        elif isinstance(node, ast.FunctionDef):
            found |= {
                (part.lineno, part.col_offset)
                for decorator in node.decorator_list
                for part in ast.walk(decorator)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            }
    return found

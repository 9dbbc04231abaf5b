"""Every name that a generated file for a GPU reads is defined in it, imported or Python's own.

A name that only a launch reads fails on the GPU alone: modules for Hopper, tiles by descriptor and
stages of transports among them, are never called on a machine without one.
"""

import builtins
import symtable
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from gnomon.dsl import catalogue
from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.signature import coordinates
from gnomon.lowering.core import Program
from gnomon.lowering.emit.module import Module, print_module
from gnomon.lowering.pipelines import to_kernels, to_program

KNOWN = frozenset((*dir(builtins), "__name__", "__file__"))
FORMS: dict[str, dict[str, Any]] = {
    "padded, 16 bits on Hopper": {"descriptors": True, "width": 64},
    "packed": {"packed": True, "width": 64},
    "positions of the call": {"positions": True, "descriptors": True, "width": 64},
}


def undefined(text: str) -> set[str]:
    """The global names that a text reads anywhere in it and nowhere binds."""
    table = symtable.symtable(text, "<generated>", "exec")
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    bound |= {s.get_name() for s in table.get_symbols() if s.is_namespace()}
    read = {
        symbol.get_name()
        for scope in scopes(table)
        for symbol in scope.get_symbols()
        if symbol.is_referenced() and (scope is table or symbol.is_global())
    }
    return read - bound - KNOWN


def scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from scopes(child)


@cache
def lowered(name: str, positions: bool) -> Program:
    return to_program(catalogue.find(name).node, positions=positions)


def text_of(
    name: str, *, packed: bool = False, positions: bool = False, leaf: int = 128, **options: Any
) -> str:
    """The module that a call on a GPU makes of a row."""
    program = lowered(name, positions)
    kernels = tuple(to_kernels(a, packed=packed) for a in program.attentions)
    padded_form, packed_form = ((), kernels) if packed else (kernels, ())
    made = Module(program, padded_form, packed_form, "triton", "bf16", leaf=leaf, **options)
    return print_module(made)


def names() -> list[str]:
    """The rows that are declared."""
    return [entry.name for entry in catalogue.ENTRIES if entry.declaration is not None]


@pytest.mark.parametrize("name", names())
def test_every_name_is_defined(name: str) -> None:
    try:
        lowered(name, False)
    except UnsupportedError:
        pytest.skip("has no kernels")
    takes_positions = bool(coordinates(catalogue.find(name).node))
    for form, options in FORMS.items():
        if "positions" not in options or takes_positions:
            assert not undefined(text_of(name, **options)), form


def test_both_ways_to_move_along_a_transport_are_among_them() -> None:
    """Without them the test above would not have seen what is missing."""
    for name in ("path", "delta_net", "iplr"):
        assert "class Transport(" in text_of(name, descriptors=True, width=64)
        by_torch = text_of(name, width=64)
        assert "class Transport(" not in by_torch
        assert not undefined(by_torch)
    assert not undefined(text_of("delta_net", descriptors=True, width=96, leaf=64))


def test_names_that_nothing_defines_are_found() -> None:
    assert undefined("import a\ndef f(x):\n    return g(x, y) + a.b(len(x))") == {"g", "y"}
    assert undefined("K = 1\nclass C:\n    z = K\n    def f(self):\n        return z, C") == {"z"}
    assert undefined("def f():\n    return [u for u in v]\nw") == {"v", "w"}

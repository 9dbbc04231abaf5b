"""Declarations broken in one place: the kinds must catch every slip that changes a kind."""

import inspect
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnomon as gn
from gnomon.dsl import catalogue
from gnomon.dsl.trace import Declaration

Mutant = tuple[str, str, str, Declaration, str]  # slip, variant, argument, declaration, source

MUTATIONS = {
    "dot reads the key at the query": (r"gn\.dot\(q, k", "gn.dot(k, q"),
    "dot of two queries": (r"gn\.dot\(q, k", "gn.dot(q, q"),
    "token vector becomes a scalar": (r"Token\[(\w+), (Dim|Plane|Path)\]", r"Token[\1]"),
    "token scalar becomes a vector": (r"Token\[(Head|KVHead)\]", r"Token[\1, gn.Dim]"),
    "parameter scalar becomes a vector": (r"Param\[Head\]", "Param[gn.Head, gn.Dim]"),
    "token becomes a query value": (r"Token\[", "Query["),
    "decay forgotten": (r"gn\.decay\((log_\w+|a \* dt)\)", r"(\1)"),
    "place forgotten": (r"gn\.(?:at_key|at_query)\(", "("),
    "householder becomes outer": (r"gn\.householder\(", "gn.outer("),
    "mask forgotten": (r", mask=gn\.causal\(\)\)", ")"),
    "split forgotten on k": (r"gn\.split\(q(\w*)(, \w+)?\), gn\.split\(k", r"gn.split(q\1\2), (k"),
    "normaliser forgotten": (r"return gn\.softmax\((.*), mask=gn\.causal\(\)\)", r"return \1"),
}
# one number for all planes, or for all channels of kappa, is a sensible program
LEGAL = {
    ("token vector becomes a scalar", "selective_rope", "step"),
    ("token vector becomes a scalar", "rwkv7_linear", "a"),
}


def mutants() -> list[Mutant]:
    """Each place of each declaration where a mutation applies, with the source that it makes."""
    found: list[Mutant] = []
    for entry in catalogue.ENTRIES:
        if entry.declaration is None:
            continue
        source = inspect.getsource(entry.declaration.function)
        for what, (pattern, replacement) in MUTATIONS.items():
            for match in re.finditer(pattern, source):
                new = source[: match.start()] + match.expand(replacement) + source[match.end() :]
                argument = (re.findall(r"(\w+): ", source[: match.start()]) or [""])[-1]
                found.append((what, entry.name, argument, entry.declaration, new))
    return found


MUTANTS = mutants()


def traced(declaration: Declaration, source: str) -> None:
    space = {**declaration.function.__globals__, **{n: getattr(gn, n) for n in ("Query", "Param")}}
    exec(compile(source, "mutant.py", "exec"), space)


@given(st.sampled_from(MUTANTS))
@settings(max_examples=400)
def test_a_slip_that_changes_a_kind_is_refused(mutant: Mutant) -> None:
    *slip, declaration, source = mutant
    if tuple(slip) in LEGAL:
        traced(declaration, source)
        return
    with pytest.raises((gn.VariantError, TypeError)) as caught:
        traced(declaration, source)
    if isinstance(caught.value, TypeError):  # Python itself counts the arguments
        assert re.search("'mask'|'normalize'", str(caught.value))


def test_every_mutation_applies_somewhere() -> None:
    assert {what for what, *_ in MUTANTS} == set(MUTATIONS)
    assert len(MUTANTS) >= 300


def test_the_unbroken_sources_trace() -> None:
    for declaration in {id(d): d for *_, d, _ in MUTANTS}.values():
        traced(declaration, inspect.getsource(declaration.function))

"""What may stand in a program after each pass; what breaks it is a bug of that pass.

A program in normal form has the leaves of `lowering/core.py` in its pair formulas, and every stream
that a formula names. A tile program names only what is in scope, gives a name once, loads from
inputs, stores to outputs, and has types that fit. Both checks run after every pass, always: the
programs are small.
"""

from collections.abc import Iterator

from gnomon.dsl.errors import CompilerBug
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import ATTENTIONS, Apply, Constant, Expr, Lookup, Mask, Node, Sum, walk
from gnomon.lowering import legal_tile
from gnomon.lowering.core import (
    Anchored,
    Attention,
    Given,
    Index,
    Output,
    PairDot,
    Program,
    Read,
    Stream,
    TransportDot,
)
from gnomon.lowering.tile import Kernel

_PAIR: frozenset[type[Node]] = frozenset(
    {Apply, Constant, Sum, Lookup, Read, PairDot, TransportDot, Anchored, Index}
)

AFTER: dict[str, frozenset[type[Node]]] = {
    "split_prologue": _PAIR,
    "drop_row_constants": _PAIR,
    "rescale_ratio": _PAIR | {Given},
}
"""The nodes that a pair formula may have after a pass."""


def verify_program(program: Program, stage: str) -> Program:
    """The program itself. Raises CompilerBug, naming the pass, where it is not legal after it."""
    for attention in program.attentions:
        _raise(_attention(attention, stage), attention.name, stage)
    _raise(_epilogue(program), program.variant.name, stage)
    return program


def verify_kernel(kernel: Kernel, stage: str) -> Kernel:
    """The kernel itself. Raises CompilerBug, naming the pass, where it is not legal after it."""
    _raise(legal_tile.broken(kernel, all_read=stage == "remove_dead"), kernel.name, stage)
    return kernel


def _raise(broken: Iterator[str], name: str, stage: str) -> None:
    found = list(dict.fromkeys(broken))
    if found:
        raise CompilerBug(f"{name}: {'; '.join(found)}", stage)


def _attention(attention: Attention, stage: str) -> Iterator[str]:
    names = [stream.name for stream in attention.streams]
    if len(set(names)) != len(names):
        yield f"two streams of one name among {', '.join(names)}"
    for stream in attention.streams:
        of_pair = stream.role in ("version", "near")  # made of the whole dot
        place = "pair" if of_pair else stream.place
        if stream.place != "constant" and kind(stream.value).place != place:
            yield f"the stream {stream.name} holds a {kind(stream.value).place} value"
    formulas = (attention.weight, attention.denominator, attention.exponent, attention.row_term)
    for formula in formulas:
        if formula is not None:
            yield from _formula(formula, attention, stage)
    if attention.row_term is not None:
        for leaf in walk(attention.row_term):
            if _reads_key(leaf):
                yield "the row term reads a key"
    for operand in _operands(attention.mask):
        yield from _streams(operand, attention)


def _formula(formula: Expr, attention: Attention, stage: str) -> Iterator[str]:
    for node in walk(formula):
        if type(node) not in AFTER[stage]:
            yield f"a pair formula holds {type(node).__name__}"
        yield from _streams(node, attention)
        match node:
            case Lookup(Read(stream), _) if stream.role != "table":
                yield f"a look-up in {stream.name}, which is no table"
            case PairDot(row, column) | TransportDot(row, column, _) if (
                row.place,
                column.place,
            ) != ("row", "column"):
                yield f"a dot of {row.place} {row.name} and {column.place} {column.name}"


def _streams(node: Node, attention: Attention) -> Iterator[str]:
    named: tuple[Stream, ...] = ()
    match node:
        case Read(stream):
            named = (stream,)
        case PairDot(a, b) | Anchored(a, b):
            named = (a, b)
        case TransportDot(a, b, c):
            named = (a, b, c)
    for stream in named:
        if stream not in attention.streams:
            yield f"the stream {stream.name} is not among the attention's"


def _operands(mask: Mask) -> Iterator[Node]:
    for operand in mask.operands:
        if isinstance(operand, Mask):
            yield from _operands(operand)
        elif isinstance(operand, Node):
            yield operand


def _reads_key(node: Node) -> bool:
    match node:
        case Read(stream) | Anchored(stream, _):
            return stream.place == "column"
        case Index(place):
            return place == "column"
    return isinstance(node, PairDot | TransportDot)


def _epilogue(program: Program) -> Iterator[str]:
    for node in walk(program.epilogue):
        if isinstance(node, ATTENTIONS):
            yield f"the epilogue holds {type(node).__name__}"
        if isinstance(node, Output) and node.k >= len(program.attentions):
            yield f"the epilogue reads o_{node.k + 1} of {len(program.attentions)} attentions"

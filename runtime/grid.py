"""The grid of calls on which a compiled variant is compared with the oracle.

Ragged lengths, shared key heads, d_v != d, strides, queries that are fewer or more than the keys,
packed sequences with empty ones, 16-bit inputs, and data where the far past matters.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from gnomon.dsl.errors import InputError
from gnomon.dsl.nodes import Mask, Variant, walk
from gnomon.dsl.signature import call_inputs, check_call, coordinates
from gnomon.runtime.sample import Shape, roles_of

On = Literal["cpu", "cuda", "interpreter"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WIDTHS = (16, 32, 64, 128, 24, 48, 96)
"""Channels to try: a formula may ask for a multiple of something."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call.

    packed     lengths of the query and key sequences; batch 1, `shape` has their sums
    strided    inputs that are views into larger tensors, heads before time, every second channel
    expanded   the gradient of the output has no memory of its own
    far        data where what happened long ago matters
    lse        has a gradient of its own, where the formula has one
    positions  given by the caller, with gaps
    """

    name: str
    shape: Shape
    dtype: str = "fp32"
    packed: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    strided: bool = False
    expanded: bool = False
    far: bool = False
    lse: bool = False
    positions: bool = False

    @property
    def time_q(self) -> int:
        """The number of queries."""
        return self.shape.time if self.shape.queries is None else self.shape.queries


def cases(variant: Variant, on: On = "cpu", *, quick: bool = False) -> tuple[Case, ...]:
    """The calls that suit a variant. Numba compiles once for each (dtype, packed) of them."""
    width = _width(variant)
    found = list(_small(variant) if on == "interpreter" else _padded(variant))
    found += _packed(variant, small=on == "interpreter")
    if not quick:
        found += _sixteen_bits(variant, on)
        if coordinates(variant) == (None,):
            found.append(Case("positions with gaps", Shape(time=33), positions=True))
    return tuple(replace(c, shape=replace(c.shape, dim=width)) for c in found)


def _padded(variant: Variant) -> Iterator[Case]:
    yield Case("one token", Shape(1, 1, 1, 1))
    yield Case("17 tokens, a key head a query head", Shape(time=17, heads=2, kv_heads=2))
    yield Case("64 tokens, 4 query heads a key head", Shape(time=64, heads=4, kv_heads=1))
    yield Case("65 tokens, d_v = 24", Shape(time=65, value_dim=24))
    yield Case("130 tokens, strided inputs", Shape(time=130, heads=2, kv_heads=1), strided=True)
    yield Case("130 tokens, gradient of lse", Shape(1, 130, 2, 1), lse=True)
    yield Case("300 tokens, expanded gradient", Shape(1, 300, 2, 1), expanded=True)
    yield Case("33 queries, 130 keys", Shape(time=130, queries=33))
    if not _wants_all_keys(variant):
        yield Case("65 queries, 17 keys", Shape(time=17, queries=65, value_dim=8))
    if roles_of(variant).far:
        yield Case("far field, 300 tokens", Shape(1, 300, 2, 2), far=True)
    edge = _longest_stretch(variant)
    if edge > 300:
        yield Case(f"edge of {edge} keys", Shape(1, edge + 70, 2, 1, queries=130))


def _packed(variant: Variant, *, small: bool) -> Iterator[Case]:
    lengths = (0, 5, 1, 0, 18) if small else (0, 17, 1, 65, 0, 130)
    heads = Shape(1, sum(lengths), 2, 1) if small else Shape(1, sum(lengths), 4, 2)
    yield Case("packed, empty sequences too", heads, packed=(lengths, lengths))
    fewer = tuple(-(-n // 3) for n in lengths)
    shape = replace(heads, queries=sum(fewer), value_dim=24)
    yield Case("packed, fewer queries, d_v = 24", shape, packed=(fewer, lengths), lse=True)
    if roles_of(variant).far and not small:
        yield Case("packed, far field", heads, packed=(lengths, lengths), far=True)


def _sixteen_bits(variant: Variant, on: On) -> Iterator[Case]:
    # Triton's interpreter computes bf16 wrongly without a word
    for dtype in ("fp16",) if on == "interpreter" else ("bf16", "fp16"):
        if on == "interpreter":
            yield Case("20 tokens", Shape(1, 20, 2, 1), dtype)
            continue
        yield Case("130 tokens, d_v = 24", Shape(time=130, value_dim=24), dtype)
        yield Case("33 queries, 65 keys, strided", Shape(time=65, queries=33), dtype, strided=True)
        if roles_of(variant).far:
            yield Case("far field, 300 tokens", Shape(1, 300, 2, 2), dtype, far=True)
        if on == "cuda":
            lengths = (0, 17, 1, 65, 0, 130)
            packed = (lengths, lengths)
            yield Case("packed, empty sequences too", Shape(1, 213), dtype, packed=packed)


def _small(variant: Variant) -> Iterator[Case]:
    """The interpreter takes milliseconds an instruction."""
    yield Case("one token", Shape(1, 1, 1, 1))
    yield Case("33 tokens, d_v = 24, strided", Shape(1, 33, 2, 1, value_dim=24), strided=True)
    yield Case("5 queries, 20 keys", Shape(1, 20, 2, 2, queries=5), expanded=True, lse=True)
    if not _wants_all_keys(variant):
        yield Case("20 queries, 5 keys", Shape(1, 5, 2, 1, queries=20))
    if roles_of(variant).far:
        yield Case("far field, 33 tokens", Shape(1, 33, 1, 1), far=True)


def _wants_all_keys(variant: Variant) -> bool:
    """Whether something has one row for every token, so that queries cannot outnumber the keys."""
    has_tokens = any(x.place == "token" for x in variant.inputs)
    return has_tokens or any(name is not None for name in coordinates(variant))


def _longest_stretch(variant: Variant) -> int:
    """The largest number of keys that a mask of the formula counts."""
    sizes = [
        n
        for node in walk(variant.output)
        if isinstance(node, Mask) and node.rule in ("window", "first_keys", "selected_blocks")
        for n in node.operands
        if isinstance(n, int)
    ]
    return max(sizes, default=0)


def _width(variant: Variant) -> int:
    """A number of channels that the formula takes."""
    refused: InputError | None = None
    for width in WIDTHS:
        shape = Shape(dim=width)
        shapes = {x.name: shape.of(x) for x in call_inputs(variant)}
        try:
            check_call(variant, shapes)
        except InputError as error:
            refused = refused or error
        else:
            return width
    assert refused is not None
    raise refused

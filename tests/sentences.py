"""Random small sentences of the grammar, each as the text of a declaration that one could write.

sentences()               a hypothesis strategy of Sentence: its `.source`, its `.declaration`
situations(declaration)   a strategy of calls that suit it: shapes, packing, positions, tiles
"""

import linecache
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from hypothesis import strategies as st
from sentence_writer import Draw, Writer
from torch import Tensor

from gnomon.dsl.signature import coordinates
from gnomon.dsl.trace import Declaration
from gnomon.runtime.sample import Shape


@dataclass(frozen=True)
class Sentence:
    """A declaration: its text, shown as such where a test fails, and what comes of it."""

    source: str

    @cached_property
    def declaration(self) -> Declaration:
        """The text, run; errors show its lines."""
        file = f"<sentence {abs(hash(self.source)):x}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(True), file)
        scope: dict[str, Any] = {}
        exec(compile(self.source, file, "exec"), scope)
        made: Declaration = scope["made"]
        return made

    def __repr__(self) -> str:
        return f"\n{self.source}"


@st.composite
def sentences(draw: Draw[Any]) -> Sentence:
    """A random declaration."""
    return Sentence(Writer(draw).text())


@dataclass(frozen=True)
class Situation:
    """A call and its tiles.

    packed     lengths of the query and key sequences; `shape` has their sums
    positions  whether the caller gives them, with gaps
    lse        whether the log-sum-exp has a gradient too
    """

    shape: Shape
    tiles: tuple[int, int] = (8, 4)
    packed: tuple[tuple[int, int], ...] | None = None
    positions: bool = False
    lse: bool = True
    seed: int = 0

    def options(self) -> dict[str, Tensor]:
        """The keywords of the call."""
        made = {}
        if self.packed is not None:
            for side, name in enumerate(("cu_seqlens_q", "cu_seqlens_k")):
                lengths = torch.tensor([0, *(pair[side] for pair in self.packed)])
                made[name] = lengths.cumsum(0)
        if self.positions:
            random = torch.Generator().manual_seed(self.seed)
            gaps = torch.randint(1, 3, (self.shape.batch, self.shape.time), generator=random)
            made["positions"] = gaps.cumsum(1) - 1
        return made


@st.composite
def situations(draw: Draw[Any], declaration: Declaration, longest: int = 20) -> Situation:
    """A call that suits a sentence."""
    variant = declaration.node
    positions = coordinates(variant) == (None,) and draw(st.booleans())
    tied = positions or any(x.place == "token" for x in variant.inputs)

    def lengths(least: int) -> tuple[int, int]:
        keys = draw(st.integers(least, longest))
        other = draw(st.integers(least, keys if tied else longest))
        return (keys if draw(st.booleans()) else other), keys

    packed = None
    if draw(st.booleans()):
        packed = tuple(lengths(0) for _ in range(draw(st.integers(1, 4))))
        queries, keys = (sum(pair[side] for pair in packed) for side in (0, 1))
    else:
        queries, keys = lengths(1)
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    shape = Shape(
        batch=1 if packed else draw(st.integers(1, 2)),
        time=keys,
        queries=queries,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        dim=8 * draw(st.integers(1, 3)),
        value_dim=8 * draw(st.integers(1, 3)),
        entries=draw(st.integers(1, 9)),
    )
    tiles = draw(st.sampled_from((8, 4, 16))), draw(st.sampled_from((8, 4, 16)))
    seed = draw(st.integers(0, 99))
    return Situation(shape, tiles, packed, positions, draw(st.booleans()), seed)

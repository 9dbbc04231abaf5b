"""Pair formulas in normal form for tests: leaves to build them from, their value in float64."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from gnomon.dsl.nodes import Apply, Constant, Expr, Input, Lookup, Mask, PrefixSum, Sum, Width
from gnomon.lowering.core import Anchored, Attention, Index, PairDot, Read, Role, Stream
from gnomon.lowering.passes.differentiate import apply

Place = Literal["row", "column", "constant"]
PAIRS = 7
CHANNELS = 5


def stream(
    name: str, place: Place, role: Role = "scalar", *, differentiable: bool = True
) -> Stream:
    """A shared stream; vectors have the width h, tables one axis of entries."""
    axes: dict[str, tuple[Width, ...]] = {
        "dot": (Width.of("d"),),
        "vector": (Width.of("h"),),
        "table": (Width.of(f"{name}.0"),),
    }
    own = axes.get(role, ())
    where: Any = {"row": "row", "column": "column", "constant": "constant"}[place]
    value: Expr = Input(name, where, None, own, "real")
    if role == "prefix":
        value = PrefixSum(Input(name, "token", None, (), "real"), inclusive=True)
    dtype: Any = {"dot": "io"}.get(role, "f32")
    return Stream(name, place, None, own, dtype, role, value, differentiable)


Q, K = stream("q", "row", "dot"), stream("k", "column", "dot")
P_Q, P_K = stream("p_q", "row", "prefix"), stream("p_k", "column", "prefix")
DOT = PairDot(Q, K)
ROW, COLUMN = Read(stream("a", "row")), Read(stream("b", "column"))
NUMBER = Read(stream("c", "constant"))
SCALE = Read(stream("scale", "constant", "host", differentiable=False))
FROM, TO = Anchored(P_Q, P_Q), Anchored(P_K, P_Q)
TABLE = stream("table", "constant", "table")
HIDDEN = Read(stream("w", "constant", "vector"))
AT_QUERY, AT_KEY = Index("row"), Index("column")


def softmax(weight: Expr, mask: Mask | None = None, *, row_term: Expr | None = None) -> Attention:
    """An attention whose streams are those of its formulas."""
    return _attention("softmax", weight, None, mask, row_term)


def ratio(weight: Expr, denominator: Expr, exponent: Expr | None = None) -> Attention:
    """A ratio of two sums."""
    return _attention("ratio", weight, denominator, None, None, exponent)


def _attention(
    normaliser: Literal["softmax", "ratio"],
    weight: Expr,
    denominator: Expr | None,
    mask: Mask | None,
    row_term: Expr | None,
    exponent: Expr | None = None,
) -> Attention:
    formulas = [f for f in (weight, denominator, row_term, exponent) if f is not None]
    streams = tuple(dict.fromkeys(s for f in formulas for s in streams_of(f)))
    shown = Mask("causal", (False,)) if mask is None else mask
    return Attention(
        "made", normaliser, weight, denominator, row_term, None, exponent, 0.0, shown, streams
    )


def streams_of(formula: Expr) -> list[Stream]:
    """The streams that a formula names, in order of first use."""
    match formula:
        case Read(of):
            return [of]
        case PairDot(a, b):
            return [a, b]
        case Anchored(of, anchor):
            return [anchor, of]
    children = (child for child in formula.children() if isinstance(child, Expr))
    return [found for child in children for found in streams_of(child)]


# ---- values


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "//": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "**": torch.pow,
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "cos_turns": lambda x: torch.cos(2 * math.pi * x),
    "sin_turns": lambda x: torch.sin(2 * math.pi * x),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "log_sigmoid": torch.nn.functional.logsigmoid,
    "softplus": torch.nn.functional.softplus,
    "relu": torch.relu,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "clip": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
    "floor": torch.floor,
    "detach": Tensor.detach,
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "==": torch.eq,
    "where": torch.where,
}


def evaluate(formula: Expr, leaves: Mapping[Expr, Tensor]) -> Tensor:
    """The value of a formula, [pairs] or [pairs, channels], from the values of its leaves."""
    if formula in leaves:
        return leaves[formula]
    match formula:
        case Constant(number):
            return torch.tensor(float(number), dtype=torch.float64)
        case Sum(x):
            return evaluate(x, leaves).sum(-1)
        case Lookup(Read() as table, index):
            entries = leaves[table]
            places = [evaluate(x, leaves).floor().long() for x in index]
            sizes = entries.shape[1:]
            inside = (p.clamp(0, size - 1) for p, size in zip(places, sizes, strict=True))
            return entries[torch.arange(len(entries)), *inside]
        case Apply(fn, args):
            return FUNCTIONS[fn](*aligned([evaluate(arg, leaves) for arg in args]))
    raise KeyError(f"no value for {formula!r}")


def aligned(values: list[Tensor]) -> list[Tensor]:
    """Numbers of the pair beside vectors of the pair get a channel axis."""
    widest = max(x.ndim for x in values)
    return [x[..., None] if x.ndim == 1 and widest == 2 else x for x in values]


def random_leaves(formula: Expr, seed: int = 0, *, positive: bool = False) -> dict[Expr, Tensor]:
    """Values for every leaf: one for each pair, a vector for channels, entries for a table."""
    random = torch.Generator().manual_seed(seed)
    found: dict[Expr, Tensor] = {}
    for leaf in leaves_of(formula):
        sizes: dict[str, tuple[int, ...]] = {"vector": (PAIRS, CHANNELS), "table": (PAIRS, 9)}
        shape = sizes.get(leaf.stream.role, (PAIRS,)) if isinstance(leaf, Read) else (PAIRS,)
        x = torch.randn(shape, generator=random, dtype=torch.float64)
        if isinstance(leaf, Index):
            x = torch.randint(0, 9, shape, generator=random).double()
        found[leaf] = x.abs() + 0.1 if positive and not isinstance(leaf, Index) else x
    return found


def leaves_of(formula: Expr) -> list[Expr]:
    """Everything a formula is made from, once each."""
    if isinstance(formula, (Read, PairDot, Anchored, Index)):
        return [formula]
    children = (child for child in formula.children() if isinstance(child, Expr))
    return list(dict.fromkeys(leaf for child in children for leaf in leaves_of(child)))


# ---- random formulas

_TERMS = st.sampled_from([DOT, ROW, COLUMN, NUMBER, SCALE, FROM, TO, Constant(0.5)])


def _grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    two = st.tuples(st.sampled_from(["+", "-", "*", "+", "-"]), inner, inner)
    one = st.tuples(st.sampled_from(["neg", "tanh", "relu", "cos_turns"]), inner)
    return st.one_of(
        two.map(lambda t: apply(*t)),
        one.map(lambda t: apply(*t)),
        st.tuples(inner, inner, inner).map(lambda t: apply("where", apply("<", t[0], 0.1), *t[1:])),
    )


FORMULAS: st.SearchStrategy[Expr] = st.recursive(_TERMS, _grown, max_leaves=8)

"""Random tensors for a call of any variant, of values that suit the roles of its inputs.

Gates are logarithms below 0, directions of a reflection have length 1, documents never fall along
the sequence, coordinates lie on a grid; what stands in a logarithm, a root, a real power or a
quotient is in (0.2, 1); any other input is normal, or uniform in its range.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    Apply,
    Builtin,
    Decay,
    Diagonal,
    Expr,
    Input,
    Mask,
    Node,
    Outer,
    PrefixSum,
    Rotation,
    Variant,
    walk,
)
from gnomon.dsl.signature import summed_inputs
from gnomon.dsl.trace import Declaration

SIZES: Mapping[str, int] = {"Repeat": 2, "Model": 8, "Rope": 8, "Hidden": 6, "Path": 4, "Sub": 4}
"""The sizes of axes of the catalogue; another axis has 4."""

RANGES: Mapping[str, tuple[float, float]] = {
    "beta": (0.0, 2.0),
    "c": (0.5, 1.5),
    "damping": (1.0, 2.0),
    "dt": (0.1, 1.0),
    "f": (0.1, 0.9),
    # rates of a distance: below 0 the farthest key gets all weight, do . v - do . o cancels, and
    # what is left of its digits is multiplied by the distance
    "omega": (0.0, 1.0),
    "slope": (0.0, 1.0),
    "r1": (0.2, 1.0),
    "r2": (0.2, 1.5),
    "stretch": (1.0, 4.0),
    "threshold": (4.0, 8.0),
}
"""The inputs of the catalogue whose formula asks for a range."""


@dataclass(frozen=True)
class Shape:
    """The sizes of one problem; `queries` and `value_dim` are time and dim where not given."""

    batch: int = 2
    time: int = 20
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    value_dim: int | None = None
    queries: int | None = None
    entries: int = 40

    def of(self, given: Input) -> tuple[int, ...]:
        """The shape of the tensor of an input."""
        sizes = {"d": self.dim, "d_v": self.value_dim or self.dim, "Block": self.dim // 4, **SIZES}
        for symbol in {symbol for axis in given.axes for symbol, _ in axis.parts if symbol != "1"}:
            sizes.setdefault(symbol, self.entries if "." in symbol else 4)
        queries = self.time if self.queries is None else self.queries
        time = {"constant": (), "row": (self.batch, queries)}
        heads = {None: (), "Head": (self.heads,), "KVHead": (self.kv_heads,)}
        return (
            *time.get(given.place, (self.batch, self.time)),
            *heads[given.heads],
            *(axis.size(sizes) for axis in given.axes),
        )


@dataclass
class Roles:
    """In which roles the inputs of a variant stand, by name."""

    directions: set[str] = field(default_factory=set)  # w, u of an outer product
    beside: dict[str, str] = field(default_factory=dict)  # u of an outer product -> its w
    scales: set[str] = field(default_factory=set)  # beta of an outer product
    decays: set[str] = field(default_factory=set)  # logarithms, below 0
    positive: set[str] = field(default_factory=set)  # inside a logarithm and the like
    summed: set[str] = field(default_factory=set)  # along the sequence
    narrow: frozenset[str] = frozenset()  # tensors that have the dtype of the call; others fp32
    coordinates: set[str] = field(default_factory=set)
    block_size: dict[str, int] = field(default_factory=dict)  # of the lists of selected blocks

    @property
    def far(self) -> bool:
        """Whether what stands between two tokens acts on them."""
        return bool(self.directions or self.summed)


def roles_of(variant: Variant) -> Roles:
    """The roles of the inputs, read off the formula."""
    vectors = {x.name for x in variant.inputs if x.axes and x.place != "constant"}
    found = Roles(narrow=frozenset({"q", "k", "v"} | (vectors - summed_inputs(variant))))
    for node in walk(variant):
        match node:
            case Outer(w, u, scale):
                found.directions |= _inputs(w, u)
                if isinstance(w, Input) and isinstance(u, Input) and w != u:
                    found.beside[u.name] = w.name
                found.scales |= _inputs(scale)
            case Diagonal(x) | Decay(x):
                found.decays |= _inputs(x)
            case Rotation(x) | PrefixSum(x):
                found.summed |= _inputs(x)
            case Apply(fn, args) if fn in _POSITIVE:
                found.positive |= {name for n in _POSITIVE[fn] for name in _bare(args[n])}
            case Builtin("position", str(coordinate)):
                found.coordinates.add(coordinate)
            case Mask("selected_blocks", (Node() as blocks, int(size))):
                found.block_size |= dict.fromkeys(_inputs(blocks), size)
            case _:
                pass
    found.summed |= found.decays
    found.positive -= {"q", "k"}
    return found


_POSITIVE: Mapping[str, tuple[int, ...]] = {
    "log": (0,),
    "sqrt": (0,),
    "rsqrt": (0,),
    "**": (0,),
    "/": (1,),
}
"""Function -> the places of the arguments that must be above 0, or not near it."""
_KEEPS_POSITIVE = ("softplus", "sigmoid", "exp", "abs", "where", "maximum", "clip")


def _bare(x: Node) -> Iterator[str]:
    """The inputs below a value that no function keeps in a range of its own."""
    if isinstance(x, Input):
        yield x.name
    elif not _is_safe(x):
        for child in x.children():
            yield from _bare(child)


def _is_safe(x: Node) -> bool:
    """Whether a value is not what the inputs below it are: a function's, or an attention's."""
    if isinstance(x, Apply) and x.fn in _KEEPS_POSITIVE:
        return True
    return isinstance(x, Expr) and kind(x).is_output


def _inputs(*roots: Node) -> set[str]:
    return {node.name for root in roots for node in walk(root) if isinstance(node, Input)}


@dataclass(frozen=True)
class Sampler:
    """Draws the tensors of a call.

    far     gates near 1 with a few near 0, reflections of few directions with beta near 2: what
            happened long ago still matters
    ranges  name -> (low, high) of inputs whose formula asks for one
    """

    shape: Shape
    seed: int = 0
    far: bool = False
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def tensors(self, variant: Variant, dtype: torch.dtype) -> dict[str, Any]:
        """q, k, v, the inputs, and `positions` where a formula has coordinates.

        Vectors of tokens have the given dtype; scalars, parameters and what a call must give in
        fp32 (`signature.summed_inputs`) are fp32 at least.
        """
        shape, roles = self.shape, roles_of(variant)
        random = torch.Generator().manual_seed(self.seed)
        made: dict[str, Any] = {x.name: self.draw(x, roles, random) for x in variant.inputs}
        size = (shape.batch, shape.time, shape.kv_heads, shape.value_dim or shape.dim)
        for name, other in roles.beside.items():
            # a product of steps with other directions grows without bound along the sequence
            near = made[other] + 0.05 * torch.randn(made[name].shape, generator=random).double()
            made[name] = functional.normalize(near, dim=-1)
        made["v"] = torch.randn(size, generator=random, dtype=torch.float64)
        wide = torch.promote_types(dtype, torch.float32)
        for name, tensor in made.items():
            if tensor.is_floating_point():
                made[name] = tensor.to(dtype if name in roles.narrow else wide)
        if roles.coordinates:
            made["positions"] = grid(roles.coordinates, shape)
        return made

    def draw(self, given: Input, roles: Roles, random: torch.Generator) -> Tensor:
        """Float64 or int64 values that suit the role of an input."""
        size = self.shape.of(given)
        if given.element == "int":
            return self._integers(given, size, roles, random)
        if given.name in roles.decays and self.far and given.name not in RANGES:
            small = -0.05 * torch.rand(size, generator=random, dtype=torch.float64)
            is_cut = torch.rand(size, generator=random) < 0.02
            return torch.where(is_cut, -40.0, small)
        low, high = self._range(given.name, roles)
        if low < high:
            return low + (high - low) * torch.rand(size, generator=random, dtype=torch.float64)
        x = torch.randn(size, generator=random, dtype=torch.float64)
        if given.name in roles.decays:
            return functional.logsigmoid(x)
        if given.name in roles.directions:
            if self.far and given.place != "constant":  # three directions, one after another
                x = x[:, torch.arange(size[1]) % 3]
            return functional.normalize(x, dim=-1)
        if given.place != "constant" or len(given.axes) < 2:
            return x
        # a matrix that all tokens share keeps the size of a vector; q M k is a number of size 1
        is_form = given.axes[-1] == given.axes[-2]
        return x / (size[-1] if is_form else math.sqrt(size[-1]))

    def _range(self, name: str, roles: Roles) -> tuple[float, float]:
        if name in self.ranges:
            return self.ranges[name]
        if self.far and name in roles.scales:
            return 1.9, 2.0
        return RANGES.get(name, (0.2, 1.0) if name in roles.positive else (0.0, 0.0))

    def _integers(
        self, given: Input, size: tuple[int, ...], roles: Roles, random: torch.Generator
    ) -> Tensor:
        if given.name in roles.block_size:
            blocks = -(-self.shape.time // roles.block_size[given.name])
            few = (*size[:-1], min(size[-1], 2))  # many would select everything
            return torch.randint(max(blocks, 1), few, generator=random)
        axis = 1 if len(size) > 1 else 0
        return torch.randint(4, size, generator=random).sort(dim=axis).values


def small_tensors(
    variant: Declaration | Variant,
    shape: Shape | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    requires_grad: bool = False,
    **sizes: int,
) -> dict[str, Any]:
    """Tensors for one call of a variant: q, k, v, inputs, positions.

    Sizes are the fields of `Shape`: small_tensors(fox, time=33).
    """
    node = variant.node if isinstance(variant, Declaration) else variant
    made = Sampler(shape or Shape(**sizes), seed).tensors(node, dtype)
    for tensor in made.values():
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            tensor.requires_grad_(requires_grad)
    return made


def grid(coordinates: set[str], shape: Shape) -> dict[str, Tensor]:
    """Positions on a square of patches: y the row, x the column, every other name the order."""
    order, side = torch.arange(shape.time), math.isqrt(max(shape.time - 1, 0)) + 1
    places = {"y": order // side, "x": order % side}
    return {
        name: places.get(name, order).expand(shape.batch, -1).clone()
        for name in sorted(coordinates)
    }

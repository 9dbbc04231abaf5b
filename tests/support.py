"""What tests of several folders share: comparing tensors, and inputs that suit a variant."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gnomon.dsl import nodes

SIZES = {"Repeat": 2, "Model": 8, "Rope": 8, "Hidden": 6, "Path": 4, "Sub": 4}
# inputs whose formula asks for a range; what no row and no rule names is normal
RANGES = {
    "beta": (0.0, 2.0),
    "c": (0.5, 1.5),
    "damping": (1.0, 2.0),
    "dt": (0.1, 1.0),
    "f": (0.1, 0.9),
    "r1": (0.2, 1.0),
    "r2": (0.2, 1.5),
    "stretch": (1.0, 4.0),
    "threshold": (4.0, 8.0),
}


def rms(x: Tensor) -> float:
    """The root of the mean square; 0 where there is nothing."""
    return math.sqrt(float(x.square().mean())) if x.numel() else 0.0


def assert_close(
    name: str, expected: Tensor, actual: Tensor | None, ratio: float, *, floor: float = 1e-8
) -> None:
    """The difference has at most `ratio` of the size of what is expected; the figure is printed.

    rms(actual - expected) / max(rms(expected), floor) <= ratio, in float64. Infinities must stand
    in the same places with the same sign; a NaN is never close to anything.
    """
    assert actual is not None, f"{name}: expected a tensor, got None"
    assert actual.shape == expected.shape, f"{name}: {actual.shape}, expected {expected.shape}"
    a, e = actual.detach().double(), expected.detach().double()
    assert not e.isnan().any(), f"{name}: NaN in what is expected"
    assert not a.isnan().any(), f"{name}: {int(a.isnan().sum())} of {a.numel()} are NaN"
    infinite = e.isinf() | a.isinf()
    assert torch.equal(a[infinite], e[infinite]), f"{name}: infinities differ"
    a, e = a[~infinite], e[~infinite]
    error = rms(a - e) / max(rms(e), floor)
    print(f"{name:>12}  error {error:.2e}  bound {ratio:.0e}")
    assert error <= ratio, f"{name}: relative RMS error {error:.3e}, bound {ratio:.1e}"


@dataclass
class Uses:
    """In which roles the inputs of a variant stand, by name."""

    directions: set[str] = field(default_factory=set)  # w, u of an outer product
    decays: set[str] = field(default_factory=set)  # logarithms, below 0
    summed: set[str] = field(default_factory=set)  # along the sequence: fp32
    coordinates: set[str] = field(default_factory=set)
    block_size: dict[str, int] = field(default_factory=dict)  # of the lists of selected blocks


def walk(root: nodes.Node) -> Iterator[nodes.Node]:
    """Every node below and including a root, each once."""
    seen, stack = set(), [root]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(node.children())


def names(*roots: nodes.Node) -> set[str]:
    return {node.name for root in roots for node in walk(root) if isinstance(node, nodes.Input)}


def uses(variant: nodes.Variant) -> Uses:
    found = Uses()
    for node in walk(variant):
        match node:
            case nodes.Outer(w, u, _):
                found.directions |= names(w, u)
            case nodes.Diagonal(x) | nodes.Decay(x):
                found.decays |= names(x)
            case nodes.Rotation(x) | nodes.PrefixSum(x):
                found.summed |= names(x)
            case nodes.Builtin("position", str(coordinate)):
                found.coordinates.add(coordinate)
            case nodes.Mask("selected_blocks", (nodes.Node() as blocks, int(size))):
                found.block_size |= dict.fromkeys(names(blocks), size)
            case _:
                pass
    found.summed |= found.decays
    return found


@dataclass
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

    def of(self, given: nodes.Input) -> tuple[int, ...]:
        sizes = {"d": self.dim, "d_v": self.value_dim or self.dim, "Block": self.dim // 4, **SIZES}
        for symbol in {symbol for axis in given.axes for symbol, _ in axis.parts if symbol != "1"}:
            sizes.setdefault(symbol, self.entries if "." in symbol else 4)
        time = {"constant": (), "row": (self.batch, self.queries or self.time)}
        heads = {None: (), "Head": (self.heads,), "KVHead": (self.kv_heads,)}
        return (
            *time.get(given.place, (self.batch, self.time)),
            *heads[given.heads],
            *(axis.size(sizes) for axis in given.axes),
        )


def small_tensors(
    variant: Any,
    shape: Shape | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    requires_grad: bool = False,
    **sizes: int,
) -> dict[str, Any]:
    """Tensors for one call of a variant (a declaration or its node): q, k, v, inputs, positions.

    Vectors of tokens have the given dtype; scalars, parameters and what is summed along the
    sequence are fp32 at least. Sizes are the fields of `Shape`: small_tensors(fox, time=33).
    """
    node: nodes.Variant = getattr(variant, "node", variant)
    shape = shape or Shape(**sizes)
    roles, random = uses(node), torch.Generator().manual_seed(seed)
    tensors: dict[str, Any] = {}
    for given in node.inputs:
        tensors[given.name] = sample(given, shape, roles, random)
    value_dim = shape.value_dim or shape.dim
    tensors["v"] = torch.randn(
        shape.batch, shape.time, shape.kv_heads, value_dim, generator=random, dtype=torch.float64
    )
    narrow = {"q", "k", "v"} | {
        given.name for given in node.inputs if given.axes and given.place != "constant"
    } - roles.summed
    wide = torch.promote_types(dtype, torch.float32)
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            tensor = tensor.to(dtype if name in narrow else wide)
            tensors[name] = tensor.requires_grad_(requires_grad)
    if roles.coordinates:
        tensors["positions"] = grid(roles.coordinates, shape)
    return tensors


def sample(given: nodes.Input, shape: Shape, roles: Uses, random: torch.Generator) -> Tensor:
    """Float64 or int64 values that suit the role of an input."""
    size = shape.of(given)
    if given.name in roles.block_size:
        blocks = -(-shape.time // roles.block_size[given.name])
        few = (*size[:-1], min(size[-1], 2))  # many would select everything
        return torch.randint(blocks, few, generator=random)
    if given.element == "int":  # documents: numbers that never fall along the sequence
        return torch.randint(4, size, generator=random).sort(dim=1).values
    if given.name in RANGES:
        low, high = RANGES[given.name]
        return low + (high - low) * torch.rand(size, generator=random, dtype=torch.float64)
    x = torch.randn(size, generator=random, dtype=torch.float64)
    if given.name in roles.decays:
        return torch.nn.functional.logsigmoid(x)
    if given.name in roles.directions:
        return torch.nn.functional.normalize(x, dim=-1)
    # a matrix that all tokens share keeps the size of a vector
    is_matrix = given.place == "constant" and len(given.axes) > 1
    return x / math.sqrt(size[-1]) if is_matrix else x


def grid(coordinates: set[str], shape: Shape) -> dict[str, Tensor]:
    """Positions on a square of patches: y the row, x the column, every other name the order."""
    order, side = torch.arange(shape.time), math.isqrt(shape.time - 1) + 1
    places = {"y": order // side, "x": order % side}
    return {
        name: places.get(name, order).expand(shape.batch, -1).clone()
        for name in sorted(coordinates)
    }

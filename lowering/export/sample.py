"""Which random values suit an input of a variant, as torch code for an exported test.

what a decay adds up, or a diagonal has   a logarithm: log_sigmoid(randn)
directions of an ordered product          of length 1; what scales them uniform in (0, 1)
inside log, a root, a power, a quotient   uniform in (0.2, 1)
integers                                  documents that never fall, blocks that exist
everything else                           randn, a matrix over the root of its width
"""

from collections.abc import Iterable, Iterator

from gnomon.dsl.nodes import (
    Apply,
    Decay,
    Diagonal,
    Expr,
    Input,
    Mask,
    Node,
    Outer,
    Variant,
    Width,
    walk,
)
from gnomon.dsl.signature import axes_of

_POSITIVE = {"log": (0,), "sqrt": (0,), "rsqrt": (0,), "/": (1,), "**": (0, 1)}
WIDTHS = {"d": 32, "d_v": 16, "Sub": 4, "Repeat": 2}
ENTRIES = 24
OTHER = 8


def decays(variant: Variant) -> frozenset[str]:
    """The token inputs that are themselves the logarithm of what a token keeps."""
    nodes = list(walk(variant.output))
    inner = [node.x for node in nodes if isinstance(node, Decay)]
    inner += [node.log for node in nodes if isinstance(node, Diagonal)]
    return frozenset(x.name for x in inner if isinstance(x, Input))


def directions(variant: Variant) -> frozenset[str]:
    """The inputs of the vectors of steps: a product of longer ones grows with each token."""
    outers = [node for node in walk(variant.output) if isinstance(node, Outer)]
    below = (x for node in outers for part in (node.w, node.u) for x in walk(part))
    return frozenset(x.name for x in below if isinstance(x, Input) and x.axes)


def scales(variant: Variant) -> frozenset[str]:
    """The inputs that are themselves the scale of a step."""
    outers = [node for node in walk(variant.output) if isinstance(node, Outer)]
    below = (x for node in outers for x in walk(node.scale))
    return frozenset(x.name for x in below if isinstance(x, Input) and x.place == "token")


def sample(variant: Variant, item: Input) -> str:
    """A random tensor for an input, of `batch`, `time_q`, `time_k`, `heads` and `kv_heads`."""
    shape = ", ".join(_shape(item)) or "()"
    if item.element == "int":
        return _integers(variant, item, shape)
    if item.name in decays(variant):
        return f"F.logsigmoid(torch.randn({shape}))"
    if item.name in directions(variant):
        return f"F.normalize(torch.randn({shape}), dim=-1)"
    if item.name in scales(variant):
        return f"torch.rand({shape})"
    if item.name in _positive(variant) or _is_product_in_decay(variant, item, "token"):
        return f"0.2 + 0.8 * torch.rand({shape})"
    if _is_product_in_decay(variant, item, "constant"):
        return f"-0.2 - 0.8 * torch.rand({shape})"
    if item.place == "constant" and len(item.axes) > 1:
        return f"torch.randn({shape}) / {_size(item.axes[-1])}**0.5"
    return f"torch.randn({shape})"


def _shape(item: Input) -> list[str]:
    names = {"Head": "heads", "KVHead": "kv_heads"}
    return [
        names.get(axis, axis) if isinstance(axis, str) else str(_size(axis))
        for axis in axes_of(item)
    ]


def _size(width: Width) -> int:
    symbols = {symbol for symbol, _ in width.parts}
    sizes = {s: ENTRIES if "." in s else WIDTHS.get(s, OTHER) for s in symbols if s != "1"}
    return width.size(sizes)


def _integers(variant: Variant, item: Input, shape: str) -> str:
    for node in walk(variant.output):
        if isinstance(node, Mask) and node.rule == "selected_blocks" and item in walk(node):
            blocks = f"-(-time_k // {node.operands[1]})"
            few = ", ".join([*_shape(item)[:-1], "2"])
            return f"torch.randint({blocks}, ({few}))"
    axes = f"({shape},)" if "," not in shape else f"({shape})"
    return f"torch.randint(3, {axes}).sort(1).values"


def _positive(variant: Variant) -> frozenset[str]:
    found: set[str] = set()
    for node in walk(variant.output):
        if isinstance(node, Apply):
            for place in _POSITIVE.get(node.fn, ()):
                found.update(x.name for x in _bare_inputs(node.args[place]))
    return frozenset(found - {"q", "k"})


def _bare_inputs(x: Expr) -> Iterator[Input]:
    """The inputs below a value that no function keeps in a range of its own."""
    if isinstance(x, Input):
        yield x
    for child in _open_children(x):
        yield from _bare_inputs(child)


def _open_children(x: Expr) -> Iterable[Expr]:
    if isinstance(x, Apply) and x.fn in ("softplus", "sigmoid", "exp", "abs", "sin", "cos"):
        return ()
    return [child for child in x.children() if isinstance(child, Expr)]


def _is_product_in_decay(variant: Variant, item: Input, place: str) -> bool:
    """Whether it is a factor of a step: those of tokens positive, the parameter negative."""

    def holds(node: Node) -> bool:
        match node:
            case Decay(Apply("*") as step):
                return item in walk(step)
        return False

    return item.place == place and any(holds(node) for node in walk(variant.output))

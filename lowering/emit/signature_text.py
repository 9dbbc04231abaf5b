"""What the generated functions are called with: parameters, sizes, and the words for a shape."""

import textwrap
from fractions import Fraction

from gnomon.dsl.nodes import ATTENTIONS, Builtin, Input, Softmax, Variant, Width, walk
from gnomon.dsl.signature import axes_of, call_inputs, coordinates

PACKING = ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k")


class Signature:
    """The inputs of a variant as parameters of a function.

    name(q, k, v, *, <declared inputs>, cu_seqlens=None, cu_seqlens_q=None, cu_seqlens_k=None,
         positions=None, return_lse=False)
    """

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.inputs = call_inputs(variant)
        self.declared = tuple(x for x in variant.inputs if x.name not in ("q", "k"))

    @property
    def names(self) -> list[str]:
        """The declared inputs."""
        return [x.name for x in self.declared]

    @property
    def parameters(self) -> list[str]:
        """The parameters of the public function."""
        options = [*(f"{name}=None" for name in PACKING), "positions=None", "return_lse=False"]
        return ["q", "k", "v", "*", *self.names, *options]

    @property
    def formula(self) -> str:
        """The first paragraph of the docstring, on lines that fit into a function's docstring."""
        paragraph = self.variant.formula.strip().partition("\n\n")[0]
        return "\n".join(textwrap.wrap(" ".join(paragraph.split()), 92))

    def local(self, name: str) -> str:
        """A name for a local variable that no input has."""
        return f"{name}_" if name in self.names else name

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The named coordinates that positions must have."""
        return tuple(name for name in coordinates(self.variant) if name is not None)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The axes whose sizes the inputs tell, d and d_v first."""
        found = [s for x in self.inputs for width in x.axes for s, _ in width.parts if s != "1"]
        return tuple(dict.fromkeys(["d", "d_v", *found]))

    @property
    def reads_positions(self) -> bool:
        """Whether the formula speaks of positions at all."""
        return bool(coordinates(self.variant))

    @property
    def has_lse(self) -> bool:
        """Whether there is one log-sum-exp to return."""
        found = [node for node in walk(self.variant.output) if isinstance(node, ATTENTIONS)]
        return len(found) == 1 and isinstance(found[0], Softmax)

    def size(self, symbol: str) -> str:
        """Where the size of an axis is read: d -> q.shape[-1]."""
        for item in self.inputs:
            for axis, width in enumerate(item.axes):
                if len(width.parts) == 1 and width.parts[0][0] == symbol:
                    return _read(item, axis, width)
        raise ValueError(f"no input of {self.variant.name} says how wide {symbol} is")

    def shape(self, item: Input) -> str:
        """The axes of an input in words: [batch, time_k, head, d]."""
        words = {"Head": "head", "KVHead": "kv_head"}
        return f"[{', '.join(words.get(str(axis), str(axis)) for axis in axes_of(item))}]"

    def uses_length(self) -> bool:
        """Whether the formula asks for the length of a sequence."""
        return any(
            isinstance(n, Builtin) and n.which == "length" for n in walk(self.variant.output)
        )


def symbol_name(symbol: str) -> str:
    """The variable that holds the size of an axis."""
    stem, _, axis = symbol.partition(".")
    if axis:
        return f"{stem}_entries" + ("" if axis == "0" else f"_{axis}")
    return symbol if symbol in ("d", "d_v") else f"{symbol.lower()}_width"


def _read(item: Input, axis: int, width: Width) -> str:
    text = f"{item.name}.shape[{axis - len(item.axes)}]"
    times = 1 / Fraction(width.parts[0][1])
    if times == 1:
        return text
    return (
        f"{times} * {text}"
        if times.denominator == 1
        else f"{text} * {times.numerator} // {times.denominator}"
    )

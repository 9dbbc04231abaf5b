"""A total order of values that the spelling of a formula does not change."""

from collections.abc import Iterable
from dataclasses import fields

from gnomon.dsl.nodes import Input, Node, walk


class Order:
    """Values by the inputs they are made of, then by size, then by what they are.

    A value whose earliest inputs stand first in the signature stands first; values without inputs
    stand last; among equals the smaller graph stands first, then the one whose label does.
    """

    def __init__(self, inputs: Iterable[Input]) -> None:
        self.rank = {x.name: n for n, x in enumerate(inputs)}
        self.keys: dict[Node, tuple[object, ...]] = {}
        self.below: dict[Node, frozenset[Node]] = {}

    def key(self, node: Node) -> tuple[object, ...]:
        """Comparable with the key of any other node; equal for equal nodes only."""
        if node not in self.keys:
            for part in walk(node):
                if part not in self.keys:
                    self.keys[part] = self._make(part)
        return self.keys[node]

    def _make(self, node: Node) -> tuple[object, ...]:
        children = node.children()
        below = frozenset({node}).union(*(self.below[c] for c in children))
        self.below[node] = below
        ranks = sorted({self.rank.get(x.name, 0) for x in below if isinstance(x, Input)})
        keys = (self.keys[c] for c in children)
        return (
            tuple(ranks) or (len(self.rank),),
            len(below),
            own_label(node),
            len(children),
            *keys,
        )


def own_label(node: Node) -> str:
    """What a node is apart from its children, which are dots: Apply str + (. .)."""
    own = (getattr(node, f.name) for f in fields(node) if f.name not in ("where", "_hash"))
    return " ".join([type(node).__name__, *(_label(x) for x in own)])


def _label(item: object) -> str:
    """A field; nodes are told by what follows, the keys or the numbers of the children."""
    if isinstance(item, Node):
        return "."
    if isinstance(item, tuple):
        return f"({' '.join(_label(x) for x in item)})"
    return f"{type(item).__name__} {item}"

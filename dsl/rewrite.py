"""Replace nodes of a graph, children first."""

from collections.abc import Callable
from typing import TypeVar, cast

from gnomon.dsl.nodes import Node, rewriting, walk

N = TypeVar("N", bound=Node)
Rule = Callable[[Node], Node | None]


def rewrite(root: N, rule: Rule) -> N:
    """The graph with every node replaced where `rule` says by what; None keeps a node.

    Bottom-up: the rule sees a node over its replaced children. A shared node is visited once and
    stays shared; what is not touched stays the same object. New nodes belong to the user's line
    of the node that they replace.
    """
    done: dict[int, Node] = {}
    for node in walk(root):
        with rewriting(node.where):
            rebuilt = node.with_children(lambda child: done[id(child)])
            replacement = rule(rebuilt)
        done[id(node)] = rebuilt if replacement is None else replacement
    return cast(N, done[id(root)])

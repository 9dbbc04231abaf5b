"""Runs the stages of a transport one after another, by any runner of tile programs, in numpy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from transport_oracle import Tree

from gnomon.lowering.schedules.transport.blocks import blocks
from gnomon.lowering.schedules.transport.chain_gradients import chain_gradients
from gnomon.lowering.schedules.transport.key_chain import key_chain
from gnomon.lowering.schedules.transport.leaf_products import leaf_products
from gnomon.lowering.schedules.transport.leaf_rows import leaf_rows
from gnomon.lowering.schedules.transport.leaf_tokens import leaf_tokens
from gnomon.lowering.schedules.transport.leaves import leaves
from gnomon.lowering.schedules.transport.node_gradients import node_gradients
from gnomon.lowering.schedules.transport.nodes import nodes
from gnomon.lowering.schedules.transport.query_rows import query_rows
from gnomon.lowering.schedules.transport.stage import Plan
from gnomon.lowering.tile import Kernel, Tensor

Array = npt.NDArray[Any]
Runner = Callable[[Kernel, dict[str, Array], Mapping[str, int]], None]


def kernels(plan: Plan, *, has_product: bool = True) -> list[Kernel]:
    """Every stage of a call of at least two levels, or of less."""
    forward = [blocks(plan), leaves(plan), nodes(plan), key_chain(plan), query_rows(plan)]
    chains = [chain_gradients(plan, "query"), chain_gradients(plan, "key")]
    tops = [node_gradients(plan, top=top) for top in (True, False)]
    parts = [leaf_products(plan, part, has_product=has_product) for part in ("y", "w")]
    return [*forward, *chains, *tops, leaf_rows(plan), *parts, leaf_tokens(plan)]


@dataclass
class Stages:
    """One call: its tensors by name, those between the stages too."""

    plan: Plan
    runner: Runner
    memory: dict[str, Array]
    """The inputs of the call: q, k, w, u (where it is not w), beta."""
    narrow: Any = np.float16
    """What f16 tensors are here."""
    numbers: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        batch, tokens, heads, width = self.memory["q"].shape
        key_heads = self.memory["k"].shape[2]
        leaf = self.plan.block * self.plan.blocks
        self.tree = Tree(tokens, leaf)
        tree = self.tree
        self.counts = [tree.leaves >> level for level in range(max(tree.levels - 1, 1))]
        padded_width = max(16, 1 << (width - 1).bit_length())
        top = max(tree.levels - 1, 0)
        self.numbers = {"T": tokens, "H": heads, "G": heads // key_heads, "N": tree.leaves}
        self.numbers |= {"L": tree.levels, "R": tree.rows, "D": width, "BD": padded_width}
        self.numbers |= {"BT": self.plan.block, "BM": self.plan.block, "LEAF": leaf}
        self.numbers |= {"BR": padded_width, "BK": self.plan.block, "B": batch}
        self.numbers["TOP_NODE"] = sum(tree.leaves >> level for level in range(top))
        self.sizes = {"batch": batch, "time": tokens, "head": heads, "kv_head": key_heads}
        self.sizes |= {"padded": tree.leaves * leaf, "version": tree.levels * tree.rows, "D": width}
        self.sizes |= {"leaf": leaf, "token": self.plan.block, "node": sum(self.counts)}
        self.sizes |= {"pair": tree.leaves * self.plan.pairs * self.plan.block}
        self.sizes |= {"block": tree.leaves * self.plan.blocks}
        self.sizes |= {"pair_tile": tree.leaves * self.plan.pairs}

    def run(self, kernel: Kernel, given: Mapping[str, Array] | None = None, **numbers: int) -> None:
        """Launch one kernel; outputs that are not there yet are NaN before."""
        tensors = {}
        for param in kernel.params:
            if isinstance(param, Tensor):
                if given and param.name in given:
                    tensors[param.name] = given[param.name]
                    continue
                if param.name not in self.memory:
                    assert param.mode == "out", f"{kernel.name} reads {param.name}"
                    self.memory[param.name] = self.empty(param)
                tensors[param.name] = self.memory[param.name]
        self.runner(kernel, tensors, {**self.numbers, **numbers})

    def empty(self, param: Tensor) -> Array:
        """An output before its kernel runs."""
        shape = [self.sizes[axis] for axis in param.axes]
        return np.full(shape, np.nan, self.narrow if param.dtype == "f16" else np.float32)

    def forward(self) -> None:
        """qv, kv and loc."""
        plan = self.plan
        self.run(blocks(plan))
        self.run(leaves(plan))
        self.run_nodes()
        self.run(key_chain(plan))
        self.run(query_rows(plan))

    def run_nodes(self) -> None:
        """The up-sweep, a launch a level."""
        kernel, first = nodes(self.plan), 0
        for below, count in zip(self.counts, self.counts[1:], strict=False):
            given = {}
            for name in ("p", "p_low"):
                if name in self.memory:
                    p = self.memory[name]
                    given[name.replace("p", "below", 1)] = p[:, first : first + below]
                    given[name] = p[:, first + below : first + below + count]
            self.run(kernel, given, NODES=count)
            first += below

    def backward(self) -> None:
        """dq, dk, dw, (du,) dbeta from d_qv, d_kv and d_loc."""
        plan, has_product = self.plan, self.tree.levels > 1
        self.run(chain_gradients(plan, "query"))
        self.run(chain_gradients(plan, "key"))
        if has_product:
            self.run_node_gradients()
        self.run(leaf_rows(plan))
        self.run(leaf_products(plan, "y", has_product=has_product))
        self.run(leaf_products(plan, "w", has_product=has_product))
        self.run(leaf_tokens(plan))

    def run_node_gradients(self) -> None:
        """The gradients of products, a launch a level, the highest that is crossed first."""
        tree, above = self.tree, None
        p = self.memory["p"]
        ends = np.cumsum(self.counts)
        batch, _, heads, width, _ = p.shape
        for level in reversed(range(tree.levels - 1)):
            count = self.counts[level]
            dp = np.full((batch, count, heads, width, width), np.nan, np.float32)
            given = {"dp": dp, "p": p[:, ends[level] - count : ends[level]]}
            numbers = {"NODES": count, "SPAN": 1 << level, "FIRST": level * tree.rows}
            if above is not None:
                given["dp_above"] = above
                numbers["PARENTS"] = above.shape[1]
            self.run(node_gradients(self.plan, top=above is None), given, **numbers)
            above = dp
        assert above is not None
        self.memory["dp"] = above

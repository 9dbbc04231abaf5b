"""The stages of a transport as text: kernels, launches and the autograd function over them.

    Transport.apply(q, k, w, (u,) beta)  ->  qv, kv, loc

    q [batch, T, head, D]; k, w, u [batch, T, kv_head, D]; beta [batch, T, kv_head]
    qv [batch, L R, head, D], kv [batch, L R, kv_head, D]   versions, level after level
    loc [batch, T, head, leaf]                              logits inside each leaf, fp32

Its backward takes the gradients of the three. What stands in rows of no rectangle, past T in the
last leaf, or right of the diagonal in d_loc is not read, or has no effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gnomon.lowering.emit.text import INDENT, atom, call, statement
from gnomon.lowering.emit.transport_launch import StageLaunch, printed_stages
from gnomon.lowering.schedules.transport.blocks import blocks
from gnomon.lowering.schedules.transport.chain_gradients import chain_gradients
from gnomon.lowering.schedules.transport.key_chain import key_chain
from gnomon.lowering.schedules.transport.leaf_products import leaf_products
from gnomon.lowering.schedules.transport.leaf_rows import leaf_rows
from gnomon.lowering.schedules.transport.leaf_tokens import leaf_tokens
from gnomon.lowering.schedules.transport.leaves import leaves
from gnomon.lowering.schedules.transport.node_gradients import node_gradients
from gnomon.lowering.schedules.transport.nodes import nodes
from gnomon.lowering.schedules.transport.precision import names
from gnomon.lowering.schedules.transport.query_rows import query_rows
from gnomon.lowering.schedules.transport.stage import Plan

Tiles = Mapping[str, Mapping[str, int]]

LIBRARY = ("device_of", "padded_width", "described", "has_descriptors")
"""What the text calls of the torch library."""

_TREE = '''\
class Tree(NamedTuple):
    """The sizes of a call: N leaves of `leaf` tokens, L levels, R rows a level of versions.

    `dtype` of queries and keys, `transition` of w.
    """

    B: int
    T: int
    H: int
    KV: int
    D: int
    block: int
    leaf: int
    dtype: torch.dtype
    transition: torch.dtype

    @property
    def G(self):
        """Query heads a key head."""
        return self.H // self.KV

    @property
    def N(self):
        """Leaves."""
        return -(-self.T // self.leaf)

    @property
    def L(self):
        """Levels at which queries meet keys."""
        return max(self.N - 1, 0).bit_length()

    @property
    def R(self):
        """Rows a level."""
        return self.leaf << self.L >> 1 if self.L else 0

    @property
    def padded(self):
        """Tokens of all leaves."""
        return self.N * self.leaf

    @property
    def versions(self):
        """Rows of all levels."""
        return self.L * self.R

    @property
    def pairs(self):
        """Pairs of a block of rows with a block of tokens in one leaf."""
        blocks = self.leaf // self.block
        return self.N * (blocks * (blocks + 1) // 2)

    def first_node(self, level):
        """Where the nodes of a level begin."""
        return sum(self.N >> below for below in range(level))

    @property
    def nodes(self):
        """Nodes of all levels that rows cross, and the leaves."""
        return self.first_node(max(self.L - 1, 1))

    def level(self, p, level):
        """The nodes of one level."""
        first = self.first_node(level)
        return p[:, first : first + (self.N >> level)]

    def empty_versions(self, *shape, dtype, device):
        """Rows of no rectangle, which there are unless N is a power of two, are 0."""
        make = torch.zeros if self.N & (self.N - 1) else torch.empty
        return make(*shape, dtype=dtype, device=device)
'''


@dataclass(frozen=True, slots=True)
class TransportKernels:
    """The text of one transport.

    tiles  kernel name -> BM, BR, BK, num_warps, num_stages, maxnreg; others as in `tiles_for`
    width  the D that tiles are chosen for
    stages how far ahead the loops over rows, and over blocks, read: (rows, blocks)
    """

    plan: Plan
    width: int = 128
    stages: tuple[int, int] = (3, 2)
    tiles: Tiles = field(default_factory=dict)

    def launches(self) -> dict[str, StageLaunch]:
        """Every stage by a short name, with products of leaves and without."""
        plan, p = self.plan, names("p", self.plan.precision.path)
        level, (rows_ahead, blocks_ahead) = {"node": "nodes"}, self.stages
        made = {
            "blocks": StageLaunch(blocks(plan), {}),
            "leaves": StageLaunch(leaves(plan, stages=blocks_ahead), {}),
            "nodes": StageLaunch(nodes(plan), {}, given=p),
            "keys": StageLaunch(key_chain(plan), {}),
            "queries": StageLaunch(query_rows(plan), {}),
            "d_queries": StageLaunch(chain_gradients(plan, "query"), {}),
            "d_keys": StageLaunch(chain_gradients(plan, "key"), {}),
            "d_nodes_top": StageLaunch(
                node_gradients(plan, top=True, stages=rows_ahead), {}, sizes=level
            ),
            "d_nodes": StageLaunch(
                node_gradients(plan, top=False, stages=rows_ahead), {}, sizes=level
            ),
            "d_rows": StageLaunch(leaf_rows(plan), {}),
            "d_tokens": StageLaunch(leaf_tokens(plan), {}),
        }
        for part in ("y", "w"):
            for has_product in (True, False):
                kernel = leaf_products(plan, part, has_product=has_product)
                made[kernel.name.removeprefix("transport_")] = StageLaunch(kernel, {})
        chosen = tiles_for(plan, self.width)
        return {
            name: StageLaunch(
                x.kernel,
                {**chosen[x.kernel.name], **self.tiles.get(x.kernel.name, {})},
                x.given,
                x.sizes,
            )
            for name, x in made.items()
        }

    def parts(self) -> list[str]:
        """The parts of a module, in order."""
        launches = self.launches()
        return [
            _TREE.strip("\n"),
            *printed_stages(launches.values()),
            "\n".join(self._function(launches)),
        ]

    # ---- the autograd function

    def inputs(self) -> list[str]:
        """What the function takes."""
        return ["q", "k", "w", *(() if self.plan.shared else ("u",)), "beta"]

    def _function(self, launches: Mapping[str, StageLaunch]) -> list[str]:
        args = [atom(x) for x in ("ctx", *self.inputs())]
        grads = ["dq", "dk", "dw", *(() if self.plan.shared else ("du",)), "dbeta"]
        return [
            "class Transport(torch.autograd.Function):",
            f'{INDENT}"""({", ".join(self.inputs())}) -> versions qv, kv and leaf logits loc."""',
            "",
            f"{INDENT}@staticmethod",
            *statement("def forward", call("", *args), 1, ":"),
            *self._forward(launches),
            "",
            f"{INDENT}@staticmethod",
            f"{INDENT}@once_differentiable",
            f"{INDENT}def backward(ctx, d_qv, d_kv, d_loc):",
            *self._backward(launches),
            f"{INDENT * 2}return {', '.join(grads)}",
        ]

    def _forward(self, launches: Mapping[str, StageLaunch]) -> list[str]:
        plan, lines = self.plan, [f"{INDENT * 2}B, T, H, D = q.shape"]
        block, leaf = str(plan.block), str(plan.block * plan.blocks)
        given = ("B", "T", "H", "k.shape[2]", "D", block, leaf, "q.dtype", "w.dtype")
        tree = call("Tree", *map(atom, given))
        lines += statement("tree = ", tree, 2)
        for name in ("blocks", "leaves"):
            lines += _run(launches[name], 2)
        p = names("p", plan.precision.path)
        below = [f"tree.level({x}, level - 1)" for x in p]
        level = [f"tree.level({x}, level)" for x in p]
        lines += [f"{INDENT * 2}for level in range(1, tree.L - 1):"]
        args = ("tree", *below, *level, "tree.N >> level")
        lines += statement("", call("launch_transport_nodes", *map(atom, args)), 3)
        for name in ("keys", "queries"):
            lines += _run(launches[name], 2)
        lines += statement("ctx.save_for_backward", call("", *map(atom, self._saved(launches))), 2)
        return [*lines, f"{INDENT * 2}ctx.tree = tree", f"{INDENT * 2}return qv, kv, loc"]

    def _saved(self, launches: Mapping[str, StageLaunch]) -> list[str]:
        """What the backward kernels read of the forward's."""
        backward = [x for name, x in launches.items() if name.startswith("d_")]
        made = {t.name for x in backward for t in x.outputs} | {"d_qv", "d_kv", "d_loc", "dp_above"}
        read = dict.fromkeys(t.name for x in backward for t in x.tensors if t.mode == "in")
        return [name for name in read if name not in made]

    def _backward(self, launches: Mapping[str, StageLaunch]) -> list[str]:
        lines = statement(
            "", call("", *map(atom, self._saved(launches))), 2, " = ctx.saved_tensors"
        )
        lines += [f"{INDENT * 2}tree = ctx.tree"]
        lines += [f"{INDENT * 2}d_qv, d_kv, d_loc = (x.contiguous() for x in (d_qv, d_kv, d_loc))"]
        for name in ("d_queries", "d_keys", "d_rows"):
            lines += _run(launches[name], 2)
        top, lower = launches["d_nodes_top"], launches["d_nodes"]
        args = {"nodes": "tree.N >> level", "first": "level * tree.R", "span": "1 << level"}
        lines += [f"{INDENT * 2}if tree.L > 1:", f"{INDENT * 3}level = tree.L - 2"]
        lines += _run(top, 3, args)
        lines += [f"{INDENT * 3}for level in reversed(range(tree.L - 2)):"]
        args |= {"p": "tree.level(p, level)", "dp_above": "dp", "parents": "dp.shape[1]"}
        lines += _run(lower, 4, args)
        lines += _run(launches["d_products_y"], 3) + _run(launches["d_products_w"], 3)
        lines += [f"{INDENT * 2}else:"]
        lines += _run(launches["d_products_y_leaf"], 3) + _run(launches["d_products_w_leaf"], 3)
        return [*lines, *_run(launches["d_tokens"], 2)]


def module_parts(*, shared: bool, width: int, leaf: int, known: Sequence[str]) -> list[str]:
    """The stages for a module that has the parts `known`, and what chooses between them and torch.

    `shared`: u is w; `width` of q and k, `leaf` tokens of 64 or 128.
    """
    whole = width >= 16 and not width & (width - 1)
    plan = Plan(blocks=leaf // 64, shared=shared, whole=whole, transition="io")
    parts = TransportKernels(plan, width).parts()
    there = set(known)
    return [*(part for part in parts if part not in there), moved_function(width, shared=shared)]


def moved_function(width: int, *, shared: bool) -> str:
    """The function that a module calls: the kernels where they serve, else torch."""
    given = "w" if shared else "w, u"
    known = "w.dtype != torch.float64"
    known = known if shared else "torch.float64 not in (w.dtype, u.dtype)"
    return f'''\
def move_along(call, q, k, w, u, beta):
    """Versions of queries and of keys, and the dots inside of leaves, of steps I - beta w u^T.

    Kernels are for {width} channels, and for calls of one sequence whose tokens are all queries.
    """
    is_whole = call.cu_seqlens_k is None and call.T_q == call.T_k and q.shape[-1] == {width}
    is_half = q.dtype != torch.float32 and {known}
    if is_whole and q.numel() and is_half:
        return Transport.apply(q, k, {given}, beta.float())
    return LowRankVersions.apply(call, q, k, w, u, beta)'''


def _run(launch: StageLaunch, depth: int, args: Mapping[str, str] | None = None) -> list[str]:
    """The line that runs a stage, each tensor under its own name."""
    given = [(args or {}).get(name, name) for name in launch.inputs]
    code = call(f"launch_{launch.kernel.name}", *map(atom, ("tree", *given)))
    return statement(f"{', '.join(t.name for t in launch.outputs)} = ", code, depth)


def tiles_for(plan: Plan, width: int) -> Tiles:
    """Tiles and options for an H200, by what compiles without spills (DECISIONS.md)."""
    wide = width > 64
    rows = {"BM": plan.block, "num_warps": 4, "num_stages": 1}
    large = {"num_warps": 8 if wide else 4, "num_stages": 1}
    padded = max(16, 1 << (width - 1).bit_length())
    products = ("transport_d_products_y", "transport_d_products_w")
    return {
        "transport_blocks": rows,
        "transport_leaves": {"BR": padded, **large},
        "transport_nodes": large,
        "transport_keys": rows,
        "transport_queries": rows,
        "transport_d_queries": rows,
        "transport_d_keys": rows,
        "transport_d_nodes_top": {"BK": plan.block, **large},
        "transport_d_nodes": {"BK": plan.block, **large},
        "transport_d_rows": rows,
        "transport_d_tokens": rows,
        **dict.fromkeys((*products, *(f"{name}_leaf" for name in products)), rows),
        # with 4 warps Triton (3.6) makes a wrong product of it at D = 128 (DECISIONS.md)
        "transport_d_products_y": {**rows, "num_warps": 8 if wide else 4},
    }

"""What the stages of a transport share: their plan, parameters, tiles of tokens and of nodes.

    BT tokens a block (one triangular system), LEAF a leaf of the tree: one block or two
    N leaves, L levels, R rows a level in the compact layout of versions

Tensors of the call have T tokens; those between stages are padded to N leaves, and their tokens
past T are identity transitions: beta is 0 there. Node n_l leaves wide number m of level l stands at
first(l) + m, where levels follow one another and level l has N >> l nodes: the complete ones.
"""

from dataclasses import dataclass
from typing import Literal

from gnomon.lowering import tile
from gnomon.lowering.build import Block
from gnomon.lowering.schedules.transport.precision import (
    DEFAULT,
    Digits,
    Form,
    Precision,
    Single,
    memory,
    names,
    narrowed,
)
from gnomon.lowering.tile import (
    Arange,
    DType,
    Expr,
    Kernel,
    Load,
    Ref,
    Scalar,
    Store,
    Tensor,
    Tunable,
    Type,
)

ORDER = ("BR", "BM", "BM'", "BT", "BT'", "BD", "BD'")
SCALARS = ("T", "H", "G", "N", "L", "R", "NODES", "PARENTS", "FIRST", "SPAN", "TOP_NODE")
TUNABLES = ("BM", "BT", "LEAF", "BR", "BK")
Mode = Literal["in", "out"]
Heads = Literal["head", "kv_head"]
TOKEN = ("batch", "time")
PADDED = ("batch", "padded")


@dataclass(frozen=True, slots=True)
class Plan:
    """What the kernels of one transport are made for.

    block      tokens of a triangular system, a power of two
    blocks     blocks of a leaf: 1 or 2
    shared     u is w
    whole      the width D of q, k, w and u is a power of two: channels need no mask
    transition dtype of w and u in the call: f32, or io for whatever they have
    """

    block: int = 64
    blocks: int = 2
    shared: bool = True
    whole: bool = True
    transition: DType = "f32"
    precision: Precision = DEFAULT

    @property
    def pairs(self) -> int:
        """Pairs of a block of rows with a block of tokens in a leaf."""
        return self.blocks * (self.blocks + 1) // 2


def number(name: str) -> Ref:
    """A scalar of the kernel: a parameter, an index of the grid."""
    return Ref(name, Type("i32"))


class Stage:
    """One kernel under construction."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.block = plan, Block(ORDER)
        self.tensors: dict[str, Tensor] = {}
        self.batch, self.head, self.key_head = map(number, ("i_b", "i_h", "i_kv"))

    # -- tensors

    def tensor(self, name: str, axes: tuple[str, ...], dtype: DType, mode: Mode) -> Tensor:
        """A parameter; said twice, it is the same one."""
        made = Tensor(name, axes, dtype, mode)
        if self.tensors.setdefault(name, made) != made:
            raise ValueError(f"{name} is {self.tensors[name]} and {made}")
        return made

    def width(self, rows: str = "BD") -> Expr | None:
        """The limit of a channel axis."""
        return None if self.plan.whole else number("D")

    def rows(
        self,
        name: str,
        first: Expr,
        dtype: DType,
        *,
        head: str = "kv_head",
        axis: str = "padded",
        extent: str = "BT",
        channels: str = "BD",
    ) -> Load:
        """[extent, channels] of a tensor [batch, axis, head, D], from row `first` on."""
        tensor = self.tensor(name, ("batch", axis, head, "D"), dtype, "in")
        index = (self.batch, self._from(first, extent), self._head(head), Arange(channels))
        limit = number("T") if axis == "time" else None
        return Load(tensor, index, (None, limit, None, self.width()))

    def square(
        self,
        name: str,
        first: Expr,
        dtype: DType,
        *,
        head: str = "kv_head",
        axis: str = "padded",
        extents: tuple[str, str] = ("BT", "BT'"),
    ) -> Load:
        """[rows, tokens of a block] of a tensor [batch, axis, head, token]."""
        tensor = self.tensor(name, ("batch", axis, head, "token"), dtype, "in")
        index = (self.batch, self._from(first, extents[0]), self._head(head), Arange(extents[1]))
        return Load(tensor, index, (None,) * 4)

    def numbers(self, name: str, first: Expr, *, axis: str, extent: str = "BT") -> Load:
        """[extent] of an fp32 tensor [batch, axis, kv_head]."""
        tensor = self.tensor(name, ("batch", axis, "kv_head"), "f32", "in")
        limit = number("T") if axis == "time" else None
        return Load(
            tensor, (self.batch, self._from(first, extent), self.key_head), (None, limit, None)
        )

    def node(self, name: str, node: Expr, dtype: DType, extents: tuple[str, str]) -> Load:
        """[D, D] of a tensor [batch, node, kv_head, D, D]."""
        tensor = self.tensor(name, ("batch", "node", "kv_head", "D", "D"), dtype, "in")
        index = (self.batch, node, self.key_head, *map(Arange, extents))
        return Load(tensor, index, (None, None, None, self.width(), self.width()))

    # -- values in digits

    def load_rows(self, name: str, first: Expr, form: Form, as_: str = "", **how: str) -> Digits:
        """The digits of a padded tensor of vectors, each under a name."""
        given = names(name, form), names(as_ or f"b_{name}", form)
        return tuple(
            self.block.let(local, self.rows(each, first, memory(form), **how))
            for each, local in zip(*given, strict=True)
        )

    def load_node(
        self,
        name: str,
        node: Expr,
        form: Form,
        as_: str = "",
        extents: tuple[str, str] = ("BD", "BD'"),
    ) -> Digits:
        """The digits of a node."""
        given = names(name, form), names(as_ or f"b_{name}", form)
        return tuple(
            self.block.let(local, self.node(each, node, memory(form), extents))
            for each, local in zip(*given, strict=True)
        )

    def single_rows(self, name: str, first: Expr, as_: str = "", **how: str) -> Digits:
        """The first digit of a padded tensor of the path class, for a product of the once class."""
        kept: Single = "f32" if self.plan.precision.path == "f32" else "f16"
        loaded = self.load_rows(name, first, kept, as_, **how)
        return narrowed(self.block, loaded, self.plan.precision.once)

    def crossing(self, node: Expr, extents: tuple[str, str]) -> Digits:
        """A node as rows cross it: extents (BD', BD) for x P, (BD, BD') for x P^T."""
        kept: Single = "f32" if self.plan.precision.path == "f32" else "f16"
        loaded = self.load_node("p", node, kept, extents=extents)
        return narrowed(self.block, loaded, self.plan.precision.log)

    # -- stores

    def store(
        self,
        name: str,
        axes: tuple[str, ...],
        dtype: DType,
        index: tuple[Expr, ...],
        value: Expr,
        limits: tuple[Expr | None, ...] | None = None,
    ) -> None:
        """tensor[index] = value."""
        tensor = self.tensor(name, axes, dtype, "out")
        self.block.add(Store(tensor, index, value, limits or (None,) * len(index)))

    def store_rows(
        self,
        name: str,
        first: Expr,
        value: Expr,
        dtype: DType,
        *,
        head: str = "kv_head",
        axis: str = "padded",
        extent: str = "BT",
    ) -> None:
        """[extent, BD] into a tensor [batch, axis, head, D]."""
        index = (self.batch, self._from(first, extent), self._head(head), Arange("BD"))
        limit = number("T") if axis == "time" else None
        axes = ("batch", axis, head, "D")
        self.store(name, axes, dtype, index, value, (None, limit, None, self.width()))

    def store_square(
        self,
        name: str,
        first: Expr,
        value: Expr,
        dtype: DType,
        *,
        head: str = "kv_head",
        axis: str = "padded",
        extents: tuple[str, str] = ("BT", "BT'"),
    ) -> None:
        """[rows, tokens of a block] into a tensor [batch, axis, head, token]."""
        index = (self.batch, self._from(first, extents[0]), self._head(head), Arange(extents[1]))
        self.store(name, ("batch", axis, head, "token"), dtype, index, value)

    def store_digits(self, name: str, first: Expr, value: Digits, form: Form) -> None:
        """A padded tensor of vectors, digit by digit."""
        for each, digit in zip(names(name, form), value, strict=True):
            self.store_rows(each, first, digit, memory(form))

    # -- finishing

    def kernel(self, name: str, doc: str, grid: tuple[tuple[str, Expr], ...]) -> Kernel:
        """The kernel, with the scalars and tunables that it reads as parameters."""
        body = tuple(self.block.body)
        read = {n for _, extent in grid for n in tile.names_in(extent)}
        axes: set[str] = set()
        for stmt in tile.walk(body):
            for expr in tile.expressions(stmt):
                read |= tile.names_in(expr)
                axes |= _extents(expr)
        params: list[tile.Param] = list(self.tensors.values())
        params += [Scalar(x, "i32") for x in SCALARS if x in read]
        params += [Scalar("D", "i32")]
        params += [Tunable(x) for x in TUNABLES if x in read | axes]
        params += [Tunable("BD")]
        return Kernel(name, doc, tuple(params), grid, body, ORDER, (("BD", "D"),))

    def _from(self, first: Expr, extent: str) -> Expr:
        return self.block.op("+", first, Arange(extent))

    def _head(self, axis: str) -> Expr:
        return self.head if axis == "head" else self.key_head


def _extents(expr: Expr) -> set[str]:
    """The extents of everything in an expression."""
    own = {tile.extent_of(name) for name in tile.type_of(expr).shape}
    return own.union(*map(_extents, tile.operands(expr)))


def tiles_of(extent: str) -> Expr:
    """The number of tiles of an extent in the padded tokens."""
    b = Block(ORDER)
    return b.op("*", number("N"), b.op("//", number("LEAF"), number(extent)))


def head_axis(heads: Heads) -> tuple[str, Expr]:
    """The axis of a grid that runs over heads."""
    if heads == "head":
        return "i_h", number("H")
    return "i_kv", Block(ORDER).op("//", number("H"), number("G"))


def scaled(b: Block, name: str, x: Expr, largest: Expr) -> tuple[Ref, Ref]:
    """X / a and a, with a = largest / 64, so that f16 holds the quotient; a is 1 where x is 0."""
    unit = b.op("where", b.op(">", largest, 0.0), b.op("*", largest, 1.0 / 64.0), 1.0)
    a = b.let(f"{name}_unit", unit)
    return b.let(f"{name}_scaled", b.op("*", x, b.op("/", 1.0, a))), a

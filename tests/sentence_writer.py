"""Writes a random declaration, one choice after another; `sentences.py` makes a strategy of it.

The formulas are tame: every number of the pair is of size 1 to 20, nothing is divided by something
near 0, and where a function jumps it does so between the values that float32 can hold. So float32
and float64 differ by rounding alone. Options stand in the order in which hypothesis shrinks: the
plainest first.
"""

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeVar

from hypothesis import strategies as st
from sentence_words import (
    AWKWARD,
    AXES,
    BEYOND,
    BINARY,
    CAUSAL,
    COLUMNS,
    CONSTANTS,
    GUARDED,
    INDICES,
    OF_DISTANCE,
    OUTPUTS,
    PLACES,
    RATIOS,
    ROWS,
    SUMS,
    TERNARY,
    UNARY,
    bare,
    names,
)

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]


@dataclass
class Writer:
    """Writes one declaration; every method gives text that may stand as an operand."""

    draw: Draw[Any]
    inputs: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    made: dict[str, list[str]] = field(default_factory=dict)
    mask: str = ""
    is_countable: bool = True

    def __post_init__(self) -> None:
        self.awkward: bool = False
        self.causal: bool = self.pick((True, True, False))

    # ---- choices and names

    def pick(self, options: Sequence[T]) -> T:
        choice: T = self.draw(st.sampled_from(options))
        return choice

    def new(self, stem: str, taken: Iterable[str]) -> str:
        """A name that is free."""
        known = {*taken, *(name for names in self.made.values() for name in names)}
        if self.awkward:
            names = [name for name in AWKWARD if name not in known]
            return self.pick(names)
        return next(f"{stem}{n}" for n in count(1) if f"{stem}{n}" not in known)

    def input(self, annotation: str, stem: str) -> str:
        """An input of this annotation, an old one or a new one."""
        known = [name for name, note in self.inputs.items() if note == annotation]
        if bool(known) and self.pick((True, False)):
            return self.pick(known)
        name = self.new(stem, self.inputs)
        self.inputs[name] = annotation
        return name

    def let(self, stem: str, text: str, kind: str = "") -> str:
        """A statement of its own, found again by its kind."""
        name = self.new(stem, self.inputs)
        self.lines.append(f"{name} = {bare(text)}")
        self.made.setdefault(kind or stem, []).append(name)
        return name

    def again(self, kind: str, make: Callable[[], str], most: int = 3) -> str:
        """Something of this kind that has a name already, or a new one."""
        known = self.made.get(kind, [])
        if known and (len(known) >= most or self.pick((False, True))):
            return self.pick(known)
        return make()

    def fill(self, template: str, **parts: Callable[[], str]) -> str:
        """A template with what it asks for."""
        asked = {name: make() for name, make in parts.items() if f"{{{name}}}" in template}
        return f"({template.format(**asked)})"

    # ---- values of one token, constants

    def number(self) -> str:
        if self.pick((False, True)):
            return self.constant()
        return self.pick(("0.5", "-0.3", "1.25", "2"))

    def constant(self) -> str:
        return self.fill(self.pick(CONSTANTS), given=self.given("constant", "number"))

    def row(self) -> str:
        templates = [*ROWS]
        # a query in front of every key sees none, where later keys are hidden
        templates += ["gn.log1p(gn.at_query(gn.position()))"] if self.causal else []
        templates += [f"gn.log1p(gn.visible_count({self.mask}))"] if self.is_countable else []
        table = partial(self.table, "constant")
        return self.fill(
            self.pick(templates), given=self.given("row", "row"), token=self.token, table=table
        )

    def column(self) -> str:
        table = partial(self.table, "constant")
        return self.fill(self.pick(COLUMNS), token=self.token, table=table, ids=self.ids)

    def given(self, place: str, stem: str) -> Callable[[], str]:
        return lambda: self.input(self.pick(PLACES[place]), stem)

    def token(self) -> str:
        plain = self.given("token", "token")

        def summed() -> str:
            return self.let("sum", self.pick(SUMS).format(plain()))

        return self.again("sum", summed, 2) if self.pick((False, True)) else plain()

    def ids(self) -> str:
        return self.input("gn.Token[int]", "ids")

    def blocks(self) -> str:
        return self.input("gn.Query[gn.KVHead, gn.Entry, int]", "blocks")

    # ---- values of the pair

    def scalar(self, depth: int) -> str:
        """A number of any place, functions of functions down to a depth."""
        if depth == 0:
            return self.pick((self.dot, self.row, self.column, self.constant, self.pair))()

        def guarded() -> str:
            inner = self.let("x", f"gn.tanh({bare(self.scalar(depth - 1))}) * 1.5")
            return f"({self.pick(GUARDED).format(inner)})"

        def applied() -> str:
            template = self.pick(self.pick((UNARY, BINARY, TERNARY)))
            inner = [self.scalar(depth - 1) for _ in range(template.count("{}"))]
            return f"({template.format(*inner)})"

        def named() -> str:
            return self.again("y", lambda: self.let("y", self.scalar(depth - 1)))

        def channels() -> str:
            return self.channels(depth - 1)

        return self.pick((lambda: self.scalar(0), applied, applied, named, guarded, channels))()

    def pair(self) -> str:
        """A number of the pair that is no function of others."""
        found = [self.dot, self.distance, self.lookup, self.apart]
        return self.pick((*found, self.decay) if self.causal else found)()

    def distance(self) -> str:
        return self.fill(self.pick(OF_DISTANCE), number=self.number)

    def decay(self) -> str:
        def new() -> str:
            log = self.input(self.pick(PLACES["token"]), "log_f")
            return self.let("decay", f"gn.decay({log})")

        text = self.pick(("{}", "gn.exp({})", "{} * 0.2"))
        return f"({text.format(self.again('decay', new, 2))})"

    def apart(self) -> str:
        """How much two tokens differ."""
        token = self.token()
        text = self.pick(("({0} - {1})", "abs({0} - {1})", "gn.cos({0} - {1})", "({0} * {1})"))
        return text.format(f"gn.at_query({token})", f"gn.at_key({token})")

    def table(self, place: str) -> str:
        """A table of numbers."""
        if place == "constant":
            notes = ("gn.Param[gn.Head, gn.Entry]", "gn.Param[gn.Entry]")
            return self.input(self.pick((*notes, "gn.Param[gn.KVHead, gn.Entry]")), "table")
        side, read = ("q", "gn.at_query") if place == "row" else ("k", "gn.at_key")
        wide = (
            "gn.Param[gn.Entry, gn.Dim]"
            if place == "row"
            else "gn.Param[gn.KVHead, gn.Entry, gn.Dim]"
        )
        note = self.pick((wide, f"gn.Token[gn.{self.pick(('Head', 'KVHead'))}, gn.Entry]"))
        name = self.input(note, "table")
        return f"({side} @ {name}.T)" if note == wide else f"{read}({name})"

    def lookup(self) -> str:
        """An entry of a table."""

        def pair() -> str:
            return f"gn.tanh({self.dot()})"

        def index() -> str:
            return bare(self.fill(self.pick(INDICES), pair=pair, ids=self.ids))

        def plain() -> str:
            return f"gn.lookup({self.table('constant')}, {index()})"

        def of_token() -> str:
            return f"gn.lookup({self.table(self.pick(('row', 'column')))}, {index()})"

        def square() -> str:
            name = self.input("gn.Param[gn.Head, gn.Entry, gn.Entry]", "table")
            return f"gn.lookup({name}, {index()}, {index()})"

        def between() -> str:
            return f"gn.interpolate({self.table('constant')}, gn.clip({self.dot()} + 1, 0, 3))"

        return self.pick((plain, of_token, square, between))()

    def channels(self, depth: int) -> str:
        """A sum over the hidden units of a small MLP, or over waves."""
        note = self.pick(("gn.Param[Hidden]", "gn.Param[gn.Head, Hidden]"))
        w, u = self.input(note, "w"), self.input("gn.Param[Hidden]", "u")
        x = f"gn.tanh({self.scalar(depth)})"
        inner = self.pick(
            ("gn.relu({x} * {u} + {w})", "{w} * gn.tanh({x} * {u})", "gn.cos({x} * {u} + {w})")
        )
        return f"gn.channel_sum({inner.format(x=x, u=u, w=w)})"

    # ---- dots

    def dot(self) -> str:
        """A scaled dot; at most three of a sentence differ."""
        return self.again("s", self.new_dot)

    def new_dot(self) -> str:
        a, b, is_whole = self.vectors()
        a, b = self.mapped(a, "row"), self.mapped(b, "column")
        turn = self.pick(("", "", "angle", "through"))
        through = ""
        if turn == "angle":
            a, b = self.turned(a, b)
        elif turn == "through" and is_whole:
            step = self.input("gn.Token[gn.KVHead, gn.Plane]", "step")
            through = f", through=gn.rotation(gn.tanh({step}))"
        name = self.let("x", a) if not a.isidentifier() else a
        scale = self.pick((f"gn.rsqrt_dim({name})", "0.3"))
        return self.let("s", f"gn.dot({name}, {b}{through}) * {scale}")

    def vectors(self) -> tuple[str, str, bool]:
        """Two vectors of one width, and whether it is that of q."""

        def whole() -> tuple[str, str, bool]:
            return "q", "k", True

        def share() -> tuple[str, str, bool]:
            name = self.again("qs", self.split, 1)
            half = self.pick(("", "_rest"))
            return f"{name}{half}", f"k{name[1:]}{half}", False

        def further() -> tuple[str, str, bool]:
            query = self.pick(("gn.Query[gn.Head, Rope]", "gn.Query[gn.KVHead, Rope]"))
            key = self.pick(
                ("gn.Token[gn.KVHead, Rope]", "gn.Token[Rope]", "gn.Token[gn.Head, Rope]")
            )
            return self.input(query, "q_r"), self.input(key, "k_r"), False

        def joined() -> tuple[str, str, bool]:
            parts = [self.pick((share, further))() for _ in range(2)]
            a, b = (", ".join(side) for side in zip(*(part[:2] for part in parts), strict=True))
            return f"gn.concat({a})", f"gn.concat({b})", False

        def fixed() -> tuple[str, str, bool]:
            name = self.input("gn.Param[gn.Head, gn.Dim]", "vector")
            return self.pick((("q", name, False), (name, "k", False)))

        return self.pick((whole, share, further, joined, fixed))()

    def split(self) -> str:
        """Two shares of q, and the same two of k."""
        share = self.pick(("0.5", "0.25", "0.75"))
        self.lines.append(f"qs, qs_rest = gn.split(q, {share})")
        self.lines.append(f"ks, ks_rest = gn.split(k, {share})")
        self.made["qs"] = ["qs"]
        return "qs"

    def mapped(self, x: str, place: str) -> str:
        """A map of one token, of any width."""
        scalar = self.row if place == "row" else self.column
        text = self.pick(
            ("{x}", "{x}", "gn.l2_norm({x})", "{x} * {s}", "gn.tanh({x})", "{x} + 0.5")
        )
        return bare(self.fill(text, x=lambda: x, s=scalar))

    def turned(self, a: str, b: str) -> tuple[str, str]:
        """Both sides turned by their positions."""
        layout = self.pick(("", ", layout='pairs'"))
        a, b = (x if x.isidentifier() else self.let("x", x) for x in (a, b))
        angle = f"gn.position() * gn.frequencies({a})"
        return f"gn.rotate({a}, {angle}{layout})", f"gn.rotate({b}, {angle}{layout})"

    # ---- attentions

    def attention(self) -> str:
        """One normaliser over one mask."""
        shown = CAUSAL if self.causal else BEYOND
        text = self.fill(self.pick(shown), ids=self.ids, blocks=self.blocks)
        self.mask, self.is_countable = self.let("mask", text), "blocks" not in text
        return self.pick((self.softmax, self.softmax, self.weighted_sum, self.ratio))()

    def score(self) -> str:
        """A number of the pair."""
        total = self.pair()
        for _ in range(self.pick((0, 1, 2))):
            template = self.pick(BINARY)
            total = f"({template.format(total, self.scalar(self.pick((0, 1, 2))))})"
        return f"({self.pick(('{}', *UNARY)).format(total)})"

    def softmax(self) -> str:
        template = self.pick(("", ", sink=0.0", ", sink={constant}", ", sink={row}", ", sink=-1.5"))
        tail = self.fill(template, constant=self.constant, row=self.row)[1:-1]
        return self.let("out", f"gn.softmax({bare(self.score())}, mask={self.mask}{tail})")

    def weighted_sum(self) -> str:
        return self.let("out", f"gn.weighted_sum({bare(self.score())}, mask={self.mask})")

    def ratio(self) -> str:
        """Sums of exponentials, or of other positive numbers."""
        size = self.pick((2, 4))
        score = self.let("z", f"gn.tanh({bare(self.score())}) * {size}")
        e = self.let("e", f"gn.exp({score})")
        template = self.pick(RATIOS)
        parts = {"z": lambda: score, "e": lambda: e}
        parts |= {"column": self.column, "other": lambda: self.scalar(1)}
        call = self.fill(template, **parts, mask=lambda: self.mask)
        return self.let("out", f"gn.ratio{call}")

    def output(self) -> str:
        """One attention, gated or normed, or the difference of two."""
        first = self.attention()
        gate = self.pick(OUTPUTS)
        return bare(
            self.fill(
                gate,
                o=lambda: first,
                gate=lambda: self.input("gn.Query[gn.Head, gn.ValueDim]", "gate"),
                row=self.row,
                number=self.constant,
                other=self.attention,
            )
        )

    def text(self) -> str:
        """The whole declaration."""
        result = self.output()
        lines = self.used(result)
        arguments = ["q", "k", *(f"{name}: {note}" for name, note in self.inputs.items())]
        body = [f"@gn.variant\ndef made({', '.join(arguments)}):", '    "A random sentence."']
        body += [f"    {ast.unparse(ast.parse(line))}" for line in lines]
        body += [f"    return {ast.unparse(ast.parse(result))}"]
        axes = [
            f'class {name}(gn.Axis):\n    "{doc}"\n\n\n'
            for name, doc in AXES.items()
            if any(name in note for note in self.inputs.values())
        ]
        return "import gnomon as gn\n\n\n" + "".join(axes) + "\n".join(body) + "\n"

    def used(self, result: str) -> list[str]:
        """The statements that the result needs; an input of no other is dropped."""
        needed, kept = names(result), []
        for line in reversed(self.lines):
            target = ast.parse(line).body[0]
            assert isinstance(target, ast.Assign)
            if names(ast.unparse(target.targets[0])) & needed:
                needed |= names(ast.unparse(target.value))
                kept.append(line)
        self.inputs = {name: note for name, note in self.inputs.items() if name in needed}
        return kept[::-1]

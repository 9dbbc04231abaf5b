"""A whole variant as plain torch code in float64, O(T^2): what an export is tested against.

Pair values are [batch, query, key, head]. A packed call is a loop over its sequences. The text
shares nothing with the kernels, nor with `gnomon.dsl.reference`: two oracles that must agree.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import (
    Apply,
    At,
    Builtin,
    Decay,
    Dot,
    Expr,
    Input,
    Lookup,
    Mask,
    PrefixSum,
    Ratio,
    Softmax,
    Sum,
    WeightedSum,
)
from gnomon.lowering.core import Program
from gnomon.lowering.emit import torch_maps as maps
from gnomon.lowering.emit.plain_transports import carried
from gnomon.lowering.emit.signature_text import Signature, symbol_name
from gnomon.lowering.emit.text import Code, atom, call, docstring, infix, statement
from gnomon.lowering.emit.torch import Values, finest
from gnomon.lowering.emit.torch_library import functions
from gnomon.lowering.emit.torch_text import Value, lifted, method, subscript

_SHARED = ":, :, None]"


@dataclass
class PairValues(Values):
    """Values of a variant in float64, those of pairs too."""

    double: bool = True
    visible: Value | None = None
    masks: dict[Mask, Value] = field(default_factory=dict)

    # ---- leaves

    def input(self, node: Input) -> Value:
        """A tensor of the call; what belongs to a key head was repeated for its query heads."""
        value = super().input(node)
        return replace(value, heads="Head" if value.heads else None)

    def builtin(self, node: Builtin) -> Value:
        """What the call knows; one sequence at a time, so that its length is a number."""
        if node.which == "length":
            return Value(self.need("T_k"), "int")
        if node.which == "visible_count":
            shown = self.mask(cast(Mask, node.of))
            return Value(
                method(method(shown.code, "sum", atom("2")), "double"), "f64", "row", shown.heads
            )
        return super().builtin(node)

    def prefix_sum(self, node: PrefixSum) -> Value:
        """The running sum."""
        x = self.value(node.x, guards=())
        code = method(x.code, "cumsum", atom("1"))
        return x.with_code(code if node.inclusive else infix("-", code, x.code))

    # ---- pairs

    def _map(self, node: Expr) -> Value:
        match node:
            case Dot(a, b, None) if "constant" in (kind(a).place, kind(b).place):
                return self.value(Sum(Apply("*", (a, b))))
            case Dot(a, b, None):
                return self.dot(node, a, b)
            case Dot():
                return carried(self, node)
            case Decay(x):
                return self.decay(x)
            case Lookup() if kind(node).place == "pair":
                return self.pair_entry(node)
            case Softmax() | WeightedSum() | Ratio():
                return self.attention(node)
        return super()._map(node)

    def dot(self, node: Dot, a: Expr, b: Expr) -> Value:
        """a_i . b_j."""
        outer = self.context
        self.context = replace(outer, guards=self.guards_of_tokens())
        row = self.value(a) if kind(a).place != "token" else self.at_row(a)
        column = self.value(b)
        self.context = outer
        equation = atom('"bihd,bjhd->bijh"')
        code = self.fit(
            (a, b), (row, column), lambda x: call("torch.einsum", equation, x[0].code, x[1].code)
        )
        return Value(code, "f64", "pair", finest([row.heads, column.heads]), batched=True)

    def guards_of_tokens(self) -> tuple[tuple[Value, bool], ...]:
        """The conditions on a vector of one token that leave it one."""
        return tuple(guard for guard in self.context.guards if guard[0].place != "pair")

    def decay(self, x: Expr) -> Value:
        """The steps of (j, i]; of a constant step, as many as the positions are apart."""
        if kind(x).place == "constant":
            position = Builtin("position")
            distance = Apply("-", (At(position, "row"), At(position, "column")))
            return self.value(Apply("*", (x, distance)))
        # a step of -inf counts as -1e5: e^-1e5 is 0, and differences of sums stay finite
        steps = self.value(x, guards=())
        total = method(method(steps.code, "clamp", Code("min=-1e5")), "cumsum", atom("1"))
        sums = self.bind("running_sum", steps.with_code(total))
        row = self.read_rows(sums)
        row, column = self.level([row, sums])
        return self.like([row, column], infix("-", row.code, column.code), "f64")

    def pair_entry(self, node: Lookup) -> Value:
        """An entry that depends on the pair."""
        table = self.value(node.table, guards=self.guards_of_tokens())
        if not table.is_atomic:
            table = self.bind("table", table)
        index = self.level([self.paired(self.value(part, guards=())) for part in node.index])
        clamped = [
            maps.clamped(self, part, table, axis, "entry") for axis, part in enumerate(index)
        ]
        heads = finest([table.heads, *(part.heads for part in index)])
        result = Value(table.code, "f64", "pair", heads, table.axes - len(index), batched=True)
        if table.place == "constant":
            lead = [str(maps.whole_head(self))] if table.heads else []
            text = ", ".join([*lead, *map(str, clamped)])
            return result.with_code(subscript(table.code, text))
        name = self.helper("read_rows" if table.place == "row" else "read_columns")
        return result.with_code(call(name, table.code, clamped[0]))

    def paired(self, value: Value) -> Value:
        """A row or column value beside pairs: [batch, query, 1, head] or [batch, 1, key, head]."""
        if value.place not in ("row", "token"):
            return value
        text = value.code.text
        index = ":, :, None" if value.place == "row" else ":, None"
        if text.endswith(_SHARED):
            code = atom(
                f"{text.removesuffix(_SHARED)}{index}{', :' * (value.place != 'row')}, None]"
            )
        else:
            code = subscript(value.code, index)
        return replace(value, code=code, place="pair")

    def level(self, values: Sequence[Value]) -> list[Value]:
        """Values of one place: pairs where a row meets a column."""
        places = {value.place for value in values}
        if "pair" in places or {"row", "token"} <= places:
            return [self.paired(value) for value in values]
        return list(values)

    def guard(self, value: Value, fn: str) -> Value:
        """A value that is harmless wherever it is not chosen, and in hidden pairs."""
        guards = self.context.guards
        if value.place != "pair":
            kept = tuple(guard for guard in guards if guard[0] != self.visible)
            self.context = replace(self.context, guards=kept)
        try:
            return super().guard(value, fn)
        finally:
            self.context = replace(self.context, guards=guards)

    # ---- masks

    def mask(self, mask: Mask) -> Value:
        """Which pairs a mask shows, [batch | 1, query, key, head | 1]."""
        i, j = self.need("i"), self.need("j")
        match mask.rule, mask.operands:
            case "causal", operands:
                return _condition(infix("<" if operands and operands[0] else "<=", j, i))
            case "window", (int() as size, *_):
                return _condition(infix("<", method(infix("-", i, j), "abs"), atom(str(size))))
            case "everything" | "negligible", _:
                return _condition(
                    call("torch.ones_like", infix("-", i, j), Code("dtype=torch.bool"))
                )
            case "first_keys", (int() as count, *_):
                return _condition(infix("<", j, atom(str(count))))
            case "same_document", (Expr() as ids, *_):
                row, column = self.paired(self.at_row(ids)), self.paired(self.value(ids))
                return _condition(infix("==", row.code, column.code), row)
            case "selected_blocks", (Expr() as blocks, int() as size, *_):
                listed = self.paired(self.value(blocks))
                block = subscript(infix("//", j, atom(str(size))), "..., None")
                return _condition(
                    method(infix("==", listed.code, block), "any", atom("-1")), listed
                )
            case ("and" | "or") as rule, (Mask() as a, Mask() as b):
                return self._both("&" if rule == "and" else "|", a, b)
        raise UnsupportedError(f"no torch code for the mask {mask.rule}", "", where=mask.where)

    def _both(self, sign: str, a: Mask, b: Mask) -> Value:
        if "negligible" in (a.rule, b.rule) and sign == "&":
            # it hides only what has no weight
            return self.mask(b if a.rule == "negligible" else a)
        left, right = self.mask(a), self.mask(b)
        return _condition(infix(sign, left.code, right.code), left if left.heads else right)

    # ---- attentions

    def attention(self, node: Softmax | WeightedSum | Ratio) -> Value:
        """The output of one attention, [batch, query, head, d_v]."""
        outer = self.visible, self.context
        if node.mask not in self.masks:
            self.masks[node.mask] = self.bind("visible", self.mask(node.mask))
        self.visible = self.masks[node.mask]
        self.context = replace(self.context, guards=((self.visible, True),))
        weights = self.weights(node)
        self.visible, self.context = outer
        equation = atom('"bijh,bjhv->bihv"')
        out = Value(
            call("torch.einsum", equation, weights, atom("v")), "f64", "row", "Head", 1, True
        )
        return self.bind("o", out)

    def weights(self, node: Softmax | WeightedSum | Ratio) -> Code:
        """The weights, [batch, query, key, head]."""
        assert self.visible is not None
        shown = self.visible.code
        match node:
            case Softmax(logit, sink, _):
                logits = self.bind("logit", self.paired(self.value(logit)))
                sinks = [] if sink is None else [self.sink(sink)]
                weights = self.free("weights")
                lse = self.free("lse") if self.signature.has_lse else "_"
                code = call(self.helper("softmax"), logits.code, shown, *sinks)
                self.lines += statement(f"{weights}, {lse} = ", code, self.depth)
                if self.signature.has_lse and not (logits.batched and logits.heads == "Head"):
                    self.lines += [f"    {lse} = {lse}.expand(q.shape[:3])"]
                return atom(weights)
            case WeightedSum(weight, _):
                value = self.paired(self.value(weight))
                code = call("torch.where", shown, value.code, atom("0.0"))
            case Ratio(numerator, denominator, _, at_least):
                top = self.bind("numerator", self.paired(self.value(numerator)))
                bottom = self.bind("denominator", self.paired(self.value(denominator)))
                name = self.helper("ratio")
                code = call(name, top.code, bottom.code, shown, atom(repr(float(at_least))))
        return self.bind("weights", Value(code, "f64", "pair")).code

    def sink(self, node: Expr) -> Code:
        """The logit of a sink beside pairs."""
        value = self.value(node, guards=())
        if value.place == "token":
            value = self.at_row(node)
        return lifted(self.paired(value), 0)


def _condition(code: Code, like: Value | None = None) -> Value:
    return Value(code, "bool", "pair", like.heads if like else None, batched=like is not None)


def print_reference(program: Program) -> str:
    """The variant of a program as torch code: `<name>_reference(q, k, v, ...)` in float64."""
    variant = program.variant
    signature = Signature(variant)
    shared: Counter[object] = Counter()
    for _ in range(2):  # the first run counts what is used more than once
        values = PairValues(variant, shared=shared)
        values.taken |= {f"{variant.name}_reference", "one_sequence", "i", "j"}
        values.taken -= {"o", "lse"}
        out = values.value(variant.output)
        shared = values.uses
    dense = [
        f"def one_sequence({', '.join(['q', 'k', 'v', *signature.names, 'positions'])}):",
        *docstring(f"{signature.formula}\n\n{_DENSE}", 1),
        *_prepared(signature),
        *local_names(signature, values.needs),
        *values.lines,
        f"    return {out.code}, {'lse' if signature.has_lse else 'None'}",
    ]
    wrapper = _wrapper(signature)
    library = functions({*values.helpers, "cut_positions"})
    return "\n\n\n".join([*library, "\n".join(dense), "\n".join(wrapper)]) + "\n"


_DENSE = "One sequence, or a batch of sequences of one length; pairs are [batch, query, key, head]."


def _prepared(signature: Signature) -> list[str]:
    """Everything in float64, and with as many heads as q has."""
    names = ", ".join(x.name for x in signature.inputs)
    source = Code(f"x.double() for x in ({names})")
    lines = statement(f"{names} = ", Code(f"({source})", items=(source,), plain=True), 1)
    per_key = [x for x in signature.inputs if x.heads == "KVHead"]
    lines += ["    group = q.shape[2] // k.shape[2]"]
    for item in per_key:
        axis = 0 if item.place == "constant" else 2
        lines += [f"    {item.name} = {item.name}.repeat_interleave(group, {axis})"]
    return lines


def local_names(signature: Signature, needs: Iterable[str]) -> list[str]:
    """The lines that define what the formula's code speaks of."""
    wanted = set(needs)
    lines = ["T_q, T_k = q.shape[1], k.shape[1]"]
    lines += ["H = q.shape[2]"] if "H" in wanted else []
    sizes = [s for s in signature.symbols if symbol_name(s) in wanted]
    lines += [f"{symbol_name(s)} = {signature.size(s)}" for s in sizes]
    options = "dtype=torch.float64, device=q.device"
    lines += ["each_head = torch.arange(q.shape[2], device=q.device)"] * ("each_head" in wanted)
    lines += [f"head = torch.arange(q.shape[2], {options})"] if "head" in wanted else []
    lines += ["rows = slice(T_k - T_q, T_k)"] if "rows" in wanted else []
    if "i" in wanted:
        lines += ["i = torch.arange(T_k - T_q, T_k, device=q.device)[None, :, None, None]"]
    if "j" in wanted:
        lines += ["j = torch.arange(T_k, device=q.device)[None, None, :, None]"]
    for name in signature.coordinates:
        lines += [f'position_{name} = positions["{name}"].double()[..., None]']
        lines += [f"position_{name}_q = position_{name}[:, T_k - T_q :]"]
    lines = [f"    {line}" for line in lines]
    return lines + (_positions(wanted) if wanted & {"position", "position_q"} else [])


def _positions(wanted: set[str]) -> list[str]:
    options = "dtype=torch.float64, device=q.device"
    lines = [
        "    if positions is None or isinstance(positions, dict):",
        f"        position = torch.arange(T_k, {options})[None, :, None]",
        "        first = T_k - T_q",
        f"        position_q = torch.arange(first, T_k, {options})[None, :, None]",
        "    else:",
        "        position = positions.double()[..., None]",
        "        position_q = position[:, T_k - T_q :]",
    ]
    if "position_q" in wanted:
        return lines
    return [line for line in lines if "position_q" not in line and "first" not in line]


_LSE = """    if return_lse:
        return tuple(torch.cat(parts, 1) for parts in zip(*results, strict=True))"""


def _wrapper(signature: Signature) -> list[str]:
    """The public function: a loop over packed sequences."""
    name = f"{signature.variant.name}_reference"
    queries, keys, number = (signature.local(x) for x in ("queries", "keys", "sequence"))
    cut = [f"q[:, {queries}]", f"k[:, {keys}]", f"v[:, {keys}]"]
    for item in signature.declared:
        side = {"row": queries, "constant": ""}.get(item.place, keys)
        cut.append(f"{item.name}[:, {side}]" if side else item.name)
    whole = ["q", "k", "v", *signature.names, "positions"]
    lines = statement("def ", call(name, *map(atom, signature.parameters)), 0, ":")
    lines += docstring(_WRAPPER, 1)
    lines += ["    if cu_seqlens is not None:", "        cu_seqlens_q = cu_seqlens_k = cu_seqlens"]
    lines += ["    if cu_seqlens_q is None:"]
    lines += statement("results = [", call("one_sequence", *map(atom, whole)), 2, "]")
    lines += ["    else:", "        results = []"]
    lines += [f"        for {number} in range(len(cu_seqlens_q) - 1):"]
    for side, short in ((queries, "q"), (keys, "k")):
        bounds = f"cu_seqlens_{short}[{number} : {number} + 2].tolist()"
        lines += [f"            {side} = slice(*{bounds})"]
    parts = call("one_sequence", *map(atom, [*cut, f"cut_positions(positions, {keys})"]))
    lines += statement("", call("results.append", parts), 3)
    lines += [_LSE] if signature.has_lse else []
    return [*lines, "    return torch.cat([out for out, _ in results], 1)"]


_WRAPPER = """The output [batch, time_q, head, d_v] in float64; with `return_lse` also log-sum-exps.

O(T^2) time and memory; gradients by torch's autograd."""

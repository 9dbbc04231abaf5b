"""The autograd function of one attention, printed.

    class <Name>(torch.autograd.Function)
        apply(call, <hosts>, <streams>, v[, row_term])  ->  o [batch, time_q, head, d_v][, lse]

`row_term` is the part of a softmax logit that does not depend on the key. The
kernel adds it to the log-sum-exp from the streams that it is made of; as an argument it is there
for its gradient alone:

    with  delta_i = do_i . o_i - dlse_i   and   p_i = exp(sink_i - lse_i)  (0 without a sink)
    d row_term_i = dlse_i + p_i delta_i         d sink_i = -p_i delta_i
"""

from dataclasses import dataclass

from gnomon.dsl.errors import CompilerBug
from gnomon.lowering.core import Attention, Stream
from gnomon.lowering.emit.launch import Launched, margin
from gnomon.lowering.emit.text import INDENT, WIDTH, Code, atom, call, docstring, remark, statement

_WHY_EXACT = "o in fp32: the error of a rounded one would add up in the gradient of a running sum"


def class_name(attention: Attention) -> str:
    """FoxAttention for fox."""
    return "".join(part.capitalize() for part in attention.name.split("_")) + "Attention"


def tensors(attention: Attention) -> list[Stream]:
    """The tensors among the streams."""
    return [s for s in attention.streams if s.role != "host"]


def hosts(attention: Attention) -> list[Stream]:
    """The Python numbers among the streams."""
    return [s for s in attention.streams if s.role == "host"]


def backward_helpers(attention: Attention) -> tuple[str, ...]:
    """What the backward pass calls of the torch library."""
    if attention.normaliser == "softmax":
        return ("row_statistics",)
    return () if attention.normaliser == "weighted_sum" else ("along_time", "row_dot")


@dataclass(frozen=True, slots=True)
class AutogradPrinter:
    """Prints the autograd function of one attention."""

    attention: Attention
    fwd: Launched
    bwd_rows: Launched | None
    bwd_columns: Launched
    near_tiles: bool = False
    """Whether offsets inside of a tile have 32 bits: tensors that reach further are copied."""

    @property
    def name(self) -> str:
        """The name of the class."""
        return class_name(self.attention)

    @property
    def streams(self) -> list[Stream]:
        """The tensors among the streams."""
        return tensors(self.attention)

    @property
    def hosts(self) -> list[str]:
        """The names of the Python numbers among the streams."""
        return [s.name for s in hosts(self.attention)]

    @property
    def has_lse(self) -> bool:
        """Whether it has a log-sum-exp as its second result."""
        return self.attention.normaliser == "softmax"

    @property
    def statistics(self) -> list[str]:
        """What the forward kernel leaves for the backward ones."""
        return [t.name for t in self.fwd.outputs if t.name not in ("o", "o_exact")]

    @property
    def kept_o(self) -> str:
        """The output as the backward pass reads it."""
        return "o_exact" if self.attention.needs_exact_o() else "o"

    @property
    def kept(self) -> list[str]:
        """What the backward pass reads."""
        o = [] if self.attention.normaliser == "weighted_sum" else [self.kept_o]
        return [*(s.name for s in self.streams), "v", *o, *self.statistics]

    @property
    def arguments(self) -> list[str]:
        """The arguments of apply."""
        row_term = ["row_term"] if self.attention.row_term is not None else []
        return ["call", *self.hosts, *(s.name for s in self.streams), "v", *row_term]

    def lines(self) -> list[str]:
        """The class."""
        lines = [f"class {self.name}(torch.autograd.Function):"]
        lines += docstring(self._doc(), 1)
        lines += ["", *self._forward(), "", *self._backward()]
        return lines

    def _doc(self) -> str:
        text = f"The {self.attention.normaliser.replace('_', ' ')} of {self.attention.name}: o"
        text += ", and the log-sum-exp of each row." if self.has_lse else "."
        return f"{text}\n\nStreams are [batch, time, heads, ...], constants [heads, ...]."

    # ---- forward

    def _forward(self) -> list[str]:
        lines = [f"{INDENT}@staticmethod"]
        lines += statement("def forward", call("", *map(atom, ["ctx", *self.arguments])), 1, ":")
        if self.near_tiles:
            names = ", ".join([*(s.name for s in self.streams if s.role == "dot"), "v"])
            several = f"{names} = map(within_reach, ({names}))"
            lines += [f"{INDENT * 2}{several if ',' in names else 'v = within_reach(v)'}"]
        results = ", ".join(t.name for t in self.fwd.outputs)
        if self.fwd.reach is not None:
            lines += statement("margin = ", margin(self.fwd.reach), 2)
        lines += statement(f"{results} = ", self._launched(self.fwd), 2)
        lines += statement("", call("ctx.save_for_backward", *map(atom, self.kept)), 2)
        numbers = ["call", *self.hosts, *(["margin"] if self.fwd.reach is not None else [])]
        lines += [f"{INDENT * 2}ctx.{name} = {name}" for name in numbers]
        out = "o.to(v.dtype)"
        return [*lines, f"{INDENT * 2}return {f'{out}, lse' if self.has_lse else out}"]

    def _launched(self, launched: Launched, prefix: str = "") -> Code:
        numbers = [f"{prefix}{name}" for name in launched.hosts]
        names = [f"{prefix}call", *numbers, *(t.name for t in launched.inputs)]
        names += [f"{prefix}margin"] if launched.reach is not None else []
        return call(launched.name, *map(atom, names))

    # ---- backward

    def _backward(self) -> list[str]:
        given = ["ctx", "do", *(["dlse"] if self.has_lse else [])]
        lines = [f"{INDENT}@staticmethod", f"{INDENT}def backward({', '.join(given)}):"]
        lines += [f"{INDENT * 2}refuse_second_derivative()"]
        kept = self.kept if len(self.kept) > 1 else [f"({self.kept[0]},)"]
        lines += _spread("", kept, " = ctx.saved_tensors")
        lines += [f"{INDENT * 2}do = within_reach(do)"] * self.near_tiles
        lines += self._delta()
        formed = {t.name for half, _ in self._halves() for t in half.outputs}
        sink = self.attention.sink
        if sink is not None and sink.differentiable:
            formed.add(f"d_{sink.name}")
        names = [x if x in formed else "None" for x in (f"d_{s.name}" for s in self.streams)]
        names.append("dv")
        lines += [f"{INDENT * 2}{' = '.join(x for x in names if x != 'None')} = None"]
        for launched, streams in self._halves():
            lines += self._half(launched, streams)
        lines += self._row_gradients()
        rows = ["d_row_term"] if self.attention.row_term is not None else []
        results = ["None"] * (1 + len(self.hosts)) + names + rows
        return [*lines, *_spread("return ", results)]

    def _delta(self) -> list[str]:
        if self.attention.normaliser == "weighted_sum":
            return []
        lines = remark(_WHY_EXACT, 2) if self.kept_o == "o_exact" else []
        if self.has_lse:
            found, product = (
                "delta, lse_log2, dlse",
                f"row_statistics(do, {self.kept_o}, lse, dlse)",
            )
        else:
            found, product = "delta", f"along_time(row_dot(do, {self.kept_o}))"
        return [*lines, f"{INDENT * 2}{found} = {product}"]

    def _halves(self) -> list[tuple[Launched, list[Stream]]]:
        """The backward kernels, each with the streams whose gradient it forms."""
        halves = [] if self.bwd_rows is None else [self.bwd_rows]
        found = []
        for launched in (*halves, self.bwd_columns):
            outputs = {t.name for t in launched.outputs}
            found.append((launched, [s for s in self.streams if f"d_{s.name}" in outputs]))
        return found

    def _half(self, launched: Launched, streams: list[Stream]) -> list[str]:
        """One backward kernel, launched only where somebody wants what it forms."""
        wanted = [*(s.name for s in streams)]
        if any(t.name == "dv" for t in launched.outputs):
            wanted.append("v")
        places = [self.arguments.index(name) for name in wanted]
        lines = [f"{INDENT * 2}if {_any_needed(places)}:"]
        results = ", ".join(t.name for t in launched.outputs)
        lines += statement(f"{results} = ", self._launched(launched, "ctx."), 3)
        for stream in streams:
            lines += self._fold(stream, launched)
        if "v" in wanted:
            lines += [f"{INDENT * 3}dv = dv.to(v.dtype)"]
        return lines

    def _fold(self, stream: Stream, launched: Launched) -> list[str]:
        name = stream.name
        (tensor,) = (t for t in launched.outputs if t.name == f"d_{name}")
        if tensor.axes[0] == "part":
            code = call("fold_heads", atom(f"d_{name}.sum(0)"), atom(name), atom("2"))
        elif stream.place == "constant":
            code = call("fold_heads", atom(f"d_{name}.sum((0, 1))"), atom(name), atom("0"))
        else:
            code = call("fold_heads", atom(f"d_{name}"), atom(name), atom("2"))
        return statement(f"d_{name} = ", code, 3)

    def _row_gradients(self) -> list[str]:
        """What needs the log-sum-exp alone: the sink and the row term."""
        a = self.attention
        lines: list[str] = []
        share = ""
        if a.sink is not None and (a.sink.differentiable or a.row_term is not None):
            lines += self._sink_share(a.sink)
            share = " + p_sink * delta"
            if a.sink.differentiable:
                lines += self._sink_gradient(a.sink)
        if a.row_term is not None:
            lines += [f"{INDENT * 2}d_row_term = dlse{share}"]
        return lines

    def _sink_share(self, sink: Stream) -> list[str]:
        """The weight of a sink, [batch, time_q, head]."""
        name, lines = sink.name, []
        if sink.heads == "KVHead":
            name = f"{name}_each"
            group = atom(f"lse.shape[2] // {sink.name}.shape[-1]")
            code = call(f"{sink.name}.repeat_interleave", group, atom("-1"))
            lines = statement(f"{name} = ", code, 2)
        dead = "lse == -torch.inf"
        return [*lines, f"{INDENT * 2}p_sink = ({name} - lse).exp().masked_fill({dead}, 0.0)"]

    def _sink_gradient(self, sink: Stream) -> list[str]:
        if f"d_{sink.name}" in {t.name for half, _ in self._halves() for t in half.outputs}:
            raise CompilerBug(f"two gradients of the sink {sink.name}", "print_module")
        whole, axis = "-p_sink * delta", 2
        if sink.place == "constant":
            whole, axis = "(-p_sink * delta).sum((0, 1))", 0
        code = call("fold_heads", atom(whole), atom(sink.name), atom(str(axis)))
        return statement(f"d_{sink.name} = ", code, 2)


def _any_needed(places: list[int]) -> str:
    if len(places) == 1:
        return f"ctx.needs_input_grad[{places[0]}]"
    first, last = places[0], places[-1]
    if places == list(range(first, last + 1)):
        return f"any(ctx.needs_input_grad[{first}:{last + 1}])"
    return f"any(ctx.needs_input_grad[n] for n in ({', '.join(map(str, places))}))"


def _spread(start: str, names: list[str], end: str = "") -> list[str]:
    """Several values on one line, or one a line."""
    line = f"{INDENT * 2}{start}{', '.join(names)}{end}"
    if len(line) <= WIDTH:
        return [line]
    return [f"{INDENT * 2}{start}(", *(f"{INDENT * 3}{x}," for x in names), f"{INDENT * 2}){end}"]

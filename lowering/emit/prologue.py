"""The body of a generated function: streams, the calls of its attentions, the epilogue."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from gnomon.dsl.kinds import kind
from gnomon.dsl.masks import is_causal
from gnomon.dsl.nodes import At, Builtin, Dot, Expr, Input, PrefixSum, Slice, Width, walk
from gnomon.lowering.core import Anchored, Attention, Index, Output, Program, Read, Stream
from gnomon.lowering.emit import transport_library, transport_text
from gnomon.lowering.emit.autograd_text import class_name, hosts, tensors
from gnomon.lowering.emit.signature_text import Signature, symbol_name
from gnomon.lowering.emit.text import Code, atom, call, keyword, statement
from gnomon.lowering.emit.torch import SHORT, Values
from gnomon.lowering.emit.torch_text import PLACES, Value, method, subscript
from gnomon.lowering.transports import Step, step_of

_TIMES = {"row": "call.T_q", "column": "call.T_k"}
_HEADS = {"Head": "call.H", "KVHead": "call.KV", None: "1"}


@dataclass
class Body(Values):
    """Values of a program's prologue and epilogue; its streams have names."""

    streams: dict[str, str] = field(default_factory=dict)
    """The variables of the streams of the attention at hand."""
    on_gpu: bool = False
    halves: dict[Expr, tuple[Value, ...]] = field(default_factory=dict)
    """The high and the low digits of the prefix sums."""
    made: dict[Dot, list[str]] = field(default_factory=dict)
    """The versions of queries and keys, and the dots inside of leaves, of a transport."""
    flavours: list[str] = field(default_factory=list)
    """The kinds of steps of the transports (lowering/transports.py)."""
    by_kernels: bool = False
    """Whether kernels may move queries and keys."""
    kernel_step: Step | None = None
    """The step whose transport kernels are made for."""
    pieces: dict[Expr, tuple[Slice, ...]] = field(default_factory=dict)
    """Inputs that fall into pieces of channels: cut at once, their gradients are joined at once."""
    parted: dict[Expr, list[str]] = field(default_factory=dict)

    def _visit(self, node: Expr) -> Value:
        match node:
            case Slice(Input() as whole) if whole in self.pieces:
                return self.piece(node, whole)
            case Read(stream) if stream.place == "constant" and stream.axes:
                return self.value(stream.value)  # a table or vector without the kernel's head axis
            case Read(stream) | Anchored(stream, _):
                code, axes = atom(self.streams[stream.name]), len(stream.axes)
                return Value(code, "f32", PLACES[stream.place], stream.heads, axes, batched=True)
            case Index("row"):
                return Value(self.need("index_q"), "i64", "row")
        return super()._visit(node)

    def piece(self, node: Slice, whole: Input) -> Value:
        """One of the pieces of an input."""
        pieces, x = self.pieces[whole], self.value(whole)
        names = [f"{whole.name}_{n}" for n in range(1, len(pieces) + 1)]
        if whole not in self.parted:
            self.parted[whole] = [self.free(name) for name in names]
            sizes = ", ".join(
                str(self.width(p.stop + p.start.scaled(Fraction(-1)))) for p in pieces
            )
            code = method(x.code, "split", atom(f"({sizes})"), atom("-1"))
            self.lines += statement(f"{', '.join(self.parted[whole])} = ", code, self.depth)
        return x.with_code(atom(self.parted[whole][pieces.index(node)]))

    # ---- streams

    def stream(self, stream: Stream) -> str:
        """The variable, or a short expression, of a stream."""
        if stream.role in ("prefix", "low"):
            return str(self.digits(stream))
        if stream.role in ("version", "near"):
            return self.moved(stream)
        inner = stream.value.x if isinstance(stream.value, At) else stream.value
        self.rounded_once = inner if self.on_gpu and stream.role == "dot" else None
        is_constant = stream.place == "constant" and not isinstance(stream.value, Input)
        value = self.value(stream.value, exact=is_constant)
        if stream.role == "host":
            return str(value.code)
        value = self.cast(value, stream)
        if stream.place == "constant":
            value = value.with_code(self.constant(value))
        if len(value.code.text) > SHORT:
            value = self.bind(self.variable(stream), value)
        if stream.place == "constant":
            return str(value.code)
        if stream.role == "scalar":
            return str(call(self.helper("along_time"), self.spread(value, stream)))
        return str(self.spread(value, stream))

    def digits(self, stream: Stream) -> Code:
        """The high or the low digits of a prefix sum: split once, whoever reads them."""
        total = stream.value.x if isinstance(stream.value, At) else stream.value
        if total not in self.halves:
            stem = self.name(total)
            names = [self.free(f"{stem}_{part}") for part in ("high", "low")]
            whole, code = self.sum_of(total)
            self.lines += statement(f"{', '.join(names)} = ", code, self.depth)
            self.halves[total] = tuple(
                replace(whole, code=atom(name), dtype="f32") for name in names
            )
        half = self.halves[total][stream.role == "low"]
        return (self.read_rows(half) if stream.place == "row" else half).code

    def sum_of(self, total: Expr) -> tuple[Value, Code]:
        """A prefix sum, and the call that gives its two digits."""
        if isinstance(total, PrefixSum) and total.inclusive:
            steps = self.value(total.x, exact=True, guards=())
            # kernels widen what they read
            given = steps.code.text.removesuffix(".double()") if self.on_gpu else steps.code.text
            return steps, call(self.helper("prefix_digits"), atom(given), atom("call"))
        whole = self.value(total, exact=True)
        return whole, call(self.helper("two_digits"), whole.code)

    # ---- transports

    def moved(self, stream: Stream) -> str:
        """One of what a transport makes of its dot: versions, or the dots inside of leaves."""
        dot = stream.value
        assert isinstance(dot, Dot)
        assert dot.through is not None
        if dot not in self.made:
            step = step_of(dot.through)
            assert step is not None
            self.flavours.append(step.flavour)
            names = [self.free(name) for name in ("q_versions", "k_versions", "near")]
            args = [atom("call"), *transport_text.arguments(self, dot, step)]
            function = f"{transport_library.class_name(step.flavour)}.apply"
            if self.takes_kernels(step):
                self.kernel_step, function = step, "move_along"
            made = call(function, *args)
            self.lines += statement(f"{', '.join(names)} = ", made, self.depth)
            self.made[dot] = names
        names = self.made[dot]
        return names[2] if stream.role == "near" else names[stream.place == "column"]

    def takes_kernels(self, step: Step) -> bool:
        """Whether there are kernels for a step: one reflection a token, of one kind in a module."""
        fits = step.flavour == "low_rank" and not step.rank_is_repeated
        same = self.kernel_step is None or self.kernel_step.is_symmetric == step.is_symmetric
        return self.by_kernels and fits and same

    def variable(self, stream: Stream) -> str:
        """The name of a stream's tensor: its own, unless an input has that."""
        return self.name(stream.value) if stream.name in self.taken else stream.name

    def cast(self, value: Value, stream: Stream) -> Value:
        """The value in the dtype of the stream."""
        if value.is_number:
            dtype = keyword("dtype", atom("torch.float32"))
            code = call(
                "torch.full", atom("(1,)"), value.code, dtype, keyword("device", atom("q.device"))
            )
            return replace(value, code=code, dtype="f32")
        dtypes = {"f32": ("f32",), "io": ("io",), "i32": ()}[stream.dtype]
        if value.dtype in dtypes and not (stream.dtype == "io" and _is_of_others(stream.value)):
            return value
        if stream.dtype == "io":
            return value.with_code(method(value.code, "to", atom("q.dtype")))
        if stream.dtype == "i32":
            return value.with_code(method(value.code, "to", atom("torch.int32")))
        return value.with_code(method(value.code, "float"))

    def constant(self, value: Value) -> Code:
        """A constant with a head axis."""
        if value.heads is not None or value.code.text.startswith("torch.full"):
            return value.code
        return (
            method(value.code, "reshape", atom("1"))
            if not value.axes
            else subscript(value.code, "None")
        )

    def spread(self, value: Value, stream: Stream) -> Code:
        """A row or column value for every batch and token: a view, not a copy."""
        if value.batched and value.place != "constant":
            return value.code
        time = "-1" if value.place != "constant" else _TIMES[stream.place]
        heads = "1" if value.place == "constant" and value.heads is None else "-1"
        sizes = ["call.B", time, heads, *["-1"] * value.axes]
        return method(value.code, "expand", *map(atom, sizes))

    # ---- attentions

    def attend(self, attention: Attention, k: int, *, wants_lse: bool) -> None:
        """The call of one attention."""
        self.streams = {s.name: self.stream(s) for s in attention.streams}
        given = [self.streams[s.name] for s in (*hosts(attention), *tensors(attention))]
        args = [*map(atom, ["call", *given, "v"])]
        if attention.row_term is not None:
            args.append(self.value(attention.row_term).code)
        name = self.output_name(k)
        if attention.normaliser == "softmax":
            name = f"{name}, {'lse' if wants_lse else '_'}"
        applied = call(f"{class_name(attention)}.apply", *args)
        self.lines += statement(f"{name} = ", applied, self.depth)


def body(program: Program, *, on_gpu: bool = False, by_kernels: bool = False) -> Body:
    """The lines of a program's function and what they speak of.

    `by_kernels`: the stages of a transport may be kernels of the module.
    """
    made = None
    for _ in range(2):  # the first run counts what is used more than once
        made = _run(
            program,
            {} if made is None else made.uses,
            on_gpu=on_gpu,
            by_kernels=by_kernels,
        )
    assert made is not None
    return made


def _run(program: Program, shared: Mapping[object, int], *, on_gpu: bool, by_kernels: bool) -> Body:
    signature = Signature(program.variant)
    values = Body(program.variant, on_gpu=on_gpu, by_kernels=by_kernels, pieces=pieces_of(program))
    values.shared.update(shared)
    values.has_several_outputs = len(program.attentions) > 1
    values.taken |= {"position_q", "length_q", "index_q", "origin_q", "call", program.variant.name}
    values.taken |= {"o_1", *(f"o_{k + 1}" for k in range(len(program.attentions)))}
    values.taken |= {f"position_{c}{side}" for c in signature.coordinates for side in ("", "_q")}
    for k, attention in enumerate(program.attentions):
        values.attend(attention, k, wants_lse=signature.has_lse)
    result = values.value(program.epilogue)
    out = result.code
    if not isinstance(program.epilogue, Output):
        out = method(out, "to", atom("v.dtype"))
    if not signature.has_lse:
        made = [n for n, line in enumerate(values.lines) if line.startswith(f"    {out} = ")]
        if made and all(
            line.startswith(("     ", "    )")) for line in values.lines[made[-1] + 1 :]
        ):
            values.lines[made[-1]] = values.lines[made[-1]].replace(f"{out} = ", "return ", 1)
        else:
            values.lines += statement("return ", out, values.depth)
        return values
    if not isinstance(program.epilogue, Output):
        out = values.bind("out", result.with_code(out)).code
    values.lines += [f"    return ({out}, lse) if return_lse else {out}"]
    return values


def pieces_of(program: Program) -> dict[Expr, tuple[Slice, ...]]:
    """The inputs whose channels the streams read piece by piece, and the pieces in order."""
    streams = (s.value for a in program.attentions for s in a.streams)
    slices = {n for x in streams for n in walk(x) if isinstance(n, Slice)}
    found: dict[Expr, tuple[Slice, ...]] = {}
    for whole in {n.x for n in slices if isinstance(n.x, Input) and n.x.place != "token"}:
        starts = {n.start: n for n in slices if n.x == whole}
        pieces, at = [], Width()
        while at in starts:
            pieces.append(starts.pop(at))
            at = pieces[-1].stop
        if not starts and len(pieces) > 1 and at == kind(whole).axes[-1]:
            found[whole] = tuple(pieces)
    return found


def transports(program: Program) -> tuple[Dot, ...]:
    """The dots that go through a transport."""
    streams = (s for a in program.attentions for s in a.streams if s.role == "version")
    return tuple(dict.fromkeys(s.value for s in streams if isinstance(s.value, Dot)))


def has_prefill(program: Program) -> bool:
    """Whether a call can leave a cache: one transport, whose steps are I minus a low rank."""
    steps = [step_of(dot.through) for dot in transports(program) if dot.through is not None]
    return len(steps) == 1 and steps[0] is not None and steps[0].flavour == "low_rank"


def prefill(program: Program, dot: Dot, *, on_gpu: bool) -> tuple[list[str], list[Code]]:
    """The lines in front of the cache, and what it is made of."""
    assert dot.through is not None
    step = step_of(dot.through)
    assert step is not None
    values = Body(program.variant, on_gpu=on_gpu)
    values.taken |= {"call", "out", program.variant.name}
    _, k, *parts = transport_text.arguments(values, dot, step)
    lines = [*opening(values, program, is_given=False), *values.lines]
    return lines, [atom("call"), k, atom("v"), *parts]


def _is_of_others(x: Expr) -> bool:
    """Whether a vector comes from an input whose dtype need not be that of q and k."""
    return any(isinstance(n, Input) and n.name not in ("q", "k") for n in walk(x))


def opening(values: Body, program: Program, *, is_given: bool) -> list[str]:
    """The lines that define what the body speaks of; `is_given`: the call may give positions."""
    signature, wanted = values.signature, set(values.needs)
    whole = reads_whole_positions(program)
    counted = {"position", "position_q", "index_q"} & wanted
    given = [f"position_{c}" for c in signature.coordinates]
    lines = ["T_k = call.T_k"] * ("T_k" in wanted) + ["H = call.H"] * ("H" in wanted)
    lines += ["G = call.H // call.KV"] * ("G" in wanted)
    sizes = [s for s in signature.symbols if symbol_name(s) in wanted]
    lines += [f"{symbol_name(s)} = {signature.size(s)}" for s in sizes]
    for name, size in (("head", "H"), ("each_head", "H"), ("each_kv_head", "KV")):
        if name in wanted:
            lines.append(f"{name} = torch.arange(call.{size}, device=q.device)")
    if "rows" in wanted or given or (counted and is_given):
        lines.append("rows = query_rows(call)")
    lines += ["starts = sequence_starts(call)"] * ("starts" in wanted)
    if {"length", "length_q"} & wanted:
        target = ", ".join(x if x in wanted else "_" for x in ("length", "length_q"))
        lines.append(f"{target} = sequence_lengths(call, q.device)")
    if "origin_q" in wanted:
        origin = "call.of_queries(call.cu_seqlens_k[:-1])"
        lines.append(f"origin_q = 0 if call.cu_seqlens_k is None else {origin}")
    if counted:
        lines += _positions(counted, is_given=is_given, whole=whole)
    if "position_q" in counted and _meets_rows_without_keys(program):
        lines.append("# a query in front of all keys sees none: its numbers must only be finite")
        lines.append("position_q = position_q.clamp(min=0)")
    for name, coordinate in zip(given, signature.coordinates, strict=True):
        read = f'given_position(call, rows, positions, "{coordinate}", whole={whole})'
        lines.append(f"{name}, {name}_q = {read}")
    return [f"    {line}" for line in lines]


def _meets_rows_without_keys(program: Program) -> bool:
    """Whether a number of a row comes from a position that may lie in front of all keys."""
    looks_back = all(is_causal(attention.mask) for attention in program.attentions)
    scalars = [s for a in program.attentions for s in a.streams if s.role == "scalar"]
    below = (n for s in scalars if s.place == "row" for n in walk(s.value))
    return looks_back and any(isinstance(n, Builtin) and n.which == "position" for n in below)


def _positions(counted: set[str], *, is_given: bool, whole: bool) -> list[str]:
    """Positions as they are counted, or as the call gives them."""
    if counted == {"index_q"}:
        return ["_, index_q = counted_positions(call, q.device)"]
    reads_queries = counted & {"position_q", "index_q"}
    target = (
        f"{'position' if 'position' in counted else '_'}, {'position_q' if reads_queries else '_'}"
    )
    lines = [f"{target} = counted_positions(call, q.device)"]
    lines += ["index_q = position_q"] * ("index_q" in counted)
    if not is_given:
        return lines
    lines.append("if isinstance(positions, torch.Tensor):")
    return [*lines, f"    {target} = given_position(call, rows, positions, whole={whole})"]


def helpers(values: Body, *, is_given: bool) -> set[str]:
    """The functions of the library that the body calls."""
    signature, wanted = values.signature, set(values.needs)
    found = {"call", "fold_heads", *values.helpers}
    found |= {"query_rows"} if values.flavours else set()
    counted = {"position", "position_q", "index_q"} & wanted
    if "rows" in wanted or signature.coordinates or (counted and is_given):
        found.add("query_rows")
    found |= {"sequence_starts"} if "starts" in wanted else set()
    found |= {"sequence_lengths"} if {"length", "length_q"} & wanted else set()
    return found | ({"counted_positions"} if counted else set())


def reads_whole_positions(program: Program) -> bool:
    """Whether a kernel reads positions of the call as integers."""
    streams = [s for a in program.attentions for s in a.streams if s.dtype == "i32"]
    below = (n for stream in streams for n in walk(stream.value))
    return any(isinstance(n, Builtin) and n.which == "position" for n in below)


def reads_memory_order(program: Program) -> bool:
    """Whether a kernel counts positions itself, so that the call cannot give them."""
    formulas = [
        x for a in program.attentions for x in (a.weight, a.denominator, a.row_term, a.exponent)
    ]
    return any(isinstance(n, Index) for x in formulas if x is not None for n in walk(x))

"""What the stages of a transport are called with: q, k and the steps, as torch code.

Vectors of dots have the dtype of the call; what a step is made of keeps its own, or is fp32.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import Builtin, Dot, Expr, Heads
from gnomon.lowering.core import Stream
from gnomon.lowering.emit.text import Code, atom, call, infix
from gnomon.lowering.emit.torch_text import Value, method, subscript
from gnomon.lowering.transports import Step

if TYPE_CHECKING:
    from gnomon.lowering.emit.prologue import Body


def arguments(body: "Body", dot: Dot, step: Step) -> list[Code]:
    """q, k, and the parts of a step in the order of `transport_library.PARTS`."""
    heads: Heads = "Head" if "Head" in (step.heads, kind(dot.b).heads) else "KVHead"
    a, b = kind(dot.a), kind(dot.b)
    q = body.stream(Stream("q", "row", "Head", a.axes, "io", "dot", dot.a, False))
    k = body.stream(Stream("k", "column", b.heads, b.axes, "io", "dot", dot.b, False))
    if b.heads != heads:
        k = str(method(atom(k), "repeat_interleave", body.need("G"), atom("2")))
    parts = [_part(body, x, heads) for x in (step.w, step.u) if x is not None]
    if step.scale is not None:
        scale = body.value(step.scale)
        if scale.is_number:
            like = call("torch.full_like", subscript(parts[0], "..., 0"), scale.code)
            parts.append(like)
        else:
            parts.append(_part(body, step.scale, heads))
    if step.log is not None:
        parts.append(_logarithm(body, step, step.log, heads))
    return [atom(q), atom(k), *parts]


def _part(body: "Body", x: Expr, heads: Heads) -> Code:
    """A value of each token and head: [batch, time_k, heads, *axes]."""
    return _spread(body, body.value(x), heads)


def _spread(body: "Body", value: Value, heads: Heads) -> Code:
    if heads == "Head" and value.heads == "KVHead":
        value = body.repeated(value)
    if value.heads is not None and value.place != "constant" and value.batched:
        return value.code
    count = "call.H" if heads == "Head" else "call.KV"
    sizes = ["call.B", "call.T_k", count, *["-1"] * value.axes]
    return method(value.code, "expand", *map(atom, sizes))


def _logarithm(body: "Body", step: Step, log: Expr, heads: Heads) -> Code:
    """The logarithms of a diagonal; one that all tokens share counts for each unit of distance."""
    value = body.widened(body.value(log))
    if value.place == "constant":
        value = value if value.is_atomic else body.bind("log_step", value)
        position = body.value(Builtin("position"))
        steps = call(body.helper("position_steps"), position.code, body.need("starts"))
        code = infix("*", subscript(steps, "..., None"), value.code)
        value = body.bind("log_steps", replace(value, code=code, place="token", heads="Head"))
        value = replace(value, heads=None)
    return _spread(body, value, heads)

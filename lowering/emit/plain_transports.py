"""A dot through a transport in the reference of a module: one step after another."""

from dataclasses import replace
from typing import TYPE_CHECKING

from gnomon.dsl.errors import UnsupportedError
from gnomon.dsl.kinds import kind
from gnomon.dsl.nodes import Builtin, Dot, Expr
from gnomon.lowering.emit.text import Code, atom, call, infix
from gnomon.lowering.emit.torch_text import Value, lifted, subscript
from gnomon.lowering.transports import Step, step_of

if TYPE_CHECKING:
    from gnomon.lowering.emit.plain import PairValues


def carried(values: "PairValues", node: Dot) -> Value:
    """q_i M_i ... M_{j+1} k_j for every pair, by the function `carried_dot`."""
    step = None if node.through is None else step_of(node.through)
    if step is None:
        raise UnsupportedError(
            f"{values.variant.name}: its steps are no diagonal minus a product of two vectors",
            "the oracle gnomon.dsl.reference evaluates it",
            where=node.where,
        )
    q, k = values.value(node.a), values.value(node.b)
    args = [q.code, k.code, _low(values, step), _log(values, step)]
    code = call(values.helper("carried_dot"), *args)
    return values.bind("score", Value(code, "f64", "pair", "Head", batched=True))


def _low(values: "PairValues", step: Step) -> Code:
    """(beta w, u), each [batch, time, head, (repeat,) d], or None."""
    if step.w is None or step.u is None or step.scale is None:
        return atom("None")
    w, u, scale = (values.value(x) for x in (step.w, step.u, step.scale))
    scaled = infix("*", lifted(scale, w.axes), w.code)
    return call("", scaled, u.code)


def _log(values: "PairValues", step: Step) -> Code:
    """The logarithms of the diagonal of each token, or None."""
    if step.log is None:
        return atom("None")
    value = values.value(step.log)
    if not _is_constant(step.log):
        return value.code
    value = value if value.is_atomic else values.bind("log_step", value)
    position = values.value(Builtin("position"))
    steps = call(values.helper("position_steps"), position.code, atom("None"))
    made = replace(value, code=infix("*", subscript(steps, "..., None"), value.code))
    return values.bind("log_steps", made).code


def _is_constant(x: Expr) -> bool:
    return kind(x).place == "constant"

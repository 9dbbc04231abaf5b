"""transport_nodes: one level of the tree from the one below it.

P(l, m) = P(l-1, 2m+1) P(l-1, 2m)        the later transition on the left
"""

from gnomon.lowering.schedules.transport.precision import digits, memory, names, product
from gnomon.lowering.schedules.transport.stage import Plan, Stage, head_axis, number
from gnomon.lowering.tile import Arange, Kernel


def nodes(plan: Plan) -> Kernel:
    """The kernel transport_nodes: below (level l-1) -> p (level l), NODES of them a head."""
    stage = Stage(plan)
    b, form = stage.block, plan.precision.path
    earlier = b.let("i_e", b.op("*", number("i_n"), 2))
    left = stage.load_node("below", b.op("+", earlier, 1), form, "b_l", ("BD", "BD''"))
    right = stage.load_node("below", earlier, form, "b_e", ("BD''", "BD'"))
    made = digits(b, "b_p", product(b, left, right), form)
    channels = stage.width()
    for name, digit in zip(names("p", form), made, strict=True):
        stage.store(
            name,
            ("batch", "node", "kv_head", "D", "D"),
            memory(form),
            (stage.batch, number("i_n"), stage.key_head, Arange("BD"), Arange("BD'")),
            digit,
            (None, None, None, channels, channels),
        )
    doc = "The products of a level's nodes from those of their halves."
    grid = (("i_n", number("NODES")), head_axis("kv_head"), ("i_b", number("B")))
    return stage.kernel("transport_nodes", doc, grid)

"""What random sentences are made of: templates of their formulas, plainest first."""

import ast

PLACES = {
    "row": ("gn.Query[gn.Head]", "gn.Query", "gn.Query[gn.KVHead]"),
    "token": ("gn.Token[gn.Head]", "gn.Token[gn.KVHead]", "gn.Token"),
    "constant": ("gn.Param[gn.Head]", "gn.Param", "gn.Param[gn.KVHead]"),
}
CONSTANTS = ("{given}", "2 ** (-(gn.head() + 1) / gn.head_count())", "gn.tanh({given})")
ROWS = (
    "{given}",
    "gn.at_query({token})",
    "gn.sqrt(gn.channel_sum(q * q) * 0.1 + 0.1)",
    "gn.lookup({table}, gn.at_query(gn.position()) // 3)",
)
COLUMNS = (
    "gn.at_key({token})",
    "gn.log1p(gn.at_key(gn.position()))",
    "gn.tanh(gn.channel_sum(k) * 0.5)",
    "gn.lookup({table}, gn.at_key({ids}))",
)
SUMS = ("gn.prefix_sum({} * 0.2)", "gn.prefix_sum({} * 0.2, inclusive=False)")
UNARY = (
    "-{}",
    "gn.tanh({})",
    "gn.relu({})",
    "abs({})",
    "gn.sigmoid({})",
    "gn.log_sigmoid({})",
    "gn.softplus({})",
    "gn.sin({})",
    "gn.cos({})",
    "gn.cos_turns(0.25 * {})",
    "gn.clip({}, -1.5, 1.0)",
    "gn.detach({})",
    "{} ** 2",
    "gn.exp(gn.tanh({}))",
    "gn.expm1(gn.tanh({}))",
    "gn.log(gn.softplus({}) + 0.2)",
    "gn.log1p(abs({}))",
    "gn.sqrt(abs({}) + 0.1)",
    "gn.rsqrt(abs({}) + 0.5)",
    "gn.softplus({}) ** 0.5",
    "(1 + abs({})) ** -1.5",
    "2 ** gn.tanh({})",
)
GUARDED = (
    "gn.where({0} > 0.1, gn.log({0}), 0.0)",
    "gn.where({0} > 0.1, gn.sqrt({0}), {0})",
    "gn.where({0} < -0.2, 1 / {0}, -5.0)",
    "gn.where({0} > 0.1, {0} ** 0.7, 0.0)",
)
BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} / (1 + abs({}))",
    "gn.minimum({}, {})",
    "gn.maximum({}, {})",
    "(0.5 + abs({})) ** gn.tanh({})",
)
TERNARY = ("gn.where({} <= 0.3, {}, {})", "gn.clip({}, -abs({}), abs({}))")
OF_DISTANCE = (
    "gn.distance() * 0.1",
    "gn.log1p(abs(gn.distance()))",
    "abs(gn.distance()) ** 0.5",
    "abs(gn.distance()) ** gn.sigmoid({number})",
    "gn.exp(-abs({number}) * abs(gn.distance()))",
    "1 / (1 + abs(gn.distance()))",
    "gn.minimum(abs(gn.distance()), 4) * {number}",
    "gn.where(gn.distance() > 0, gn.log(abs(gn.distance())), 0.0)",
    "gn.where(gn.distance() < 3, {number}, 0.2)",
    "gn.cos_turns(gn.distance() * 0.0625)",
)
INDICES = (
    "gn.distance()",
    "gn.clip(gn.distance(), 0, 3)",
    "gn.minimum(abs(gn.distance()), 4)",
    "gn.clip(-gn.distance(), -2, 2) + 2",
    "gn.distance() // 2 + 1",
    "abs(gn.distance()) // 3",
    "gn.floor(gn.log1p(abs(gn.distance())) * 2)",
    "gn.floor({pair} * 2)",
    "gn.where({pair} > 0.1, gn.distance(), 1)",
    "gn.at_key({ids}) + gn.distance()",
    "gn.at_query({ids}) + gn.at_key({ids})",
    "gn.maximum(gn.at_query(gn.position()) // 2, gn.at_key(gn.position()))",
)
LATER = ("gn.everything()", "gn.window(4)", "gn.causal() | gn.first_keys(5)")
CAUSAL = (
    "gn.causal()",
    "gn.causal(strict=True)",
    "gn.causal() & gn.window(5)",
    "gn.causal() & gn.same_document({ids})",
    "gn.causal(strict=True) & gn.window(7) & gn.same_document({ids})",
    "gn.causal() & (gn.window(3) | gn.first_keys(2))",
    "gn.causal() & gn.selected_blocks({blocks}, size=4)",
)
BEYOND = (*LATER, "gn.same_document({ids})", "gn.causal() | gn.same_document({ids})")
RATIOS = (
    "{e}, {e}, mask={mask}",
    "gn.relu({e} - 1), abs({e} - 1), mask={mask}, at_least=0.5",
    "{e} * {column}, {e} + abs({e} - 1), mask={mask}, at_least=1e-6",
    "gn.softplus({z}), gn.sigmoid({z}), mask={mask}",
    "{z}, gn.softplus({other} + {z}), mask={mask}, at_least=0.1",
    "{z}, {z} * 0.5, mask={mask}, at_least=2.0",
)
OUTPUTS = (
    "{o}",
    "{o} * gn.sigmoid({gate})",
    "{o} * {row}",
    "gn.rms_norm({o}, eps=0.1)",
    "{o} - {number} * {other}",
    "{o} + gn.tanh({gate}) * {other}",
)
AWKWARD = (
    "scale",
    "o",
    "lse",
    "do",
    "delta",
    "dv",
    "H",
    "G",
    "B",
    "T_q",
    "T_k",
    "BM",
    "NM",
    "shift",
    "b_s",
    "b_o",
    "i_h",
    "run",
    "array",
    "head",
    "position",
    "starts",
    "rows",
    "sizes",
    "call",
    "tensors",
    "visible",
    "logit",
    "weights",
    "d_v",
    "D0",
    "i",
    "j",
    "np",
    "math",
    "torch",
    "F",
    "tl",
    "x",
    "y",
    "dq",
    "d_k",
    "p_m",
    "b_m",
    "b_p",
    "b_acc",
    "anchor_x",
    "e_table",
    "group",
    "length",
    "total",
    "ctx",
)
"""Names that generated code uses for something else."""
AXES = {"Rope": "The channels of further vectors.", "Hidden": "The hidden units."}


def names(text: str) -> set[str]:
    """The names in an expression."""
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def bare(text: str) -> str:
    """An expression without brackets around it."""
    return ast.unparse(ast.parse(text, mode="eval"))

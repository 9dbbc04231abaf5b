"""The outline of a variant: its graph as named lines, one for each value worth a name.

A value has a line if it is used twice, if it is a landmark (dot, decay, scan, transport, logit,
attention), or if the user gave it a name. The name is the user's, else that of its role; equal
names are told apart by the inputs, then by the slices that they are made of, then by number.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gnomon.dsl.algebra import is_distance, is_host
from gnomon.dsl.canonical import share
from gnomon.dsl.forms import form
from gnomon.dsl.kinds import COMPARISONS, Kind, kind
from gnomon.dsl.nodes import (
    ATTENTIONS,
    Apply,
    At,
    Builtin,
    Concat,
    Constant,
    Contract,
    Decay,
    Diagonal,
    Dot,
    Expr,
    Input,
    Lookup,
    Node,
    PrefixSum,
    Ratio,
    Rotation,
    ScoreScan,
    Slice,
    Softmax,
    StickBreaking,
    Sum,
    Variant,
    WeightedSum,
    walk,
)
from gnomon.dsl.spell import Speller

SHORT = "part"  # stands for a name while lines are broken
LEAST, LONGEST = 16, 76  # characters of a part that gets a line of its own, and of any line
KEPT = ("logit", "step", "output")
LANDMARKS = (Dot, Decay, ScoreScan, *ATTENTIONS)
FN_ROLES = {
    "+": "sum", "-": "difference", "*": "product", "/": "quotient", "//": "steps",
    "**": "power", "neg": "negative", "exp": "exponential", "log": "logarithm",
    "where": "choice", "floor": "steps", "abs": "size",
    **dict.fromkeys(COMPARISONS, "condition"),
}  # fmt: skip
CLASS_ROLES: dict[type, str] = {
    Dot: "score", ScoreScan: "scan", Decay: "log_decay", Softmax: "attention",
    WeightedSum: "attention", Ratio: "attention", StickBreaking: "attention", Lookup: "entry",
    Sum: "channel_total", PrefixSum: "running_sum", Concat: "joined", Rotation: "turn",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One value with a name."""

    name: str
    node: Expr
    kind: Kind


@dataclass(frozen=True, slots=True)
class Outline:
    """The lines of a variant, children before parents, and the names of their nodes."""

    variant: Variant
    lines: tuple[Line, ...]
    names: dict[Expr, str]


def outline(variant: Variant, shared_only: bool = False) -> Outline:
    """The named lines of a variant; equal values are one line.

    With `shared_only`, a value has a line only where it is used twice or a line would be too long.
    """
    variant = share(variant)
    nodes = [n for n in walk(variant.output) if isinstance(n, Expr) and not is_plain(n)]
    roles, users, uses = _roles(variant, nodes), _user_names(variant), _uses(variant)
    worthy = {n for n in nodes if isinstance(n, LANDMARKS) or roles.get(n) in KEPT or n in users}
    chosen = {n for n in nodes if uses[n] > 1 or n is variant.output}
    if not shared_only:
        chosen |= worthy
    for node in reversed(nodes):
        _break_long(node, chosen, worthy)
    ordered = [n for n in nodes if n in chosen]
    proposed = {n: users.get(n) or roles.get(n) or _role(n) for n in ordered}
    names = _tell_apart(proposed, users, {x.name for x in variant.inputs} | {"v"})
    lines = tuple(Line(names[n], n, kind(n)) for n in ordered)
    return Outline(variant, lines, names)


def is_plain(x: Expr) -> bool:
    """What is as short as a name for it: an input, a number, a slice, d ** -0.5, the distance."""
    match x:
        case Input() | Constant() | Builtin():
            return True
        case Slice(inner, _, _) | Apply("transpose" | "neg", (inner,)):
            return is_plain(inner)
        case At():  # a name says what is read, never where
            return True
        case Diagonal(Constant(), _):
            return True
        case Apply("**", (a, Constant())):
            return isinstance(a, (Builtin, Constant)) and is_host(a)
    return is_distance(x)


def _uses(variant: Variant) -> Counter[Node]:
    """How often a value stands in the formula; x[i] is a use of x, however often it stands."""
    uses: Counter[Node] = Counter()
    for node in reversed(list(walk(variant.output))):
        if isinstance(node, Softmax) and node.sink is not None:
            uses[node.logit] += 1  # it stands in the sum below the line, too
        times = uses[node] if isinstance(node, (At, Slice)) else 1
        for child in node.children():
            uses[child] += times
    return uses


def _break_long(node: Expr, chosen: set[Expr], worthy: set[Expr]) -> None:
    """Give parts of a line that is too long lines of their own: worthy ones, then long ones."""
    short = dict.fromkeys(chosen, SHORT)
    if isinstance(node, Dot) and len(Speller(short).line(node)) > LONGEST:
        sides = {x for x in (_read(node.a), _read(node.b)) if not is_plain(x)}
        chosen |= sides  # both alike, so that a reader can compare them
        short |= dict.fromkeys(sides, SHORT)
    while node in chosen and (length := len(Speller(short).line(node))) > LONGEST:
        parts = [n for n in _inline(node, chosen) if not is_plain(n) and n not in _chain(node)]
        lengths = {n: len(Speller(short).line(n)) for n in parts}
        # a name for each of many short terms would tell a reader less than the terms do
        fitting = [n for n in parts if max(LEAST, length / 6) <= lengths[n] <= LONGEST]
        if not fitting:
            return
        best = max(fitting, key=lambda n: (n in worthy, lengths[n]))
        chosen.add(best)
        short[best] = SHORT


def _chain(node: Expr) -> set[Expr]:
    """The beginnings of a sum of many terms."""
    found: set[Expr] = set()
    while isinstance(node, Apply) and node.fn in ("+", "-"):
        node = node.args[0]
        found.add(node)
    return found if len(found) > 2 else set()


def _inline(node: Expr, chosen: set[Expr]) -> list[Expr]:
    """The values that are spelled within the line of this one."""
    found: dict[Expr, None] = {}
    todo = [c for c in node.children() if isinstance(c, Expr)]
    while todo:
        part = todo.pop()
        if part not in chosen and part not in found:
            found[part] = None
            todo += [c for c in part.children() if isinstance(c, Expr)]
    return list(found)


def _roles(variant: Variant, nodes: Iterable[Expr]) -> dict[Expr, str]:
    """The role that a value has for the one who uses it; the first user decides."""
    roles: dict[Expr, str] = {variant.output: "output"}
    for node in nodes:
        for part, role in _parts(node):
            is_score = isinstance(part, Dot) and role in ("logit", "weight")
            roles.setdefault(part, "score" if is_score else role)
    return roles


def _parts(node: Expr) -> Iterator[tuple[Expr, str]]:
    match node:
        case Softmax(logit, _, _) | StickBreaking(logit, _, _):
            yield logit, "logit"
        case WeightedSum(weight, _):
            yield weight, "weight"
        case Ratio(above, below, _, _):
            yield from ((above, "numerator"), (below, "denominator"))
        case Dot(a, b, through):
            if _read(a) != _read(b):
                yield from ((_read(a), "queries"), (_read(b), "keys"))
            if through is not None:
                yield through, "step"
        case Rotation(angle, _):
            yield _read(angle), "angle"


def _read(x: Expr) -> Expr:
    """What is read."""
    return x.x if isinstance(x, At) else x


def _role(node: Expr) -> str:
    """The role of a value by what it is."""
    match node:
        case Contract(x, m) if form(m) == "rotation":
            return f"{_stem(x)}turned"
        case Contract(x, _) if len(kind(x).axes) == 1:
            return f"{_stem(x)}mapped"
        case Apply("**", (Constant(), Apply())) if len(kind(node).axes) == 1:
            return "omega"
        case Apply(fn, _):
            return FN_ROLES.get(fn, fn)
    return CLASS_ROLES.get(type(node), "matrix" if len(kind(node).axes) > 1 else "value")


def _stem(x: Expr) -> str:
    """The input that a vector comes from, as the beginning of a name."""
    names = [n.name for n in walk(x) if isinstance(n, Input)]
    return f"{names[0]}_" if names else ""


def _user_names(variant: Variant) -> dict[Expr, str]:
    """The variable that the user's line assigns to, for the one value that the line ends in."""
    taken = {x.name for x in variant.inputs} | {"output"}
    lines: dict[tuple[str, int], list[Expr]] = defaultdict(list)
    inner: set[tuple[Node, tuple[str, int]]] = set()
    for node in walk(variant.output):
        place = (node.where.file, node.where.line)
        inner.update((child, place) for child in node.children())
        if isinstance(node, Expr):
            lines[place].append(node)
    found: dict[Expr, str] = {}
    for place, together in lines.items():
        ends = [n for n in together if (n, place) not in inner]
        name = _assigned(together[0].where.text)
        if name and name not in taken and len(ends) == 1:
            found[ends[0]] = name
    return found


def _assigned(line: str) -> str | None:
    """The variable of `name = formula`, where the formula ends in this line.

    The value of `name = helper(...)` was made elsewhere; what this line made is its argument.
    """
    try:
        statement = ast.parse(line).body[0]
    except (SyntaxError, IndexError):
        return None
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp() | ast.UnaryOp()):
            return name
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute())):
            return name
    return None


def _tell_apart(names: dict[Expr, str], users: dict[Expr, str], taken: set[str]) -> dict[Expr, str]:
    """Names of which no two are equal; a name that the user gave to one value stays as it is."""
    names = dict(names)
    for suffixes_of in (_inputs_suffix, _slices_suffix, _number_suffix):
        groups: dict[str, list[Expr]] = defaultdict(list)
        for node, name in names.items():
            groups[name].append(node)
        for name, same in groups.items():
            own = [n for n in same if users.get(n) == name]
            others = [n for n in same if n not in own] if len(own) == 1 else same
            alone = len(same) == 1 and name not in taken
            suffixes = suffixes_of(others)
            spelled = [f"{name}_{suffix}" if suffix else name for suffix in suffixes]
            free = len(set(spelled)) == len(spelled) and not {*spelled} & {*names.values(), *taken}
            if others and not alone and (free or suffixes_of is _number_suffix):
                names.update(zip(others, spelled, strict=True))
    return names


def _inputs_suffix(same: list[Expr]) -> list[str]:
    """The inputs that not all of them have: q_k, q_e."""
    below = [dict.fromkeys(n.name for n in walk(x) if isinstance(n, Input)) for x in same]
    common = set(below[0]).intersection(*below) if len(below) > 1 else set()
    return ["_".join(n for n in names if n not in common) for names in below]


def _slices_suffix(same: list[Expr]) -> list[str]:
    """Whether they are made of first channels or of the rest."""

    def part(x: Expr) -> str:
        first = {not n.start.parts for n in walk(x) if isinstance(n, Slice)}
        return "first" if first == {True} else "rest" if first == {False} else ""

    return [part(x) for x in same]


def _number_suffix(same: list[Expr]) -> list[str]:
    return [str(n) for n in range(1, len(same) + 1)]

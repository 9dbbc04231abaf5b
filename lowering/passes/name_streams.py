"""Names of streams: what the tensor is, in the words of the variant.

Takes a value with its place and role; gives

    a dot's vectors       q, k; q_2, k_2, ...
    of a transport        q_versions, k_versions, near
    an input read as is   its own name; of a token <input>_q, <input>_k
    a prefix sum          <input>_sum_q, <input>_sum_k; its low digits <input>_sum_q_low, ...
    a table made of more  <input>_table; of a row <input>_row_q
    rsqrt_dim             scale; another number of the launch: factor
    everything else       the hint, <input>_term or term, by side; of the head alone slope
"""

from gnomon.dsl.nodes import Apply, At, Builtin, Constant, Expr, Input, PrefixSum, walk

_RESERVED = frozenset(
    (
        *("v", "o", "do", "dv", "lse", "den", "row_max", "delta"),
        *("T_q", "T_k", "H", "G", "NM", "NN", "DV", "B", "cu_seqlens_q", "cu_seqlens_k"),
        *("positions", "return_lse", "self", "torch", "math"),
    )
)


def stream_name(value: Expr, place: str, role: str, hint: str, taken: set[str]) -> str:
    """A name that is not taken yet; stable for a given variant."""
    side = {"row": "q", "column": "k"}.get(place, "")
    if role == "dot":
        base = side
    elif role == "version":
        base = f"{side}_versions"
    elif role == "near":
        base = "near"
    elif role == "host":
        base = "scale" if _is_rsqrt_dim(value) else (hint or "factor")
    elif hint:
        base = hint if hint == "sink" or hint == "blocks" else _with_side(hint, side)
    else:
        base = _by_content(value, role, side)
    return _free(base, taken | _RESERVED)


def _free(base: str, taken: set[str]) -> str:
    if base not in taken:
        return base
    number = 2
    while f"{base}_{number}" in taken:
        number += 1
    return f"{base}_{number}"


def _with_side(name: str, side: str) -> str:
    return f"{name}_{side}" if side else name


def _by_content(value: Expr, role: str, side: str) -> str:
    inner = value.x if isinstance(value, At) else value
    if isinstance(inner, Input):
        return inner.name if inner.place != "token" else _with_side(inner.name, side)
    names = [n.name for n in walk(value) if isinstance(n, Input)]
    stem = next((n for n in names if n not in ("q", "k")), None)
    if role in ("prefix", "low"):
        name = _with_side(f"{stem or 'prefix'}_sum", side)
        return name if role == "prefix" else f"{name}_{role}"
    if isinstance(inner, PrefixSum):
        return _with_side(f"{stem or 'prefix'}_sum", side)
    if role == "table":
        return (
            f"{stem or 'entries'}_table"
            if side == ""
            else _with_side(f"{stem or 'entries'}_row", side)
        )
    if stem is not None:
        return _with_side(f"{stem}_term", side)
    builtins = [n.which for n in walk(value) if isinstance(n, Builtin)]
    if "head" in builtins and not side:
        return "slope"
    return _with_side("term" if side else "constant", side)


def _is_rsqrt_dim(value: Expr) -> bool:
    match value:
        case Apply("**", (Builtin("dim"), Constant(power))):
            return power == -0.5
    return False

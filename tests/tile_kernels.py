"""Small tile programs built by hand, which the printers must be able to print."""

import math

from gnomon.lowering import tile
from gnomon.lowering.build import Block, Operand
from gnomon.lowering.tile import (
    Arange,
    Cast,
    Dot,
    Expr,
    Full,
    Kernel,
    Load,
    Number,
    Reduce,
    Ref,
    Scalar,
    Store,
    Tensor,
    Tunable,
    Type,
)

QUERY = ("batch", "time_q", "head", "D0")
KEY = ("batch", "time_k", "kv_head", "D0")
VALUE = ("batch", "time_k", "kv_head", "DV")
OUTPUT = ("batch", "time_q", "head", "DV")
GATE = ("batch", "time_k", "head")
STATISTIC = ("batch", "time_q", "head")
Param = Tensor | Scalar | Tunable
WIDTHS = (("BD0", "D0"), ("BV", "DV"))

Q = Tensor("q", QUERY, "io", "in")
K = Tensor("k", KEY, "io", "in")
V = Tensor("v", VALUE, "io", "in")
DO = Tensor("do", OUTPUT, "io", "in")
OUT = Tensor("o", OUTPUT, "io", "out")
LSE = Tensor("lse", STATISTIC, "f32", "out")
COLUMN = Tensor("c", GATE, "f32", "in", "the prefix sum of log2 f at a key, times -1")


def scalar(name: str, dtype: tile.DType = "i32") -> Ref:
    return Ref(name, Type(dtype))


def sizes(*counted: str) -> tuple[Scalar | Tunable, ...]:
    """The scalars and tunables of a kernel over pairs."""
    return (
        *(Scalar(name, "i32") for name in ("T_q", "T_k", "H", "G", *counted)),
        Scalar("scale", "f32"),
        *(Scalar(name, "i32") for name in ("D0", "DV")),
        *(Tunable(name) for name in ("BM", "BN", "BD0", "BV")),
    )


def rows(tensor: Tensor, head: Expr, times: Expr, limit: Expr, width: str) -> Load:
    """A tile [times, width]."""
    index = (scalar("i_b"), times, head, Arange(f"B{width}" if width != "DV" else "BV"))
    return Load(tensor, index, (None, limit, None, scalar(width)))


def forward(*, gate: bool) -> Kernel:
    """Causal softmax attention; with a gate, FoX (column term only: the row's own cancels)."""
    b = Block(("BM", "BN"))
    i_m, i_h = scalar("i_m"), scalar("i_h")
    i_kv = b.let("i_kv", b.op("//", i_h, scalar("G")))
    first = b.let("first", b.op("*", i_m, scalar("BM")))
    o_m = b.let("o_m", b.op("+", first, Arange("BM")))
    shift = b.let("shift", b.op("-", scalar("T_k"), scalar("T_q")))
    b_q = b.let("b_q", rows(Q, i_h, o_m, scalar("T_q"), "D0"))
    b_m = b.let("b_m", Full(-math.inf, Type("f32", ("BM",))))
    b_l = b.let("b_l", Full(0.0, Type("f32", ("BM",))))
    b_o = b.let("b_o", Full(0.0, Type("f32", ("BM", "BV"))))
    b.blank()
    b.remark("Keys up to the last query of the tile.")
    last = b.op("+", b.op("+", first, scalar("BM")), shift)
    stop = b.let("stop", b.op("minimum", last, scalar("T_k")))
    with b.loop("i_n", 0, stop, scalar("BN")) as i_n:
        o_n = b.let("o_n", b.op("+", i_n, Arange("BN")))
        b_k = b.let("b_k", rows(K, i_kv, o_n, scalar("T_k"), "D0"))
        b_s = b.op("*", Dot(b_q, b_k), scalar("scale", "f32"))
        if gate:
            index = (scalar("i_b"), o_n, i_h)
            b_c = b.let("b_c", Load(COLUMN, index, (None, scalar("T_k"), None), 0.0))
            b.remark("FoX: the logarithm of what the gates between the key and the query keep.")
            b_s = b.op("-", b_s, b_c)
        score = b.let("b_s", b_s)
        keep = b.op("and", b.op("<=", o_n, b.op("+", o_m, shift)), b.op("<", o_n, scalar("T_k")))
        score = b.let("b_z", b.op("where", keep, score, -math.inf))
        b_n = b.let("b_n", b.op("maximum", b_m, Reduce("max", score, "BN")))
        safe = b.let("b_f", b.op("where", b.op("==", b_n, -math.inf), 0.0, b_n))
        b_r = b.let("b_r", b.op("exp2", b.op("-", b_m, safe)))
        b_p = b.let("b_p", b.op("exp2", b.op("-", score, safe)))
        b.set(b_l, b.op("+", b.op("*", b_l, b_r), Reduce("sum", b_p, "BN")))
        b_v = b.let("b_v", rows(V, i_kv, o_n, scalar("T_k"), "DV"))
        b.set(b_o, b.op("+", b.op("*", b_o, b_r), Dot(Cast(b_p, "io"), b_v)))
        b.set(b_m, b_n)
    b.blank()
    total = b.op("where", b.op("==", b_l, 0.0), 1.0, b_l)
    limits = (None, scalar("T_q"), None, scalar("DV"))
    index = (scalar("i_b"), o_m, i_h)
    b.add(Store(OUT, (*index, Arange("BV")), b.op("/", b_o, total), limits))
    lse = b.op("*", b.op("+", b_m, b.op("log2", b_l)), math.log(2))
    b.add(Store(LSE, index, lse, limits[:3]))
    name = "fox_fwd" if gate else "plain_fwd"
    params = (Q, K, *([COLUMN] if gate else []), V, OUT, LSE, *sizes("NM"))
    grid = (("i_m", scalar("NM")), ("i_h", scalar("H")), ("i_b", scalar("B")))
    doc = f"{'FoX' if gate else 'Plain'} causal attention: one tile of queries."
    return Kernel(name, doc, params, grid, tuple(b.body), b.order, WIDTHS)


def backward_columns() -> Kernel:
    """Gradients of k, v and the gate of FoX: keys stay, queries pass, a group of heads adds up."""
    b = Block(("BN", "BM"))
    i_n, i_kv = scalar("i_n"), scalar("i_kv")
    dk, dv, dc = (
        Tensor("dk", KEY, "f32", "out"),
        Tensor("dv", VALUE, "f32", "out"),
        Tensor("dc", GATE, "f32", "out"),
    )
    lse, delta = Tensor("lse", STATISTIC, "f32", "in"), Tensor("delta", STATISTIC, "f32", "in")
    first = b.let("first", b.op("*", i_n, scalar("BN")))
    b.add(tile.ExitIf(b.op(">=", first, scalar("T_k"))))
    o_n = b.let("o_n", b.op("+", first, Arange("BN")))
    shift = b.let("shift", b.op("-", scalar("T_k"), scalar("T_q")))
    b_k = b.let("b_k", rows(K, i_kv, o_n, scalar("T_k"), "D0"))
    b_v = b.let("b_v", rows(V, i_kv, o_n, scalar("T_k"), "DV"))
    b_dk = b.let("b_dk", Full(0.0, Type("f32", ("BN", "BD0"))))
    b_dv = b.let("b_dv", Full(0.0, Type("f32", ("BN", "BV"))))
    start = b.op("maximum", b.op("-", first, shift), 0)
    start = b.let("start", b.op("*", b.op("//", start, scalar("BM")), scalar("BM")))
    low = b.op("*", i_kv, scalar("G"))
    with b.loop("i_h", low, b.op("+", low, scalar("G")), 1) as i_h:
        at = (scalar("i_b"), o_n, i_h)
        b_c = b.let("b_c", Load(COLUMN, at, (None, scalar("T_k"), None)))
        b_dc = b.let("b_dc", Full(0.0, Type("f32", ("BN",))))
        with b.loop("i_m", start, scalar("T_q"), scalar("BM")) as i_m:
            o_m = b.let("o_m", b.op("+", i_m, Arange("BM")))
            b_q = b.let("b_q", rows(Q, i_h, o_m, scalar("T_q"), "D0"))
            b_do = b.let("b_do", rows(DO, i_h, o_m, scalar("T_q"), "DV"))
            row = (scalar("i_b"), o_m, i_h), (None, scalar("T_q"), None)
            b_lse = b.let("b_lse", Load(lse, *row, math.inf))
            b_delta = b.let("b_delta", Load(delta, *row))
            b_s = b.op("-", b.op("*", Dot(b_k, b_q), scalar("scale", "f32")), b_c)
            keep = b.op("<=", o_n, b.op("+", o_m, shift))
            keep = b.op("and", keep, b.op("<", o_m, scalar("T_q")))
            b_s = b.let("b_s", b.op("where", keep, b_s, -math.inf))
            b_p = b.let("b_p", b.op("exp2", b.op("-", b_s, b_lse)))
            b_ds = b.let("b_ds", b.op("*", b_p, b.op("-", Dot(b_v, b_do), b_delta)))
            b.set(b_dv, b.op("+", b_dv, Dot(Cast(b_p, "io"), b_do)))
            b.set(b_dk, b.op("+", b_dk, Dot(Cast(b_ds, "io"), b_q)))
            b.set(b_dc, b.op("-", b_dc, Reduce("sum", b_ds, "BM")))
        b.add(Store(dc, at, b_dc, (None, scalar("T_k"), None)))
    here, limits = (scalar("i_b"), o_n, i_kv), (None, scalar("T_k"), None)
    scaled = b.op("*", b.op("*", b_dk, scalar("scale", "f32")), math.log(2))
    b.add(Store(dk, (*here, Arange("BD0")), scaled, (*limits, scalar("D0"))))
    b.add(Store(dv, (*here, Arange("BV")), b_dv, (*limits, scalar("DV"))))
    params = (Q, K, COLUMN, V, DO, lse, delta, dk, dv, dc, *sizes("NN"))
    heads = b.op("//", scalar("H"), scalar("G"))
    grid = (("i_n", scalar("NN")), ("i_kv", heads), ("i_b", scalar("B")))
    doc = "Gradients on the side of the keys: one tile of keys."
    return Kernel("fox_bwd_columns", doc, params, grid, tuple(b.body), b.order, WIDTHS)


TABLE = ("time_q", "one", "N_t")


def entries(b: Block, o_m: Expr, o_n: Expr) -> Expr:
    """The entry of a pair: its distance, clamped to the table."""
    distance = b.op("minimum", b.op("-", o_m, o_n), b.op("-", scalar("N_t"), 1))
    return b.op("maximum", distance, 0)


def gather() -> Kernel:
    """out[i, j] = t[i, 0, clamp(i - j)] + u[clamp(i - j)] of a table per row and one for all."""
    b = Block(("BM", "BN"))
    t, u = Tensor("t", TABLE, "io", "in"), Tensor("u", ("N_t",), "f32", "in")
    out = Tensor("out", ("time_q", "time_k"), "f32", "out")
    o_m = b.let("o_m", b.op("+", b.op("*", scalar("i_m"), scalar("BM")), Arange("BM")))
    with b.loop("i_n", 0, scalar("T_k"), scalar("BN"), stages=3) as i_n:
        o_n = b.let("o_n", b.op("+", i_n, Arange("BN")))
        o_t = b.let("o_t", entries(b, o_m, o_n), "the entry of each pair")
        row = Load(t, (o_m, Number(0, "i32"), o_t), (scalar("T_q"), None, None))
        b_s = b.let("b_s", b.op("+", row, Load(u, (o_t,), (None,))))
        b.add(Store(out, (o_m, o_n), b_s, (scalar("T_q"), scalar("T_k"))))
    params: tuple[Param, ...] = (
        t,
        u,
        out,
        *(Scalar(n, "i32") for n in ("T_q", "T_k", "N_t")),
        Tunable("BM"),
        Tunable("BN"),
    )
    grid = (("i_m", b.op("cdiv", scalar("T_q"), scalar("BM"))),)
    return Kernel("gather", "Entries of tables.", params, grid, tuple(b.body))


def scatter() -> Kernel:
    """dt[i, 0, e] = sum of g[i, j] where clamp(i - j) = e; du[block, e] is twice its row sum."""
    b = Block(("BM", "BN"))
    g = Tensor("g", ("time_q", "time_k"), "f32", "in")
    dt, du = Tensor("dt", TABLE, "f32", "inout"), Tensor("du", ("block", "N_t"), "f32", "inout")
    o_m = b.let("o_m", b.op("+", b.op("*", scalar("i_m"), scalar("BM")), Arange("BM")))
    with b.loop("i_n", 0, scalar("T_k"), scalar("BN")) as i_n:
        o_n = b.let("o_n", b.op("+", i_n, Arange("BN")))
        o_t = b.let("o_t", entries(b, o_m, o_n))
        b_g = b.let("b_g", Load(g, (o_m, o_n), (scalar("T_q"), scalar("T_k"))))
        zero = Number(0, "i32")
        b.add(tile.Scatter(dt, (o_m, zero), o_t, b_g, (scalar("T_q"), None, None)))
        doubled = b.op("*", b_g, 2.0)
        b.add(tile.Scatter(du, (scalar("i_m"),), o_t, doubled, (None, None)))
    params: tuple[Param, ...] = (
        g,
        dt,
        du,
        *(Scalar(n, "i32") for n in ("T_q", "T_k", "N_t")),
        Tunable("BM"),
        Tunable("BN"),
    )
    grid = (("i_m", b.op("cdiv", scalar("T_q"), scalar("BM"))),)
    return Kernel("scatter", "Gradients of tables.", params, grid, tuple(b.body))


def channel_sum() -> Kernel:
    """out[i, j] = sum_c w[h, c] relu(a[h, c] (i - j)), by a loop over the channels c."""
    b = Block(("BM", "BN"))
    w, a = (Tensor(name, ("head", "E0"), "f32", "in") for name in "wa")
    out = Tensor("out", ("time_q", "head", "time_k"), "f32", "out")
    o_m = b.let("o_m", b.op("+", b.op("*", scalar("i_m"), scalar("BM")), Arange("BM")))
    with b.loop("i_n", 0, scalar("T_k"), scalar("BN")) as i_n:
        o_n = b.let("o_n", b.op("+", i_n, Arange("BN")))
        b_x = b.let("b_x", Cast(b.op("-", o_m, o_n), "f32"))
        b_s = b.let("b_s", Full(0.0, Type("f32", ("BM", "BN"))))
        with b.loop("i_c", 0, scalar("E0"), 1) as i_c:
            b_w = b.let("b_w", Load(w, (scalar("i_h"), i_c), (None, None)))
            b_a = b.let("b_a", Load(a, (scalar("i_h"), i_c), (None, None)))
            b.set(b_s, b.op("+", b_s, b.op("*", b_w, b.op("relu", b.op("*", b_a, b_x)))))
        index = (o_m, scalar("i_h"), o_n)
        b.add(Store(out, index, b_s, (scalar("T_q"), None, scalar("T_k"))))
    names = ("T_q", "T_k", "H", "NM", "E0")
    params: tuple[Param, ...] = (
        w,
        a,
        out,
        *(Scalar(n, "i32") for n in names),
        Tunable("BM"),
        Tunable("BN"),
        Tunable("BE0"),
    )
    grid = (("i_m", scalar("NM")), ("i_h", scalar("H")))
    widths = (("BE0", "E0"),)
    return Kernel("channel_sum", "A hidden layer.", params, grid, tuple(b.body), b.order, widths)


def transposed() -> Kernel:
    """out[j, i] = x[i, j] + 2 y[j, i]: the extents of one operand stand the other way."""
    b = Block(("BM", "BN"))
    x, y = (Tensor(name, ("time_q", "time_k"), "io", "in") for name in "xy")
    out = Tensor("out", ("time_k", "time_q"), "f32", "out")
    o_m, o_n = b.let("o_m", Arange("BM")), b.let("o_n", Arange("BN"))
    b_x = b.let("b_x", Load(x, (o_m, o_n), (scalar("T_q"), scalar("T_k"))))
    b_y = b.let("b_y", Load(y, (o_n, o_m), (scalar("T_k"), scalar("T_q"))))
    value = b.op("+", b_x, b.op("*", b_y, 2))
    b.add(Store(out, (o_n, o_m), value, (scalar("T_k"), scalar("T_q"))))
    params: tuple[Param, ...] = (
        x,
        y,
        out,
        Scalar("T_q", "i32"),
        Scalar("T_k", "i32"),
        Tunable("BM"),
        Tunable("BN"),
    )
    return Kernel("transposed", "A transpose.", params, (("i_m", scalar("NM")),), tuple(b.body))


def pointwise(
    fn: str,
    operands: int,
    *,
    dtype: tile.DType = "f32",
    before: tuple[float, ...] = (),
    after: tuple[float, ...] = (),
) -> Kernel:
    """out[i] = fn(*before, x[i], *after), or of x[i] and y[i]."""
    b = Block(("BM", "BN"))
    tensors = [Tensor(name, ("time_q",), dtype, "in") for name in "xy"[:operands]]
    o_m = b.let("o_m", b.op("+", b.op("*", scalar("i_m"), scalar("BM")), Arange("BM")))
    values: list[Operand] = [*before]
    for tensor in tensors:
        load = Load(tensor, (o_m,), (scalar("T_q"),), 1)
        values.append(b.let(f"b_{tensor.name}", load))
    value = b.op(fn, *values, *after)
    out = Tensor("out", ("time_q",), tile.type_of(value).dtype, "out")
    b.add(Store(out, (o_m,), value, (scalar("T_q"),)))
    params: tuple[Param, ...] = (*tensors, out, Scalar("T_q", "i32"), Tunable("BM"))
    words = {"//": "floor_div", "%": "floor_mod", "**": "power", "<=": "at_most"}
    name = f"apply_{words.get(fn, fn)}_{dtype}"
    grid = (("i_m", b.op("cdiv", scalar("T_q"), scalar("BM"))),)
    return Kernel(name, f"The function {fn}.", params, grid, tuple(b.body))

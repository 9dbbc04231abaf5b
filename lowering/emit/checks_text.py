"""The part of a generated module that refuses bad calls, by name, before any launch."""

from collections.abc import Iterable
from fractions import Fraction

from gnomon.dsl.nodes import Width
from gnomon.dsl.signature import axes_of, summed_inputs
from gnomon.lowering.emit.signature_text import Signature

_WORDS = {"Head": "head", "KVHead": "kv_head"}

_CHECKS = '''
def refuse(name, expected, came):
    """An error that names the argument."""
    raise ValueError(f"{name}: expected {expected}; got {came}")


def learn_axis(sizes, axis, size):
    """Whether an axis has the size that the tensors before it fix; an unknown one is noted."""
    name, _, share = axis.partition("*")
    share = Fraction(share or 1)
    return share * sizes.setdefault(name, size / share) == size


def check_tensors(tensors):
    """The sizes of the axes of a call."""
    for name in SHAPES:
        if not isinstance(tensors[name], torch.Tensor):
            refuse(name, "a tensor", type(tensors[name]).__name__)
    found = (tensors[name] for name in SHAPES)
    return sizes_of(tuple((x.shape, x.dtype, x.device, x.layout) for x in found))


@lru_cache(maxsize=1024)
def sizes_of(kinds):
    """The sizes of the axes of tensors of these kinds: each combination is looked at once."""
    sizes, (q, *_) = {"1": 1}, kinds
    for (name, axes), (shape, dtype, device, layout) in zip(SHAPES.items(), kinds, strict=True):
        axes = axes.split()
        known = [axis if axis not in sizes else f"{axis} {sizes[axis]}" for axis in axes]
        if len(shape) != len(axes) or not all(map(partial(learn_axis, sizes), axes, shape)):
            refuse(name, f"the shape [{', '.join(known)}]", list(shape))
        if device != q[2]:
            refuse(name, f"the device of q, {q[2]}", device)
        if layout != torch.strided:
            refuse(name, "a dense tensor", layout)
        check_dtype(name, dtype, q[1])
    if sizes["kv_head"] < 1 or sizes["head"] % sizes["kv_head"]:
        refuse("k", f"a number of heads that divides the {sizes['head']} of q", sizes["kv_head"])
    for name, width in (("q", "d"), ("v", "d_v")):
        if sizes[width] < 1:
            refuse(name, "at least one channel", 0)
    return {name: int(size) for name, size in sizes.items()}


def check_dtype(name, dtype, of_q):
    """q, k and v alike, sums along the sequence in float32, indices as integers."""
    if name in INTEGERS:
        if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            refuse(name, "integers", dtype)
    elif name in ("q", "k", "v") and dtype != of_q:
        refuse(name, f"the dtype of q, {of_q}", dtype)
    elif not dtype.is_floating_point:
        refuse(name, "floating point numbers", dtype)
    elif name in SUMMED and dtype not in (torch.float32, torch.float64):
        refuse(name, f"float32, because it is summed along the sequence: {name}.float()", dtype)


def check_offsets(name, offsets, total, axis):
    """The offsets of packed sequences as int32 on their device, and the longest length."""
    if not isinstance(offsets, torch.Tensor) or offsets.dtype not in (torch.int32, torch.int64):
        refuse(name, "a tensor of int32 or int64", getattr(offsets, "dtype", type(offsets)))
    if offsets.ndim != 1 or not len(offsets):
        refuse(name, "one axis: 0, then the end of each sequence", list(offsets.shape))
    bounds = offsets.tolist()
    lengths = [stop - start for start, stop in pairwise(bounds)]
    if bounds[0] != 0 or bounds[-1] != total or any(n < 0 for n in lengths):
        refuse(name, f"0, then ends that never fall, the last {axis} = {total}", bounds)
    return offsets.to(torch.int32).contiguous(), max(lengths, default=0), lengths


def packed_call(sizes, device, both, queries, keys):
    """The call of packed sequences."""
    if both is not None and (queries is not None or keys is not None):
        refuse("cu_seqlens", "no cu_seqlens_q or cu_seqlens_k beside it", "both")
    if both is None and (queries is None or keys is None):
        missing = "cu_seqlens_q" if queries is None else "cu_seqlens_k"
        refuse(missing, "cu_seqlens_q and cu_seqlens_k together", "only the other one")
    B, T_q, T_k, H, KV = (sizes[x] for x in ("batch", "time_q", "time_k", "head", "kv_head"))
    if B != 1:
        refuse("q", "batch 1 with packed sequences", B)
    names = ("cu_seqlens", "cu_seqlens") if both is not None else ("cu_seqlens_q", "cu_seqlens_k")
    queries, keys = (both, both) if both is not None else (queries, keys)
    cu_q, longest_q, lengths_q = check_offsets(names[0], queries, T_q, "time_q")
    cu_k, longest_k, lengths_k = check_offsets(names[1], keys, T_k, "time_k")
    if len(lengths_q) != len(lengths_k):
        refuse(names[1], f"{len(lengths_q)} sequences", len(lengths_k))
    for length_q, length_k in zip(lengths_q, lengths_k, strict=True):
        check_queries(length_q, length_k)
    cu_q = cu_q.to(device)
    cu_k = cu_q if both is not None else cu_k.to(device)
    return Call(B, T_q, T_k, H, KV, len(lengths_q), longest_q, longest_k, cu_q, cu_k)


def check_queries(T_q, T_k):
    """Inputs with one row a token leave no place for more queries than tokens."""
    if TOKENS and T_q > T_k:
        refuse("q", f"at most time_k = {T_k} queries beside {', '.join(TOKENS)}", T_q)


def check_call(tensors, cu_seqlens, cu_seqlens_q, cu_seqlens_k):
    """The sizes of a call; ValueError names the argument, what was expected and what came."""
    sizes, device = check_tensors(tensors), tensors["q"].device
    if any(x is not None for x in (cu_seqlens, cu_seqlens_q, cu_seqlens_k)):
        return packed_call(sizes, device, cu_seqlens, cu_seqlens_q, cu_seqlens_k)
    B, T_q, T_k, H, KV = (sizes[x] for x in ("batch", "time_q", "time_k", "head", "kv_head"))
    check_queries(T_q, T_k)
    return Call(B, T_q, T_k, H, KV, B, T_q, T_k)
'''

_POSITIONS = '''
def given_position(call, rows, positions, name=None, *, whole):
    """Positions that a call gives, of tokens [batch, time_k, 1] and queries [batch, time_q, 1].

    `whole`: a kernel reads them as integers.
    """
    label = "positions" if name is None else f"positions[{name!r}]"
    if name is not None:
        if not isinstance(positions, dict) or name not in positions:
            refuse("positions", f"a dict with the coordinate {name!r}", type(positions).__name__)
        positions = positions[name]
    if not isinstance(positions, torch.Tensor) or positions.shape != (call.B, call.T_k):
        came = getattr(positions, "shape", type(positions).__name__)
        refuse(label, f"a tensor [batch {call.B}, time_k {call.T_k}]", came)
    if whole and positions.is_floating_point():
        refuse(label, "integers, because the kernels count with them", positions.dtype)
    if call.T_q > call.T_k:
        refuse("q", f"at most time_k = {call.T_k} queries beside positions", call.T_q)
    positions = positions[..., None]
    return positions, positions[:, rows]
'''


def checks(signature: Signature, *, positions: bool) -> str:
    """The checks of a module, behind the tables that say what its variant wants."""
    summed = summed_inputs(signature.variant)
    tokens = [x.name for x in signature.declared if x.place == "token"]
    whole = [x.name for x in signature.declared if x.element == "int"]
    shapes = [f'    "{x.name}": "{" ".join(map(_axis, axes_of(x)))}",' for x in signature.inputs]
    tables = [
        "SHAPES = {",
        *shapes,
        "}",
        f"INTEGERS = {_names(whole)}",
        f"SUMMED = {_names(x.name for x in signature.declared if x.name in summed)}",
        f"TOKENS = {_names(tokens)}",
    ]
    text = "\n".join(tables) + "\n\n" + _CHECKS.rstrip()
    return text + ("\n\n" + _POSITIONS.rstrip() if positions else "")


def _names(names: Iterable[str]) -> str:
    found = [f'"{name}"' for name in names]
    return f"({found[0]},)" if len(found) == 1 else f"({', '.join(found)})"


def _axis(axis: str | Width) -> str:
    """An axis in one word: head, d, d*1/2."""
    if isinstance(axis, str):
        return _WORDS.get(axis, axis)
    ((symbol, count),) = axis.parts
    if symbol == "1":
        return f"1*{count}"
    return symbol if count == Fraction(1) else f"{symbol}*{count}"

"""The torch functions that move queries and keys along a transport, for a generated module.

    <Flavour>Versions.apply(call, q, k, *step)  ->  q_versions, k_versions, near

`near` are the dots inside of each leaf of LEAF tokens; the versions are queries at the left edge
and keys at the right edge of their node, for each level of a binary tree over the leaves
(schedules/tree.py says how their rows are numbered). The backward pass is Horner's rule over the
levels, from the top. Saved are the arguments and the versions; all else is formed again, and what
happens inside of the leaves, and to the products of nodes, is differentiated by autograd there and
then. A flavour of steps (lowering/transports.py) brings five functions:

    <flavour>_leaves(q, k, *step)     queries at the left edge, keys at the right edge, near, P
    <flavour>_joined(later, earlier)  P of two neighbours
    <flavour>_rows(x, P)              x P, for queries
    <flavour>_columns(x, P)           x P^T, for keys
    <flavour>_outer(x, y)             the gradient of P in the sum of x P y^T
"""

from collections.abc import Iterable

from gnomon.lowering.emit.transport_leaves import DENSE, LEAVES, POINTWISE, SOURCES

PARTS = {
    "low_rank": ("w", "u", "beta"),
    "gated": ("w", "u", "beta", "log"),
    "diagonal": ("log",),
}
"""The arguments of a flavour behind q and k: [batch, time_k, heads, (repeat,) (d)]."""

TREE = '''
def leaf_count(call):
    """Leaves of LEAF tokens: each packed sequence begins with one of its own."""
    if call.cu_seqlens_k is None:
        return -(-call.T_k // LEAF)
    return call.T_k // LEAF + call.sequences


def level_count(call):
    """Levels of the tree over the leaves; on each of them siblings meet."""
    return max(leaf_count(call) - 1, 0).bit_length()


def leaf_places(call):
    """Where tokens, and where queries, stand in the leaves."""
    if call.cu_seqlens_k is None:
        return slice(0, call.T_k), slice(call.T_k - call.T_q, call.T_k)
    starts = call.cu_seqlens_k[:-1]
    first = (starts // LEAF + torch.arange(call.sequences, device=starts.device)) * LEAF
    places = torch.arange(call.T_k, device=starts.device)
    places = places + call.of_tokens(first - starts)[0, :, 0]
    return places, places[query_rows(call)]


def from_a_leaf(call, device):
    """Which queries a call must have so that those of each sequence begin a leaf, if others.

    Gives the rows of q, the offsets of packed sequences, and for each query that was asked for its
    row in the result: -1, the last one, where it stands in front of all keys. In front of the
    queries stands the first of them again.
    """
    if call.cu_seqlens_q is not None and call.cu_seqlens_q is call.cu_seqlens_k:
        return None
    if call.cu_seqlens_q is None:
        front = (call.T_k - call.T_q) % LEAF if 0 < call.T_q < call.T_k else 0
        if not front and call.T_q <= call.T_k:
            return None
        few = min(call.T_q, call.T_k)
        rows = torch.arange(-front, few, device=device).clamp(min=0) + call.T_q - few
        asked = torch.arange(few - call.T_q, few, device=device)
        return rows, None, torch.where(asked < 0, -1, asked + front)
    ends, lengths = call.cu_seqlens_q[1:], call.cu_seqlens_q.diff()
    few = torch.minimum(lengths, call.cu_seqlens_k.diff())
    front = (call.cu_seqlens_k.diff() - few) % LEAF * (few > 0)
    if not (front.any() or (few < lengths).any()):
        return None
    counts = few + front
    offsets = F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    first = (offsets[:-1] + front).repeat_interleave(counts)
    rows = (torch.arange(len(first), device=device) - first).clamp(min=0)
    rows = rows + (ends - few).repeat_interleave(counts)
    asked = torch.arange(call.T_q, device=device) - (ends - few).repeat_interleave(lengths)
    asked = torch.where(asked < 0, -1, asked + (offsets[:-1] + front).repeat_interleave(lengths))
    return rows, offsets, asked


def taken(x, asked, none):
    """The rows that were asked for, `none` where one is -1."""
    last = x.new_full((x.shape[0], 1, *x.shape[2:]), none)
    return torch.cat((x, last), 1)[:, asked]


def in_leaves(call, x, places):
    """x [batch, time, head, ...] as [batch, head, leaf, LEAF, ...], in float32 or wider.

    There are as many leaves as a full tree has; where no token stands there are zeros.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    shape = (x.shape[0], LEAF << level_count(call), *x.shape[2:])
    grid = torch.zeros(shape, dtype=wide, device=x.device)
    grid[:, places] = x.to(wide)
    return grid.unflatten(1, (-1, LEAF)).movedim(3, 1)


def sequence_ends(call, device):
    """Of each leaf, the first leaf of its sequence and the one behind the last: twice [leaf]."""
    count = 1 << level_count(call)
    if call.cu_seqlens_k is None:
        first = torch.zeros(count, dtype=torch.long, device=device)
        return first, first + count
    starts = call.cu_seqlens_k[:-1] // LEAF + torch.arange(call.sequences, device=device)
    bounds = torch.cat((starts, starts.new_tensor([count])))
    leaves = torch.arange(count, device=device)
    own = (torch.searchsorted(starts, leaves, right=True) - 1).clamp(min=0)
    return bounds[own], bounds[(own + 1).clamp(max=call.sequences)]


def living(call, level, device):
    """Which leaves' queries, and keys, meet anything at this level or above: twice [leaf, 1, 1].

    Queries stand at the left edge of their node, keys at the right edge of theirs. Those that have
    come to the end of their sequence are taken out: what they would cross is not theirs.
    """
    first, end = sequence_ends(call, device)
    left = torch.arange(len(first), device=device) >> level << level
    return (left > first)[:, None, None], (left + (1 << level) < end)[:, None, None]


def node_products(call, product, joined):
    """The products of the nodes of each level that is crossed; 0 across the end of a sequence."""
    first, _ = sequence_ends(call, product.device)
    products = []
    for level in range(level_count(call) - 1):
        if level:
            product = joined(product[:, :, 1::2], product[:, :, ::2])
        own = first.unflatten(0, (-1, 1 << level))
        inside = (own[:, 0] == own[:, -1]).view(-1, *[1] * (product.ndim - 3))
        product = torch.where(inside, product, 0.0)
        products.append(product)
    return products


def siblings(x, level):
    """x [batch, head, leaf, line, d] as the left and the right node of each pair of a level.

    Each is [batch, head, pair, line of the node, d].
    """
    return x.unflatten(2, (-1, 2, 1 << level)).flatten(4, 5).unbind(3)


def with_siblings(left, right, level):
    """The inverse of `siblings`."""
    return torch.stack((left, right), 3).unflatten(4, (1 << level, -1)).flatten(2, 4)


def version_rows(x, level, group):
    """A node of each pair [batch, kv_head, pair, line, d] as rows [batch, row, head, d].

    The lines of a leaf are its tokens for each query head of a group, head after head.
    """
    x = x.unflatten(3, (1 << level, group, LEAF))
    return x.permute(0, 2, 3, 5, 1, 4, 6).flatten(1, 3).flatten(2, 3)


def node_lines(x, level, heads):
    """The inverse of `version_rows`, in float32 or wider."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x.unflatten(2, (heads, -1)).unflatten(1, (-1, 1 << level, LEAF))
    return x.permute(0, 4, 1, 2, 5, 3, 6).flatten(3, 5)


def stacked(levels, like):
    """The versions of all levels, one behind the other, in the dtype of the call."""
    none = like[:, :0]
    return torch.cat((none, *(x.to(like.dtype) for x in levels)), 1)


@contextmanager
def exact_products():
    """Products of float32 matrices in float32, whatever the program around allows."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
'''

_CLASS = '''
class NAME(torch.autograd.Function):
    """Versions of queries and keys along a transport, and the dots inside of its leaves.

    Gives q [batch, level R + row, head, d], k [batch, level R + row, kv_head, d], and near
    [batch, time_q, head, LEAF], which is not moved.
    """

    @staticmethod
    def forward(ctx, call, q, k, PARTS):
        with exact_products():
            inner = FLAVOUR_tree(call, q, k, PARTS)
            q_versions, k_versions = FLAVOUR_climb(call, q, k, *inner)
        ctx.save_for_backward(q, k, PARTS, q_versions, k_versions)
        ctx.call = call
        return q_versions, k_versions, inner[2]

    @staticmethod
    def backward(ctx, d_q_versions, d_k_versions, d_near):
        refuse_second_derivative()
        *given, q_versions, k_versions = ctx.saved_tensors
        with torch.enable_grad(), exact_products():
            given = [x.detach().requires_grad_() for x in given]
            lines, keys, near, products = FLAVOUR_tree(ctx.call, *given)
        gradients = (d_q_versions, d_k_versions)
        with exact_products():
            d_lines, d_keys, d_products = FLAVOUR_descend(
                ctx.call, lines, keys, products, (q_versions, k_versions), gradients
            )
            inner = [lines, keys, near, *products]
            found = [d_lines, d_keys, d_near, *d_products]
            return None, *torch.autograd.grad(inner, given, found, allow_unused=True)


def FLAVOUR_tree(call, q, k, PARTS):
    """What is formed inside of the leaves, and the products of the nodes."""
    tokens, queries = leaf_places(call)
    lines = in_leaves(call, q, queries).unflatten(1, (k.shape[2], -1)).movedim(2, 3).flatten(3, 4)
    given = [in_leaves(call, x, tokens) for x in (k, PARTS)]
    lines, keys, near, product = FLAVOUR_leaves(lines, *given)
    near = version_rows(near.flatten(2, 3)[:, :, None], level_count(call), q.shape[2] // k.shape[2])
    return lines, keys, near[:, queries], node_products(call, product, FLAVOUR_joined)


def FLAVOUR_climb(call, q, k, lines, keys, _, products):
    """The versions of each level, from the leaves upwards."""
    group = q.shape[2] // k.shape[2]
    q_levels, k_levels = [], []
    for level in range(level_count(call)):
        (waiting, right), (left, ready) = siblings(lines, level), siblings(keys, level)
        q_levels.append(version_rows(right, level, group))
        k_levels.append(version_rows(left, level, 1))
        if level < len(products):
            earlier, later = products[level][:, :, ::2], products[level][:, :, 1::2]
            lines = with_siblings(waiting, FLAVOUR_rows(right, earlier), level)
            keys = with_siblings(FLAVOUR_columns(left, later), ready, level)
            q_alive, k_alive = living(call, level + 1, q.device)
            lines, keys = torch.where(q_alive, lines, 0.0), torch.where(k_alive, keys, 0.0)
    return stacked(q_levels, q), stacked(k_levels, k)


def FLAVOUR_descend(call, lines, keys, products, versions, gradients):
    """The gradients of lines and keys in the leaves, and of the products: from the top down."""
    d_lines, d_keys, heads = torch.zeros_like(lines), torch.zeros_like(keys), keys.shape[1]
    d_products, levels = [], level_count(call)
    for level in reversed(range(levels)):
        own = slice(level * LEAF << (levels - 1), (level + 1) * LEAF << (levels - 1))
        if level < len(products):
            q_alive, k_alive = living(call, level + 1, lines.device)
            d_lines, d_keys = torch.where(q_alive, d_lines, 0.0), torch.where(k_alive, d_keys, 0.0)
        (waiting, right), (left, ready) = siblings(d_lines, level), siblings(d_keys, level)
        if level < len(products):
            moved_q, moved_k = (node_lines(x[:, own], level, heads) for x in versions)
            both = FLAVOUR_outer(moved_q, right), FLAVOUR_outer(left, moved_k)
            d_products.insert(0, torch.stack(both, 3).flatten(2, 3))
            earlier, later = products[level][:, :, ::2], products[level][:, :, 1::2]
            right, left = FLAVOUR_columns(right, earlier), FLAVOUR_rows(left, later)
        d_q, d_k = (node_lines(x[:, own], level, heads) for x in gradients)
        d_lines = with_siblings(waiting, right + d_q, level)
        d_keys = with_siblings(left + d_k, ready, level)
    return d_lines, d_keys, d_products
'''


def class_name(flavour: str) -> str:
    """low_rank -> LowRankVersions."""
    return "".join(part.capitalize() for part in flavour.split("_")) + "Versions"


def functions(flavours: Iterable[str]) -> list[str]:
    """The functions of these flavours and what they share, in order."""
    wanted = tuple(dict.fromkeys(flavours))
    shared = dict.fromkeys(name for flavour in wanted for name in LEAVES[flavour])
    parts = [TREE.strip()] if wanted else []
    parts += [SOURCES[name].strip() for name in shared]
    for flavour in wanted:
        products = POINTWISE if flavour == "diagonal" else DENSE
        text = f"{products.strip()}\n\n\n{_CLASS.strip()}"
        text = text.replace("FLAVOUR", flavour).replace("NAME", class_name(flavour))
        parts.append(text.replace("PARTS", ", ".join(PARTS[flavour])))
    return parts

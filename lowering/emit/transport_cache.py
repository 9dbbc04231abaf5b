"""The cache that a prefill leaves for decoding, as functions of a generated module.

With Nc closed leaves of LEAF tokens there is a node for each set bit of Nc, the oldest and largest
first: its keys moved to its right edge, its values, and the product P of its steps. Behind them an
open leaf has the tokens that fill no leaf yet in WY form, to which one is added a row at a time:

    a = u W^T    y = beta (u - a Y)    m = beta (u K^T - a M)

A query q of the newest token meets the open leaf as q K^T - (q W^T) M, goes to its left edge as
q - (q W^T) Y, and then from node to node: s = q K_node^T, q <- q P.
"""

SOURCE = '''
class Node(NamedTuple):
    """Closed leaves: k [batch, kv_head, token, d] at the right edge, v, and P [.., d, d]."""

    k: torch.Tensor
    v: torch.Tensor
    product: torch.Tensor


class OpenLeaf(NamedTuple):
    """Tokens of no closed leaf: k, v, w, y [batch, kv_head, token, d], m [.., token, token]."""

    k: torch.Tensor
    v: torch.Tensor
    w: torch.Tensor
    y: torch.Tensor
    m: torch.Tensor


class Cache(NamedTuple):
    """The nodes, the oldest first, and the open leaf behind them."""

    nodes: list[Node]
    leaf: OpenLeaf


def one_node(keys, product):
    """Leaves [batch, kv_head, leaf, LEAF, d] as one node: keys at its right edge, and its P."""
    while product.shape[2] > 1:
        left = low_rank_columns(keys[:, :, ::2], product[:, :, 1::2])
        keys = torch.cat((left, keys[:, :, 1::2]), 3)
        product = low_rank_joined(product[:, :, 1::2], product[:, :, ::2])
    return keys[:, :, 0], product[:, :, 0]


def open_leaf(k, v, w, u, beta):
    """The WY form of a few tokens [batch, token, kv_head, ...]."""
    wide = torch.promote_types(k.dtype, torch.float32)
    given = [x.to(wide).transpose(1, 2) for x in (k, w, u, beta)]
    k, w, u = given[0], given[1].flatten(2, -2), given[3][..., None] * given[2]
    u, token = u.flatten(2, -2), torch.arange(k.shape[2], device=k.device)
    step = token.repeat_interleave(w.shape[2] // max(len(token), 1))
    on_keys = torch.where(step[:, None] > token, u @ k.mT, 0.0)
    m, y = solved(u @ w.mT, on_keys, u)
    return OpenLeaf(k, v.transpose(1, 2), w, y, m)


def cache_of(call, k, v, w, u, beta):
    """What decoding goes on from."""
    closed = call.T_k // LEAF
    wide = [in_leaves(call, x, slice(0, call.T_k)) for x in (k, w, u, beta)]
    with exact_products():
        _, keys, _, product = low_rank_leaves(wide[0][..., :0, :], *wide)
        nodes, start = [], 0
        for level in reversed(range(closed.bit_length())):
            if closed >> level & 1:
                end = start + (1 << level)
                own = one_node(keys[:, :, start:end], product[:, :, start:end])
                values = v[:, start * LEAF : end * LEAF].transpose(1, 2)
                nodes.append(Node(own[0], values, own[1]))
                start = end
        rest = (x[:, closed * LEAF :] for x in (k, v, w, u, beta))
        return Cache(nodes, open_leaf(*rest))
'''

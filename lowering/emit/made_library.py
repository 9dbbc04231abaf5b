"""Torch functions of a generated module that make what a launch makes (lowering/made.py)."""

from gnomon.lowering.made import Powers, Reach, SumByTile

SOURCES = {
    "sum_by_tile": '''
def until_tile_end(high, low, rows):
    """(x_e - x_t) / ln 2, e the last of t's tile of tokens; x = high + low [batch, time, heads]."""
    T = high.shape[1]
    ends = (torch.arange(T, device=high.device) // rows * rows + rows - 1).clamp(max=T - 1)
    return along_time(((high[:, ends] - high) + (low[:, ends] - low)) * 1.4426950408889634)


def since_tile_start(high, low, rows, base):
    """base_t - (x_t - high_b) / ln 2, b the first of t's tile; base [batch, time, head]."""
    starts = torch.arange(high.shape[1], device=high.device) // rows * rows
    apart = ((high - high[:, starts]) + low) * 1.4426950408889634
    return along_time(base - apart.repeat_interleave(base.shape[2] // high.shape[2], 2))
''',
    "margin_of_norms": '''
def margin_of_norms(q, k, scale, keys, log_eps):
    """2 u + log keys - log_eps, |q_i . k_j scale| <= u by norms: [batch, head].

    Keys whose decay is below minus that weigh less than e^log_eps of a row, all together.
    """
    q, k = (torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32) for x in (q, k))
    if not (q.numel() and k.numel()):
        return q.new_zeros(q.shape[0], q.shape[2])
    q, k = q.amax(1), k.amax(1)
    bound = q * k.repeat_interleave(q.shape[1] // k.shape[1], 1) * abs(scale)
    return 2 * bound + (math.log(keys) - log_eps)
''',
    "margin_of_bound": '''
def margin_of_bound(bound, keys, log_eps, device):
    """2 bound + log keys - log_eps, [1, 1].

    Keys whose decay is below minus that weigh less than e^log_eps of a row, all together.
    """
    return torch.full((1, 1), 2 * bound + math.log(max(keys, 1)) - log_eps, device=device)
''',
    "staircases": '''
def by_tile(x, size, heads):
    """The numbers of a tile side by side, x [batch, time, heads]: [batch, head, tile, size]."""
    x = x.transpose(1, 2).repeat_interleave(heads // x.shape[2], 1)
    return F.pad(x, (0, -x.shape[2] % size), mode="replicate").unflatten(2, (-1, size))


def first_keys(margin, rows, columns, BM, BN, heads):
    """The first key that may weigh for a tile of BM queries, a multiple of BN: [batch, head, tile].

    rows, columns [batch, time, heads]: the prefix sums of a decay at queries and keys.
    """
    highest = by_tile(rows, BM, heads).amax(-1)
    lowest = by_tile(columns, BN, heads).amin(-1).cummin(-1).values
    before = -(margin[..., None] + highest)
    return (torch.searchsorted(-lowest, before, right=True) * BN).int()


def last_queries(margin, rows, columns, BM, BN, heads):
    """Behind the last query that a tile of BN keys may weigh for, a multiple of BM."""
    highest = by_tile(rows, BM, heads).amax(-1).flip(-1).cummax(-1).values.flip(-1)
    lowest = by_tile(columns, BN, heads).amin(-1).cummin(-1).values
    behind = margin[..., None] - lowest
    return (torch.searchsorted((-highest).contiguous(), behind) * BM).int()
''',
    "table_of_powers": '''
def table_of_powers(exponent, reach, device):
    """d ** exponent of the distances d = -reach, ..., reach - 1; 0 where d < 0."""
    distance = torch.arange(-reach, reach, dtype=torch.float64, device=device)
    return distance.clamp(min=0.0).pow(exponent).float()
''',
}


def wanted(made: SumByTile | Powers | Reach) -> set[str]:
    """The functions that make it."""
    match made:
        case Powers():
            return {"table_of_powers"}
        case Reach(bound=bound):
            return {"staircases", "margin_of_norms" if bound is None else "margin_of_bound"}
    return {"sum_by_tile", "along_time"}

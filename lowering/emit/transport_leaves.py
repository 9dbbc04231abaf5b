"""What happens inside of the leaves of a transport, for each flavour of steps, in torch.

Lines are queries [batch, kv_head, leaf, group LEAF, d], keys [batch, kv_head, leaf, LEAF, d];
a step has w, u [.., LEAF, (repeat,) d], beta [.., LEAF (, repeat)], log [.., LEAF, d]. With
U = beta u and sl the strictly lower part, in the order of the steps,

    A = sl(U W^T)     F = sl(U K^T)     (I + A) [M Y] = [F U]
    K0 = K - M^T W    P = I - W^T Y     X = tril(Q W^T)     Q0 = Q - X Y
    near = tril(Q K^T) - X M

and with a diagonal each inner product of tokens i > j has the decay between the two.
"""

_LOW_RANK = '''
def low_rank_leaves(lines, keys, w, u, beta):
    """Lines at the left edge, keys at the right edge, near, and P of steps I - beta w u^T."""
    w, u = w.flatten(3, -2), beta.flatten(3)[..., None] * u.flatten(3, -2)
    token = torch.arange(LEAF, device=w.device)
    step = torch.arange(w.shape[3], device=w.device) * LEAF // w.shape[3]
    query = token.repeat(lines.shape[3] // LEAF)[:, None]
    on_keys = torch.where(step[:, None] > token, u @ keys.mT, 0.0)
    on_lines = torch.where(step <= query, lines @ w.mT, 0.0)
    m, y = solved(u @ w.mT, on_keys, u)
    near = torch.where(token <= query, lines @ keys.mT, 0.0) - on_lines @ m
    product = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device) - w.mT @ y
    return lines - on_lines @ y, keys - m.mT @ w, near, product
'''

_GATED = '''
def gated_leaves(lines, keys, w, u, beta, log):
    """Lines at the left edge, keys at the right edge, near, and P of steps e^log - beta w u^T."""
    u = beta[..., None] * u
    total = running_sum(log)
    before, end = total - log, total[..., -1:, :]
    group = lines.unflatten(3, (-1, LEAF))
    left, right = decay(group, total[:, :, :, None]), decay(keys, end - total)
    m, y = solved(decayed(u, before, w, total), decayed(u, before, keys, total), decay(u, before))
    on_lines = decayed_lines(group, total, w)
    near = decayed_lines(group, total, keys) - on_lines @ m
    w = decay(w, end - total)
    product = torch.diag_embed(end[..., 0, :].exp().to(w.dtype)) - w.mT @ y
    return left.flatten(3, 4) - on_lines @ y, right - m.mT @ w, near, product
'''

_DIAGONAL = '''
def diagonal_leaves(lines, keys, log):
    """Lines at the left edge, keys at the right edge, near, and P of steps e^log."""
    total = running_sum(log)
    end, group = total[..., -1:, :], lines.unflatten(3, (-1, LEAF))
    left = decay(group, total[:, :, :, None]).flatten(3, 4)
    product = end[..., 0, :].exp().to(keys.dtype)
    return left, decay(keys, end - total), decayed_lines(group, total, keys), product
'''

SOURCES = {
    "solved": '''
def solved(a, *given):
    """(I + A)^-1 times each of the given, A the strictly lower part of a."""
    widths = [x.shape[-1] for x in given]
    found = torch.linalg.solve_triangular(
        a.tril(-1), torch.cat(given, -1), upper=False, unitriangular=True
    )
    return found.split(widths, -1)
''',
    "decays": '''
def running_sum(log):
    """The sums of the logarithms over the tokens of a leaf, float64: what is read is differences.

    A step below -1e30 counts as -1e5: e^-1e5 is 0, and differences of sums stay finite.
    """
    return log.double().masked_fill(log < -1e30, -1e5).cumsum(-2)


def decay(x, log):
    """x times e^log, the logarithm rounded to the dtype of x only now."""
    return x * log.to(x.dtype).exp()


def decayed(x, after, y, total):
    """sum_n x_in y_jn e^(after_in - total_jn) for tokens j < i of a leaf, 0 elsewhere.

    Halves of halves meet, measured from the border between them: no exponent is above 0 where all
    steps decay, and none is the quotient of two that are far below it.
    """
    made = x.new_zeros(*x.shape[:-1], 1, 1)
    size = 1
    while size < LEAF:
        late, late_sum, early, early_sum = (
            each.unflatten(-2, (-1, 2, size))[..., half, :, :]
            for half, each in ((1, x), (1, after), (0, y), (0, total))
        )
        border = early_sum[..., -1:, :]
        met = decay(late, late_sum - border) @ decay(early, border - early_sum).mT
        top, bottom = made.unflatten(-3, (-1, 2)).unbind(-3)
        rows = torch.cat((top, torch.zeros_like(met)), -1), torch.cat((met, bottom), -1)
        made, size = torch.cat(rows, -2), 2 * size
    return made[..., 0, :, :]


def decayed_lines(group, total, y):
    """The dots of queries [.., group, LEAF, d] with keys or w up to their own token."""
    total, y = total[:, :, :, None], y[:, :, :, None]
    own = torch.diag_embed((group * y).sum(-1))
    return (decayed(group, total, y, total) + own).flatten(3, 4)
''',
    "low_rank": _LOW_RANK,
    "gated": _GATED,
    "diagonal": _DIAGONAL,
}

LEAVES = {
    "low_rank": ("solved", "low_rank"),
    "gated": ("solved", "decays", "gated"),
    "diagonal": ("decays", "diagonal"),
}
"""The functions of a flavour, in their order."""

DENSE = '''
def FLAVOUR_joined(later, earlier):
    """P of two neighbours."""
    return later @ earlier


def FLAVOUR_rows(x, product):
    """x P."""
    return x @ product


def FLAVOUR_columns(x, product):
    """x P^T."""
    return x @ product.mT


def FLAVOUR_outer(x, y):
    """The gradient of P in the sum of x P y^T over lines."""
    return x.mT @ y
'''

POINTWISE = '''
def FLAVOUR_joined(later, earlier):
    """P of two neighbours, a number a channel."""
    return later * earlier


def FLAVOUR_rows(x, product):
    """x P."""
    return x * product[..., None, :]


FLAVOUR_columns = FLAVOUR_rows


def FLAVOUR_outer(x, y):
    """The gradient of P in the sum of x P y^T over lines."""
    return (x * y).sum(-2)
'''

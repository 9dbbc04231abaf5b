def cut_positions(positions, keys):
    """The positions of one packed sequence."""
    if isinstance(positions, dict):
        return {name: x[:, keys] for name, x in positions.items()}
    return None if positions is None else positions[:, keys]


def softmax(logit, visible, sink=None):
    """The weights [batch, query, key, head] and the log-sum-exp [batch, query, head].

    A row that sees no key has weights 0 and log-sum-exp -inf, and gives gradient 0.
    """
    alive = visible.any(2, keepdim=True)
    logit = torch.where(visible, logit, -torch.inf)
    logit = torch.where(alive, logit, 0.0)
    lse = logit.logsumexp(2, keepdim=True)
    if sink is not None:
        lse = torch.logaddexp(lse, sink + torch.zeros_like(lse))
    weights = torch.where(visible, (logit - lse).exp(), 0.0)
    return weights, torch.where(alive, lse, -torch.inf)[:, :, 0]


def one_sequence(q, k, v, bias, positions):
    """q_i . k_j + b_h[bucket(i - j)]

    One sequence, or a batch of sequences of one length; pairs are [batch, query, key, head].
    """
    q, k, v, bias = (x.double() for x in (q, k, v, bias))
    group = q.shape[2] // k.shape[2]
    k = k.repeat_interleave(group, 2)
    v = v.repeat_interleave(group, 2)
    T_q, T_k = q.shape[1], k.shape[1]
    each_head = torch.arange(q.shape[2], device=q.device)
    i = torch.arange(T_k - T_q, T_k, device=q.device)[None, :, None, None]
    j = torch.arange(T_k, device=q.device)[None, None, :, None]
    if positions is None or isinstance(positions, dict):
        position = torch.arange(T_k, dtype=torch.float64, device=q.device)[None, :, None]
        first = T_k - T_q
        position_q = torch.arange(first, T_k, dtype=torch.float64, device=q.device)[None, :, None]
    else:
        position = positions.double()[..., None]
        position_q = position[:, T_k - T_q :]
    visible = j <= i
    difference = position_q[:, :, None] - position[:, None]
    total = difference.clamp(max=16) + torch.where(difference >= 113, 1, 0)
    total_2 = total + torch.where(difference >= 19, 1, 0)
    total_3 = total_2 + torch.where(difference >= 21, 1, 0)
    total_4 = total_3 + torch.where(difference >= 24, 1, 0)
    total_5 = total_4 + torch.where(difference >= 27, 1, 0)
    total_6 = total_5 + torch.where(difference >= 31, 1, 0)
    total_7 = total_6 + torch.where(difference >= 35, 1, 0)
    total_8 = total_7 + torch.where(difference >= 40, 1, 0)
    total_9 = total_8 + torch.where(difference >= 46, 1, 0)
    total_10 = total_9 + torch.where(difference >= 52, 1, 0)
    total_11 = total_10 + torch.where(difference >= 59, 1, 0)
    total_12 = total_11 + torch.where(difference >= 67, 1, 0)
    total_13 = total_12 + torch.where(difference >= 77, 1, 0)
    total_14 = total_13 + torch.where(difference >= 87, 1, 0)
    index = total_14 + torch.where(difference >= 99, 1, 0)
    entry = index.long().clamp(0, bias.shape[-1] - 1)
    logit = torch.einsum("bihd,bjhd->bijh", q, k) + bias[each_head, entry]
    weights, lse = softmax(logit, visible)
    o = torch.einsum("bijh,bjhv->bihv", weights, v)
    return o, lse


def t5_reference(
    q,
    k,
    v,
    *,
    bias,
    cu_seqlens=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    positions=None,
    return_lse=False,
):
    """The output [batch, time_q, head, d_v] in float64; with `return_lse` also log-sum-exps.

    O(T^2) time and memory; gradients by torch's autograd.
    """
    if cu_seqlens is not None:
        cu_seqlens_q = cu_seqlens_k = cu_seqlens
    if cu_seqlens_q is None:
        results = [one_sequence(q, k, v, bias, positions)]
    else:
        results = []
        for sequence in range(len(cu_seqlens_q) - 1):
            queries = slice(*cu_seqlens_q[sequence : sequence + 2].tolist())
            keys = slice(*cu_seqlens_k[sequence : sequence + 2].tolist())
            results.append(
                one_sequence(
                    q[:, queries], k[:, keys], v[:, keys], bias, cut_positions(positions, keys)
                ),
            )
    if return_lse:
        return tuple(torch.cat(parts, 1) for parts in zip(*results, strict=True))
    return torch.cat([out for out, _ in results], 1)

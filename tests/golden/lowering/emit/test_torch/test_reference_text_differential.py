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


def one_sequence(q, k, v, weight, lam, positions):
    """norm( softmax(q1 k1 / sqrt(d/2)) V - lambda softmax(q2 k2 / sqrt(d/2)) V ) (1 - lambda_init)

    One sequence, or a batch of sequences of one length; pairs are [batch, query, key, head].
    """
    q, k, v, weight, lam = (x.double() for x in (q, k, v, weight, lam))
    group = q.shape[2] // k.shape[2]
    k = k.repeat_interleave(group, 2)
    v = v.repeat_interleave(group, 2)
    T_q, T_k = q.shape[1], k.shape[1]
    d = q.shape[-1]
    d_v = v.shape[-1]
    i = torch.arange(T_k - T_q, T_k, device=q.device)[None, :, None, None]
    j = torch.arange(T_k, device=q.device)[None, None, :, None]
    visible = j <= i
    power = (d // 2) ** -0.5
    logit = torch.einsum("bihd,bjhd->bijh", q[..., : d // 2], k[..., : d // 2]) * power
    weights, _ = softmax(logit, visible)
    o = torch.einsum("bijh,bjhv->bihv", weights, v)
    logit_2 = torch.einsum("bihd,bjhd->bijh", q[..., d // 2 :], k[..., d // 2 :]) * power
    weights_2, _ = softmax(logit_2, visible)
    o_2 = torch.einsum("bijh,bjhv->bihv", weights_2, v)
    difference = o - lam * o_2
    rsqrt = ((difference * difference).sum(-1) / d_v + 1e-06).rsqrt()
    return (0.19999999999999996 * rsqrt)[..., None] * (difference * weight), None


def differential_reference(
    q,
    k,
    v,
    *,
    weight,
    lam,
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
        results = [one_sequence(q, k, v, weight, lam, positions)]
    else:
        results = []
        for sequence in range(len(cu_seqlens_q) - 1):
            queries = slice(*cu_seqlens_q[sequence : sequence + 2].tolist())
            keys = slice(*cu_seqlens_k[sequence : sequence + 2].tolist())
            results.append(
                one_sequence(
                    q[:, queries],
                    k[:, keys],
                    v[:, keys],
                    weight,
                    lam,
                    cut_positions(positions, keys),
                ),
            )
    return torch.cat([out for out, _ in results], 1)

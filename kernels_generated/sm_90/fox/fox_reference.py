"""fox in plain torch, float64 and O(T^2).

Do not edit: `gnomon export fox --to fox --target triton --gpu h200` writes it anew.
"""

import torch


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


def one_sequence(q, k, v, log_f, positions):
    """q_i . k_j / sqrt(d) + sum_{s=j+1..i} log f_s

    One sequence, or a batch of sequences of one length; pairs are [batch, query, key, head].
    """
    q, k, v, log_f = (x.double() for x in (q, k, v, log_f))
    group = q.shape[2] // k.shape[2]
    k = k.repeat_interleave(group, 2)
    v = v.repeat_interleave(group, 2)
    T_q, T_k = q.shape[1], k.shape[1]
    d = q.shape[-1]
    rows = slice(T_k - T_q, T_k)
    i = torch.arange(T_k - T_q, T_k, device=q.device)[None, :, None, None]
    j = torch.arange(T_k, device=q.device)[None, None, :, None]
    visible = j <= i
    running_sum = log_f.clamp(min=-1e5).cumsum(1)
    log_f_decay = running_sum[:, rows][:, :, None] - running_sum[:, None]
    logit = torch.einsum("bihd,bjhd->bijh", q, k) * d**-0.5 + log_f_decay
    weights, lse = softmax(logit, visible)
    o = torch.einsum("bijh,bjhv->bihv", weights, v)
    return o, lse


def fox_reference(
    q,
    k,
    v,
    *,
    log_f,
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
        results = [one_sequence(q, k, v, log_f, positions)]
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
                    log_f[:, keys],
                    cut_positions(positions, keys),
                ),
            )
    if return_lse:
        return tuple(torch.cat(parts, 1) for parts in zip(*results, strict=True))
    return torch.cat([out for out, _ in results], 1)

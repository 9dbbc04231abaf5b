"""path_fox in plain torch, float64 and O(T^2).

Do not edit: `gnomon export path_fox --to path_fox --target triton --gpu h200 --dim 128` writes
it anew.
"""

import torch


def carried_dot(q, k, low, log):
    """q_i M_i ... M_{j+1} . k_j with M = Diag(e^log) - (beta w) u^T, [batch, query, key, head].

    `low` is (beta w, u) of each token, with several of them their product, or None; `log` of each
    token, or None. One step after another.
    """
    columns, T_k = [], k.shape[1]
    position = torch.arange(T_k - q.shape[1], T_k, device=q.device)[None, :, None, None]
    for token in reversed(range(T_k)):
        columns.append((q * k[:, token, None]).sum(-1))
        kept = q if log is None else q * log[:, token, None].exp()
        if low is not None:
            w, u = (x[:, token, None] for x in low)
            pairs = [(w, u)] if w.ndim == q.ndim else zip(w.unbind(3), u.unbind(3), strict=True)
            x = q
            for one_w, one_u in reversed(list(pairs)):
                kept = (x if log is None else kept) - (x * one_w).sum(-1, keepdim=True) * one_u
                x = kept
        q = torch.where(position >= token, kept, q)
    return torch.stack(columns[::-1], 2) if columns else q.new_zeros(*q.shape[:2], 0, q.shape[2])


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


def one_sequence(q, k, v, w, beta, log_f, positions):
    """q_i H_i ... H_{j+1} k_j / sqrt(d) + sum_{s=j+1..i} log f_s

    One sequence, or a batch of sequences of one length; pairs are [batch, query, key, head].
    """
    q, k, v, w, beta, log_f = (x.double() for x in (q, k, v, w, beta, log_f))
    group = q.shape[2] // k.shape[2]
    k = k.repeat_interleave(group, 2)
    v = v.repeat_interleave(group, 2)
    w = w.repeat_interleave(group, 2)
    beta = beta.repeat_interleave(group, 2)
    T_q, T_k = q.shape[1], k.shape[1]
    d = q.shape[-1]
    rows = slice(T_k - T_q, T_k)
    i = torch.arange(T_k - T_q, T_k, device=q.device)[None, :, None, None]
    j = torch.arange(T_k, device=q.device)[None, None, :, None]
    visible = j <= i
    score = carried_dot(q, k, (beta[..., None] * w, w), None)
    running_sum = log_f.clamp(min=-1e5).cumsum(1)
    logit = score * d**-0.5 + (running_sum[:, rows][:, :, None] - running_sum[:, None])
    weights, lse = softmax(logit, visible)
    o = torch.einsum("bijh,bjhv->bihv", weights, v)
    return o, lse


def path_fox_reference(
    q,
    k,
    v,
    *,
    w,
    beta,
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
        results = [one_sequence(q, k, v, w, beta, log_f, positions)]
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
                    w[:, keys],
                    beta[:, keys],
                    log_f[:, keys],
                    cut_positions(positions, keys),
                ),
            )
    if return_lse:
        return tuple(torch.cat(parts, 1) for parts in zip(*results, strict=True))
    return torch.cat([out for out, _ in results], 1)

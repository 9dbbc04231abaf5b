"""Inputs of transports: random ones, and those whose far pairs still count."""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def random_call(
    shape: tuple[int, int, int, int, int], *, shared: bool = True, seed: int = 0
) -> dict[str, Tensor]:
    """q, k, w, u and beta in [0, 2) of (batch, T, H, KV, D), in float64 that fp32 holds."""
    batch, tokens, heads, key_heads, width = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    made = {"q": draw(batch, tokens, heads, width), "k": draw(batch, tokens, key_heads, width)}
    made["w"] = normalize(draw(batch, tokens, key_heads, width), dim=-1)
    made["u"] = made["w"]
    if not shared:
        turned = made["w"] + 0.3 * draw(batch, tokens, key_heads, width) / width**0.5
        made["u"] = normalize(turned, dim=-1)
    rand = torch.rand(batch, tokens, key_heads, generator=generator, dtype=torch.float64)
    made["beta"] = 2 * rand
    return {name: x.float().double() for name, x in made.items()}


def far_field(kind: str, tokens: int, width: int, seed: int = 0) -> dict[str, Tensor]:
    """One head whose transitions keep lengths, so that distance hides no error.

    swaps       exchanges of two of five slots, beta = 2: permutations
    reflections random directions, beta = 2
    near_two    random directions, beta in (1.95, 2)
    repeated    almost one direction, beta in (1.9, 2)
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    beta = torch.full((tokens,), 2.0, dtype=torch.float64)
    spread = torch.rand(tokens, generator=generator, dtype=torch.float64)
    q, k = draw(tokens, width).bfloat16().double(), draw(tokens, width).bfloat16().double()
    if kind == "swaps":
        a = torch.randint(5, (tokens,), generator=generator)
        b = (a + 1 + torch.randint(4, (tokens,), generator=generator)) % 5
        w = torch.zeros(tokens, width, dtype=torch.float64)
        w[torch.arange(tokens), a], w[torch.arange(tokens), b] = 2**-0.5, -(2**-0.5)
    else:
        near = {"reflections": 0.0, "near_two": 0.0, "repeated": 1.0}[kind]
        w = normalize(near * draw(1, width) + (0.01 if near else 1.0) * draw(tokens, width), dim=-1)
        beta = {"reflections": beta, "near_two": beta - 0.05 * spread}.get(
            kind, beta - 0.1 * spread
        )
    found = {"q": q, "k": k, "w": w, "u": w, "beta": beta}
    return {name: x.float().double()[None, :, None] for name, x in found.items()}


def last_logits(call: dict[str, Tensor], count: int) -> Tensor:
    """q_i M_i ... M_{j+1} k_j of the last `count` queries of one head, token by token."""
    q, k, w, beta = (call[name][0, :, 0] for name in ("q", "k", "w", "beta"))
    tokens = len(k)
    time, x = torch.arange(tokens - count, tokens), q[-count:].clone()
    logits = torch.zeros(count, tokens, dtype=torch.float64)
    for s in reversed(range(tokens)):
        seen = time >= s
        logits[:, s] = torch.where(seen, x @ k[s], 0.0)
        x = x - torch.where(seen, beta[s] * (x @ w[s]), 0.0)[:, None] * w[s]
    return logits

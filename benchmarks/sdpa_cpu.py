"""torch's scaled_dot_product_attention on the CPU, in a process of its own; prints JSON.

    python benchmarks/sdpa_cpu.py THREADS ROUNDS

Causal, fp32, B = 1, H = 8, T = 2048, d = 64; seconds of each round, forward and forward + backward.
"""

import json
import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as attention


def main() -> None:
    """Time and print."""
    threads, rounds = (int(x) for x in sys.argv[1:])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shape = (1, 8, 2048, 64)
    q, k, v, do = (torch.randn(shape) for _ in range(4))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    times: dict[str, list[float]] = {"fwd": [], "fwd_bwd": []}
    for number in range(rounds + 2):
        begin = time.perf_counter()
        with torch.no_grad():
            attention(q, k, v, is_causal=True)
        middle = time.perf_counter()
        out = attention(leaves[0], leaves[1], leaves[2], is_causal=True)
        torch.autograd.grad(out, leaves, do)
        if number >= 2:
            times["fwd"].append(middle - begin)
            times["fwd_bwd"].append(time.perf_counter() - middle)
    json.dump(times, sys.stdout)


if __name__ == "__main__":
    main()

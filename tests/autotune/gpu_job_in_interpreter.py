"""Runs by itself under TRITON_INTERPRET=1: what a GPU process does, on the CPU with small tiles."""

import json
import sys
from typing import Any

import torch

from gnomon.autotune import gpu_job
from gnomon.autotune.plan import Problem
from gnomon.dsl import catalogue


def main() -> None:
    name = sys.argv[1]
    torch.manual_seed(0)
    gpu_job.DEVICE, gpu_job.ON = "cpu", "interpreter"
    gpu_job.SMALL, gpu_job.CHECKED = 48, 40
    gpu_job.CHANNELS = 64
    problem = Problem(catalogue.find(name).node, 16, dtype="fp32")
    small = {"BM": 16, "BN": 32, "num_warps": 4, "num_stages": 1}
    state = gpu_job._state(problem, gpu_job.SMALL)
    found: dict[str, Any] = {"kernels": list(state.launches)}
    seen = []
    for kernel in state.launches:
        run = getattr(state.module, kernel)
        grid_of = type(run).__getitem__

        def spy(self: Any, grid: Any, grid_of: Any = grid_of) -> Any:
            launcher = grid_of(self, grid)

            def launch(*args: Any, **kwargs: Any) -> Any:
                if "BM" in kwargs:  # the kernel itself, not what its launch makes for it
                    seen.append((self.fn.__name__, kwargs["BM"], kwargs["BN"]))
                return launcher(*args, **kwargs)

            return launch

        type(run).__getitem__ = spy
        gpu_job.first_launch(problem, kernel, small)
        type(run).__getitem__ = grid_of
    found["seen"] = seen
    found["errors"] = gpu_job.verify(problem, dict.fromkeys(state.launches, small))
    launch = f"launch_{name}_fwd"
    right = getattr(state.module, launch)

    def wrong(*args: Any) -> Any:
        first, *rest = right(*args)
        return (first * 1.01, *rest)

    setattr(state.module, launch, wrong)
    try:
        gpu_job.verify(problem, {})
        found["wrong"] = ""
    except gpu_job.WrongResultError as error:
        found["wrong"] = str(error)
    noise = iter(range(1000))

    def unsteady(*args: Any) -> Any:
        first, *rest = right(*args)
        return (first + 1e-7 * next(noise), *rest)

    setattr(state.module, launch, unsteady)
    try:
        gpu_job.verify(problem, {})
        found["unsteady"] = ""
    except gpu_job.WrongResultError as error:
        found["unsteady"] = str(error)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

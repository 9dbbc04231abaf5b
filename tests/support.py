"""What tests of several folders share: comparing tensors, and inputs that suit a variant."""

import torch
from torch import Tensor

from gnomon.runtime.check import rms
from gnomon.runtime.sample import Shape, small_tensors

__all__ = ["Shape", "assert_close", "rms", "small_tensors"]


def assert_close(
    name: str, expected: Tensor, actual: Tensor | None, ratio: float, *, floor: float = 1e-8
) -> None:
    """The difference has at most `ratio` of the size of what is expected; the figure is printed.

    rms(actual - expected) / max(rms(expected), floor) <= ratio, in float64. Infinities must stand
    in the same places with the same sign; a NaN is never close to anything.
    """
    assert actual is not None, f"{name}: expected a tensor, got None"
    assert actual.shape == expected.shape, f"{name}: {actual.shape}, expected {expected.shape}"
    a, e = actual.detach().double(), expected.detach().double()
    assert not e.isnan().any(), f"{name}: NaN in what is expected"
    assert not a.isnan().any(), f"{name}: {int(a.isnan().sum())} of {a.numel()} are NaN"
    infinite = e.isinf() | a.isinf()
    assert torch.equal(a[infinite], e[infinite]), f"{name}: infinities differ"
    a, e = a[~infinite], e[~infinite]
    error = rms(a - e) / max(rms(e), floor)
    print(f"{name:>12}  error {error:.2e}  bound {ratio:.0e}")
    assert error <= ratio, f"{name}: relative RMS error {error:.3e}, bound {ratio:.1e}"

"""Two published cases of flash-linear-attention's PaTH tests, a sequence each, on the CPU.

The whole list runs on a GPU: tests/kernels/test_fla_path.py.
"""

from functools import partial

import pytest
import torch
from compiled_calls import compiled, results
from torch.nn.functional import normalize

import gnomon as gn
from gnomon.dsl.reference import reference
from gnomon.runtime.check import rms

BOUNDS = {"out": 5e-3, "lse": 5e-3, "dq": 8e-3, "dk": 8e-3, "dv": 8e-3, "dw": 15e-3}
BOUNDS |= {"dbeta": 2e-2, "dlog_f": 2e-2}


@pytest.mark.parametrize(("time", "d", "dtype"), [(62, 128, "bfloat16"), (333, 64, "float16")])
def test_a_published_case(time: int, d: int, dtype: str) -> None:
    """Of (10, 62, 2, 8, 128, gate, bf16) and of the packed (.., 15, 333, ..) in fp16."""
    random = torch.Generator().manual_seed(42)
    heads, kv, kind = 4, 1, getattr(torch, dtype)
    given = {
        name: torch.randn(1, time, n, d, generator=random).to(kind)
        for name, n in (("q", heads), ("k", kv), ("v", kv))
    }
    given["w"] = normalize(torch.randn(1, time, kv, d, generator=random), dim=-1)
    beta = torch.rand(1, time, kv, generator=random)
    given["beta"] = beta / 2 + 1.5 if kind == torch.bfloat16 else beta.sigmoid()
    given["log_f"] = torch.rand(1, time, heads, generator=random).mul(0.05).add(0.95).log()
    variant, do = (
        gn.catalogue.path_fox_fla,
        torch.rand(1, time, heads, d, generator=random).to(kind),
    )
    wide = {name: x.double() for name, x in given.items()}
    expected = results(partial(reference, variant), wide, do=do)
    actual = results(compiled(variant), given, do=do)
    for name, wanted in expected.items():
        off = actual[name].double() - wanted
        error = rms(off) / rms(wanted)
        print(f"{name} {error:.1e} of {BOUNDS[name]}")
        assert error < BOUNDS[name], name

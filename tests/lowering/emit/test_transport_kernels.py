"""The printed stages of a transport, as a module in Triton's interpreter."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transport_job
from torch import Tensor
from transport_data import random_call
from transport_oracle import expected

from gnomon.lowering.emit.torch_library import functions
from gnomon.lowering.emit.transport_kernels import LIBRARY, TransportKernels
from gnomon.lowering.schedules.transport.precision import DEFAULT, EXACT
from gnomon.lowering.schedules.transport.stage import Plan
from gnomon.runtime.worker import Worker

JOB = Path(transport_job.__file__)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Worker]:
    worker = Worker({"TRITON_INTERPRET": "1"})
    yield worker
    worker.close()


def module_text(plan: Plan, width: int) -> str:
    parts = [transport_job.HEAD.strip(), *functions(LIBRARY)]
    return "\n\n\n".join([*parts, *TransportKernels(plan, width).parts()]) + "\n"


def relative(found: Tensor, wanted: Tensor) -> float:
    norm = wanted.norm()
    return float((found.double() - wanted).norm() / norm) if norm > 0 else float(found.abs().sum())


CASES = {
    # five leaves: a node that no row crosses, a last leaf that is cut
    "two_blocks": ((2, 131, 4, 2, 16), Plan(block=16, precision=EXACT), 1e-6),
    "one_block": ((1, 50, 2, 2, 16), Plan(block=16, blocks=1), 1.5e-3),
    "width_24": ((1, 70, 2, 1, 24), Plan(block=16, whole=False, shared=False), 1.5e-3),
    "one_leaf": ((1, 20, 1, 1, 16), Plan(block=16), 1.5e-3),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("descriptors", [False, True])
def test_module_gives_versions_and_gradients(
    case: str, descriptors: bool, interpreter: Worker, tmp_path: Path
) -> None:
    shape, plan, bound = CASES[case]
    path = tmp_path / "transport.py"
    path.write_text(module_text(plan, shape[-1]))
    inputs = random_call(shape, shared=plan.shared)
    names = [name for name in inputs if name != "u" or not plan.shared]
    leaves = {name: inputs[name].clone().requires_grad_() for name in names}
    q, k, w, beta = (leaves[name] for name in ("q", "k", "w", "beta"))
    wanted = expected(q, k, w, leaves.get("u", w), beta, plan.block * plan.blocks)
    generator = torch.Generator().manual_seed(3)
    weights = [1e-3 * torch.randn(x.shape, generator=generator).double() for x in wanted]
    weights = [d * (x != 0) for x, d in zip(wanted, weights, strict=True)]
    total = sum(((x * d).sum() for x, d in zip(wanted, weights, strict=True)), torch.zeros(()))
    grads = torch.autograd.grad(total, list(leaves.values()))
    given = [inputs[name].float() for name in names], [d.float() for d in weights]
    found = interpreter.run(JOB, "call", str(path), *given, descriptors, timeout=300)
    for name, x, y in zip(["qv", "kv", "loc", *names], found, (*wanted, *grads), strict=True):
        # columns of later blocks are not written: whatever stands there
        x = torch.where(y != 0, x, 0.0) if name == "loc" else x
        assert relative(x, y.detach()) < bound, name


def test_text_is_formatted(tmp_path: Path) -> None:
    from generated_modules import assert_formatted

    assert_formatted({"transport.py": module_text(Plan(precision=DEFAULT), 128)}, tmp_path)

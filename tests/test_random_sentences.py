"""Random sentences of the grammar agree between oracle, plain torch, tiles, Triton's interpreter.

`--hypothesis-profile=thorough` writes a thousand of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis
import torch
from generated_modules import doubled, execute
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sentences import Situation, sentences, situations
from support import assert_close, small_tensors
from torch import Tensor

from gnomon.dsl.reference import reference
from gnomon.dsl.trace import Declaration
from gnomon.lowering.emit.module import Module, print_module
from gnomon.lowering.emit.signature_text import Signature
from gnomon.lowering.pipelines import to_kernels, to_program

BOUND, FLOOR = 2e-5, 5e-2
"""Relative RMS errors, and the size against which gradients are measured that are 0 by nature."""
Results = dict[str, Tensor]


def results(
    function: Callable[..., Any],
    declaration: Declaration,
    situation: Situation,
    tensors: dict[str, Any],
) -> Results:
    """out, lse where there is one, and the gradient of every real tensor."""
    has_lse = Signature(declaration.node).has_lse
    options = {**situation.options(), **({"return_lse": True} if has_lse else {})}
    made = function(**tensors, **options)
    named = dict(zip(("out", "lse"), made if has_lse else (made,), strict=False))
    random = torch.Generator().manual_seed(situation.seed + 1)
    total = torch.zeros((), dtype=torch.float64)
    for name, x in named.items():
        weights = torch.randn(x.shape, generator=random, dtype=torch.float64)
        if name == "out" or situation.lse:
            dead = x.isinf()
            total = total + (x.double().masked_fill(dead, 0.0) * weights).sum()
    leaves = {name: x for name, x in tensors.items() if x.requires_grad}
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    zipped = zip(leaves.items(), found, strict=True)
    grads = {f"d_{n}": torch.zeros_like(x) if g is None else g for (n, x), g in zipped}
    return {name: x.detach() for name, x in named.items()} | grads


def plain_python(declaration: Declaration, situation: Situation) -> Callable[..., Any]:
    """The Numba module without the JIT, in tiles of the situation."""
    program = to_program(declaration.node, positions=situation.positions)
    packed = situation.packed is not None
    kernels = [to_kernels(attention, packed=packed) for attention in program.attentions]
    tiles = dict(zip(("BM", "BN"), situation.tiles, strict=True))
    config = {kernel.name: tiles for each in kernels for kernel in each.all()}
    halves = ([], kernels) if packed else (kernels, [])
    text = print_module(Module(program, *halves, target="numba", jit=False, config=config))
    found: Callable[..., Any] = getattr(execute(text), program.variant.name)
    return found


def assert_right(declaration: Declaration, situation: Situation) -> None:
    """Tiles as plain Python give what the oracle gives."""
    tensors = small_tensors(declaration, situation.shape, seed=situation.seed, requires_grad=True)
    call = partial(reference, declaration)
    expected = results(call, declaration, situation, doubled(tensors))
    actual = results(plain_python(declaration, situation), declaration, situation, tensors)
    assert actual.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(name, x, actual[name], BOUND, floor=FLOOR)


@hypothesis.settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_tiles_agree_with_the_oracle(data: st.DataObject) -> None:
    sentence = data.draw(sentences())
    assert_right(sentence.declaration, data.draw(situations(sentence.declaration)))

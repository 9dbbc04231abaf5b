"""gnomon.compile: what it takes and refuses; threads, forks, pickles, autocast."""

import copy
import pickle
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_calls import assert_bitwise, compiled, fox_call, normal, offsets, qkv, results
from generated_modules import execute, plain_python
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import gnomon as gn
from gnomon.dsl.errors import InputError, LawError, UnsupportedError
from gnomon.lowering.config import Config, Tiles
from gnomon.lowering.emit.module import print_module
from gnomon.runtime.compile import Attention, Form

FOX = gn.catalogue.fox
PLAIN = Form("numba", "f32", False, False, (16, 16))


# ---- what it takes


@pytest.mark.parametrize(
    ("given", "options", "text"),
    [
        (
            lambda q, k: q,
            {},
            "variant: expected what @gn.variant returns; got a function\n    decorate the function",
        ),
        (FOX, {"target": "cuda"}, "target: expected 'numba', 'triton' or None; got 'cuda'"),
        (
            FOX.node,
            {"alpha": 1},
            "variant: expected a declaration, so that hyperparameters can be set; "
            "got a traced variant and alpha",
        ),
    ],
    ids=["function", "target", "traced"],
)
def test_what_it_refuses(given: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        gn.compile(given, **options)
    assert str(error.value) == text


@gn.variant
def broken_stick(q, k):  # type: ignore[no-untyped-def]
    "stick-breaking over q_i . k_j / sqrt(d)"
    return gn.stick_breaking(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal(strict=True))


def test_a_variant_without_a_schedule_is_refused_at_once_at_its_line() -> None:
    with pytest.raises(UnsupportedError) as error:
        gn.compile(broken_stick)
    first, line, *_, last = str(error.value).splitlines()
    assert re.match(r"\S*test_compile.py:\d+: .* has no schedule yet", first)
    assert line.strip().startswith("return gn.stick_breaking(")
    assert last == "in broken_stick"


def test_a_broken_law_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(LawError, match="law"):

        @gn.variant
        def no_dot(q, k, x: gn.Token[gn.Head]):  # type: ignore[no-untyped-def]
            "a score without q and k"
            return gn.softmax(gn.at_key(x), mask=gn.everything(), values=q)


def test_hyperparameters_are_numbers_or_become_inputs() -> None:
    tensors = qkv(20, dim=32)
    usual: Any = gn.compile(gn.catalogue.tapa)
    spelled = gn.compile(gn.catalogue.tapa, alpha=0.1)
    other = gn.compile(gn.catalogue.tapa, alpha=0.7)
    assert usual.source(PLAIN) == spelled.source(PLAIN) != other.source(PLAIN)
    learned = gn.compile(gn.catalogue.tapa, alpha=gn.Param[gn.Head])
    assert "alpha" in {x.name for x in learned.variant.inputs}
    assert repr(learned) == "Attention(tapa: q, k, v, alpha)"
    assert usual(**tensors).shape == (1, 20, 2, 32)


def test_how_it_shows() -> None:
    assert repr(gn.compile(FOX)) == "Attention(fox: q, k, v, log_f)"
    assert repr(gn.compile(gn.catalogue.nope)) == "Attention(nope: q, k, v)"


# ---- bad calls


def changed(**given: Any) -> dict[str, Any]:
    return {**fox_call(9), **given}


Q = normal(1, 9, 2, 16)
Q64 = {name: Q.double() for name in ("q", "k", "v")}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "q of three axes": (
        {"q": Q[0]},
        "q: expected the shape [batch (any), time_q (any), Head (any), d (any)]; got [9, 2, 16]",
    ),
    "v no tensor": ({"v": [1.0]}, "v: expected a torch tensor; got a list"),
    "gate no tensor": ({"log_f": [1.0]}, "log_f: expected a torch tensor; got a list"),
    "float64": (Q64, "q: expected float32, float16 or bfloat16; got float64"),
    "k bf16": ({"k": Q.bfloat16()}, "k: expected the dtype of q, float32; got bfloat16"),
    "gate bf16": (
        {"log_f": Q[..., 0].bfloat16()},
        "log_f: expected float32, because it is summed along the sequence; got bfloat16\n"
        "    pass log_f.float()",
    ),
    "gate of integers": (
        {"log_f": Q[..., 0].long()},
        "log_f: expected one of bfloat16, float16, float32, float64; got int64",
    ),
    "gate of the queries": (
        {"q": Q[:, :5], "log_f": Q[:, :5, :, 0]},
        "log_f: expected the shape [batch 1, time_k 9, Head 2]; got [1, 5, 2]\n"
        "    a token input has one row for every key; the last time_q belong to the queries",
    ),
    "gate of key heads": (
        {"log_f": Q[:, :, :1, 0]},
        "log_f: expected the shape [batch 1, time_k 9, Head 2]; got [1, 9, 1]",
    ),
    "k of another width": (
        {"k": normal(1, 9, 2, 8)},
        "k: expected the shape [batch 1, time_k 9, KVHead 2, d 16]; got [1, 9, 2, 8]",
    ),
    "k of another batch": (
        {"k": normal(2, 9, 2, 16)},
        "k: expected the shape [batch 1, time_k (any), KVHead (any), d 16]; got [2, 9, 2, 16]",
    ),
    "v of another length": (
        {"v": normal(1, 8, 2, 16)},
        "v: expected the shape [batch 1, time_k 9, KVHead 2, d_v (any)]; got [1, 8, 2, 16]",
    ),
    "another device": ({"k": Q.to("meta")}, "k: expected the device of q, cpu; got meta"),
    "sparse": (
        {"k": Q.to_sparse()},
        "k: expected a strided tensor; got one of layout torch.sparse_coo",
    ),
    "unknown": (
        {"gate": Q},
        "gate: expected the inputs q, k, v, log_f of fox; got q, k, v, log_f, gate",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tensors_are_refused_by_name(name: str) -> None:
    given, text = BAD[name]
    with pytest.raises(InputError) as error:
        compiled(FOX)(**changed(**given))
    assert str(error.value) == text


def test_missing_and_surplus_inputs() -> None:
    tensors = fox_call(9)
    with pytest.raises(InputError) as error:
        compiled(FOX)(*tensors.values())
    assert str(error.value) == "inputs: expected log_f by name; got 1 more positional arguments"
    del tensors["log_f"]
    with pytest.raises(InputError) as error:
        compiled(FOX)(**tensors)
    assert str(error.value) == "log_f: expected the inputs q, k, v, log_f of fox; got q, k, v"


def test_a_device_without_a_target() -> None:
    tensors = {name: x.to("meta") for name, x in fox_call(9).items()}
    with pytest.raises(UnsupportedError, match="no target runs on the device meta"):
        compiled(FOX)(**tensors)


def test_no_single_log_sum_exp() -> None:
    tensors = {**qkv(5), "bias": torch.zeros(2)}
    with pytest.raises(InputError) as error:
        compiled(gn.catalogue.sigmoid_attention)(**tensors, return_lse=True)
    assert str(error.value) == "return_lse: expected False: there is no single softmax; got True"


# ---- autocast


def test_autocast_changes_nothing() -> None:
    """Kernels choose every dtype; the layers around have what autocast made of them."""
    tensors = fox_call(70)
    plain = results(compiled(FOX), tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_bitwise(results(compiled(FOX), tensors), plain)
        leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
        out = compiled(FOX)(**leaves)
    out.backward(normal(*out.shape, seed=5))  # outside of it, as training loops do
    for name, x in leaves.items():
        assert x.grad is not None
        assert torch.equal(x.grad, plain[f"d{name}"]), name


def test_products_of_the_prologue_leave_autocast() -> None:
    text = print_module(plain_python(gn.catalogue.shaw_key))
    shaw = execute(text).shaw_key
    tensors = {**qkv(9), "a": normal(33, 16)}
    plain = shaw(**tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(shaw(**tensors), plain)


def test_mixed_dtypes_are_refused_under_autocast_too() -> None:
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(InputError, match="k: expected the dtype of q, bfloat16; got float32"),
    ):
        compiled(FOX)(**changed(q=Q.bfloat16()))


# ---- the same bits every time


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_the_same_bits_every_time(packed: bool) -> None:
    tensors = fox_call(300, heads=8, kv_heads=2)
    options: dict[str, Any] = {"cu_seqlens": offsets(100, 0, 200)} if packed else {}
    dlse = normal(1, 300, 8, seed=6)
    first = results(compiled(FOX), tensors, dlse=dlse, **options)
    for _ in range(2):
        assert_bitwise(results(compiled(FOX), tensors, dlse=dlse, **options), first)


def test_the_same_bits_on_any_number_of_threads(two_threads: None) -> None:
    tensors = fox_call(300, batch=2, heads=8, kv_heads=2)
    two = results(compiled(FOX), tensors)
    torch.set_num_threads(1)
    assert_bitwise(results(compiled(FOX), tensors), two)


# ---- threads and processes


def at_once(attention: Any, calls: list[dict[str, Tensor]], **options: Any) -> list[Any]:
    """The results of calls that begin together, three times each."""
    meet = threading.Barrier(len(calls))

    def run(n: int) -> dict[str, Tensor]:
        meet.wait()
        for _ in range(3):
            made = results(attention, calls[n], **options)
        return made

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, range(len(calls))))


def test_calls_from_several_threads(two_threads: None) -> None:
    calls = [fox_call(100 + 7 * n, heads=2 + n) for n in range(4)]
    found = at_once(gn.compile(FOX), calls)
    torch.set_num_threads(1)
    for tensors, made in zip(calls, found, strict=True):
        assert_bitwise(made, results(compiled(FOX), tensors))


def test_first_calls_from_several_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is lowered, written or compiled yet."""
    monkeypatch.setenv("GNOMON_CACHE", str(tmp_path))
    attention = gn.compile(gn.catalogue.nope, config=Config(*[Tiles(16, 32)] * 3))
    calls = [qkv(20 + n) for n in range(4)]
    found = at_once(attention, calls, wanted=())
    for tensors, made in zip(calls, found, strict=True):
        assert_bitwise(made, results(attention, tensors, wanted=()))
        q, k, v = (x.transpose(1, 2) for x in tensors.values())
        plain = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert torch.allclose(made["out"], plain.transpose(1, 2), atol=1e-6)
    assert len(list((tmp_path / "kernels").glob("*.py"))) == 1


class Attended(Dataset[Tensor]):
    """A data set that calls a compiled variant."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        out: Tensor = compiled(FOX)(**fox_call(20 + index))
        return out.sum()


def test_a_forked_worker_may_call_it() -> None:
    here = [Attended()[n] for n in range(4)]  # the kernels are loaded before the fork
    loader = DataLoader(Attended(), batch_size=1, num_workers=1, multiprocessing_context="fork")
    there = [batch[0] for batch in loader]
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
def test_copies_are_the_same_function(copied: Any) -> None:
    attention = gn.compile(FOX, target="numba", config=Config(*[Tiles(32, 64)] * 3))
    twin = copied(attention)
    assert isinstance(twin, Attention)
    assert twin.source(PLAIN) == attention.source(PLAIN)
    assert (twin.target, twin.config) == (attention.target, attention.config)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.attention = copied(compiled(FOX))
    again = copied(model)
    assert torch.equal(again.attention(**fox_call(9)), compiled(FOX)(**fox_call(9)))


# ---- what it writes


def test_the_source_of_a_form(tmp_path: Path) -> None:
    attention = gn.compile(FOX)
    assert attention.source(PLAIN) == gn.compile(FOX).source(PLAIN)
    path = attention.path(PLAIN)
    assert path.read_text() == attention.source(PLAIN)
    assert path.name.startswith("fox_")
    packed = Form("numba", "f32", True, False, (16, 16))
    assert "cu_seqlens_q [offset]" not in attention.source(PLAIN)
    assert attention.source(packed) != attention.source(PLAIN)


def test_head_dims_share_a_module() -> None:
    attention = gn.compile(FOX)
    wide = Form("numba", "f32", False, False, (128, 64))
    assert attention.module(PLAIN) is attention.module(wide)


def test_tiles_given_by_hand() -> None:
    small = gn.compile(FOX, config=Config(*[Tiles(16, 32)] * 3))
    assert "cdiv(call.longest_q, 16)" in small.source(PLAIN)
    assert "cdiv(call.longest_q, 16)" not in gn.compile(FOX).source(PLAIN)


def test_positions_of_the_caller() -> None:
    """rope with the positions that it counts itself, and with the same ones given."""
    tensors = qkv(20)
    rope = compiled(gn.catalogue.rope)
    counted = rope(**tensors)
    given = rope(**tensors, positions=torch.arange(20)[None])
    assert torch.allclose(counted, given, rtol=1e-6, atol=1e-6)
    with pytest.raises(InputError) as error:
        rope(**tensors, positions=torch.arange(19)[None])
    assert str(error.value) == "positions: expected the shape [batch 1, time_k 20]; got [1, 19]"

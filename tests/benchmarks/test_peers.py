"""The peers compute the variants that they are timed for; those that are not here say so."""

import os
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support import assert_close
from torch import Tensor

import gnomon as gn
from gnomon.benchmarks import peers
from gnomon.benchmarks.calls import Call, Data
from gnomon.benchmarks.peers import PEERS, Query
from gnomon.benchmarks.shapes import Problem
from gnomon.benchmarks.timing import Absent
from gnomon.dsl.reference import reference

PROBLEM = Problem(B=2, T=70, H=4, groups=2, D=16)


@pytest.fixture(scope="module")
def data() -> Data:
    return Data(PROBLEM, "fp32", "cpu")


def node(name: str) -> Any:
    return getattr(gn.catalogue, name).node


def query(data: Data, name: str, which: str = "fwd", **folders: Path) -> Query:
    return Query(name, which, data.of(node(name)), folders)


def expected(data: Data, name: str) -> tuple[Tensor, ...]:
    """The output and the gradients of every input, from the oracle."""
    x = data.of(node(name))
    leaves = [t.double().requires_grad_() for t in (x.q, x.k, x.v, *x.extra.values())]
    q, k, v, *rest = leaves
    extra: dict[str, Any] = dict(zip(x.extra, rest, strict=True))
    out = reference(node(name), q, k, v, **extra)
    return out, *torch.autograd.grad(out, leaves, x.cotangent.double())


def peer(name: str) -> peers.Peer:
    return next(peer for peer in PEERS if peer.name == name)


def test_data_is_the_same_each_time_and_shared(data: Data) -> None:
    fox, nope = data.of(node("fox")), data.of(node("nope"))
    assert fox.q is nope.q
    assert torch.equal(fox.q, Data(PROBLEM, "fp32", "cpu").q)
    assert not torch.equal(fox.q, fox.cotangent)
    assert [list(x.shape) for x in (fox.q, fox.k, fox.v, fox.cotangent)] == [
        [2, 70, 4, 16],
        [2, 70, 2, 16],
        [2, 70, 2, 16],
        [2, 70, 4, 16],
    ]
    narrow = Data(PROBLEM, "bf16", "cpu").of(node("fox"))
    assert (narrow.q.dtype, narrow.extra["log_f"].dtype) == (torch.bfloat16, torch.float32)


def test_gates_are_those_of_a_new_model() -> None:
    gates = Data(Problem(1, 4000, 8, 1, 16), "bf16", "cpu").of(node("fox")).extra["log_f"]
    normal = torch.randn(400_000)
    wanted = torch.nn.functional.logsigmoid(normal + 4)
    assert float(gates.max()) < 0
    assert float(gates.mean()) == pytest.approx(float(wanted.mean()), rel=0.1)


@pytest.mark.parametrize("name", ["m_rope", "t5", "carope"])
def test_inputs_of_other_variants_suit_them(name: str) -> None:
    """Coordinates, tables, what is summed along the sequence: the oracle takes them."""
    x = Data(Problem(1, 20, 4, 2, 16), "fp32", "cpu").of(node(name))
    others: dict[str, Any] = {**x.extra, **x.options}
    out = reference(node(name), x.q, x.k, x.v, **others)
    assert out.shape == x.cotangent.shape
    assert not out.isnan().any()


@pytest.mark.parametrize(("name", "variant"), [("math", "nope"), ("torch", "tapa")])
def test_torch_peers_beside_the_oracle(data: Data, name: str, variant: str) -> None:
    """All query heads, heads first: gradients of a key head are summed here."""
    asked = query(data, variant, "fwd_bwd")
    call = peer(name).make(asked)
    out, dq, dk, dv = expected(data, variant)
    assert_close("out", out, call.run("fwd")().transpose(1, 2), 1e-5)
    found = call.run("fwd_bwd")()
    assert_close("dq", dq, found[0].transpose(1, 2), 1e-5)
    for label, wanted, each in (("dk", dk, found[1]), ("dv", dv, found[2])):
        assert_close(label, wanted, each.transpose(1, 2).unflatten(2, (2, 2)).sum(3), 1e-5)


def test_the_release_of_tapa_has_no_turns(data: Data) -> None:
    call = peer("torch").make(query(data, "tapa_no_turns"))
    out = expected(data, "tapa_no_turns")[0]
    assert_close("out", out, call.run("fwd")().transpose(1, 2), 1e-5)


@pytest.mark.parametrize("variant", ["nope", "fox"])
def test_flex_attention_beside_the_oracle(data: Data, variant: str) -> None:
    """Not compiled, and without gradients: torch has no more of it on a CPU."""
    call = peers.flex(query(data, variant), compiled=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is slow
        out = call.forward(*call.tensors)
    assert_close("out", expected(data, variant)[0], out.transpose(1, 2), 1e-5)
    assert len(call.tensors) == (4 if variant == "fox" else 3)


def test_every_float_is_a_leaf_and_integers_are_none() -> None:
    seen: list[bool] = []

    def forward(x: Tensor, n: Tensor, unused: Tensor) -> Tensor:
        seen.extend(t.requires_grad for t in (x, n, unused))
        return x * n

    tensors = [torch.ones(3), torch.arange(3), torch.ones(2)]
    call = Call(forward, tensors, torch.full((3,), 2.0))
    assert call.run("fwd")().requires_grad, "what a backward pass needs is saved"
    assert seen == [True, False, True]
    dx, dunused = call.run("fwd_bwd")()
    assert dx.tolist() == [0.0, 2.0, 4.0]
    assert dunused is None
    assert not tensors[0].requires_grad


def test_plain_tapa_says_what_it_lacks(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = query(data, "tapa")
    monkeypatch.setattr(Tensor, "is_cuda", True)
    monkeypatch.setattr(peers, "_free_memory", lambda: 1 << 10)
    with pytest.raises(Absent, match=r"its \[B, H, T, T\] matrices take about 0 GiB"):
        peer("torch").make(asked)


# ---- FLA


class Fla:
    """What stands in for FLA: notes which back end it was told to take at each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, tilelang: bool) -> None:
        self.told: list[str | None] = []
        backend = type("Backend", (), {"is_available": staticmethod(lambda: tilelang)})
        modules: dict[str, dict[str, Any]] = {
            "fla": {},
            "fla.ops": {},
            "fla.ops.attn": {"parallel_attn": self.attention},
            "fla.ops.forgetting_attn": {"parallel_forgetting_attn": self.attention},
            "fla.ops.attn.backends": {},
            "fla.ops.attn.backends.tilelang": {"AttnTileLangBackend": backend},
        }
        for name, members in modules.items():
            module = ModuleType(name)
            vars(module).update({**members, "__path__": []})
            monkeypatch.setitem(sys.modules, name, module)

    def attention(self, q: Tensor, *others: Tensor) -> Tensor:
        self.told.append(os.environ.get("FLA_TILELANG"))
        assert [list(x.shape) for x in others[:2]] == [[2, 70, 2, 16]] * 2, "its own key heads"
        return q * len(others)


def test_fla_is_told_its_back_end_at_every_call(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLA_TILELANG", "mine")
    fla = Fla(monkeypatch, tilelang=True)
    with peers.kept_environment():
        names = ("fla_triton", "fla_tilelang")
        runs = [peer(name).make(query(data, "fox")).run("fwd") for name in names]
        for run in (*runs, *runs):
            run()
    assert fla.told == ["0", "1", "0", "1"]
    assert os.environ["FLA_TILELANG"] == "mine"


def test_fla_without_tilelang_is_never_taken_for_it(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    Fla(monkeypatch, tilelang=False)
    assert peer("fla_triton").make(query(data, "nope"))
    with pytest.raises(Absent, match="no tilelang"):
        peer("fla_tilelang").make(query(data, "nope"))
    monkeypatch.setenv("FLA_DISABLE_BACKEND_DISPATCH", "1")
    with pytest.raises(Absent, match="FLA_DISABLE_BACKEND_DISPATCH"):
        peer("fla_tilelang").make(query(data, "nope"))


@pytest.mark.parametrize("variant", ["path", "path_fox"])
def test_fla_path_has_what_it_asks_for(
    data: Data, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """w, beta and the gate in fp32, each with a gradient; the first of its results."""
    module = ModuleType("fla.ops.path_attn")

    def attention(q: Tensor, k: Tensor, v: Tensor, *given: Tensor) -> tuple[Tensor, None]:
        w, beta, *gate = given
        assert {x.dtype for x in given} == {torch.float32}
        assert w.shape == k.shape
        assert beta.shape == k.shape[:3]
        assert [g.shape for g in gate] == [q.shape[:3]] * (variant == "path_fox")
        return q * (w.sum() + beta.sum() + sum(g.sum() for g in gate)), None

    vars(module)["parallel_path_attn"] = attention
    monkeypatch.setitem(sys.modules, "fla.ops.path_attn", module)
    call = peer("fla_path").make(query(data, variant))
    assert call.run("fwd")().shape == call.cotangent.shape
    assert [g is None for g in call.run("fwd_bwd")()][3:] == [False] * (len(call.tensors) - 3)


def test_fla_that_is_not_installed(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.raises(ModuleNotFoundError):
        peer("fla_triton").make(query(data, "nope"))


# ---- code of others


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with files of the names that the peers have, and copies that lie deeper."""
    inner, deeper = tmp_path / "src", tmp_path / "src" / "old" / "copies"
    deeper.mkdir(parents=True)
    fox = "def forgetting_attention(q, k, v, log_f, **options):\n    return q, log_f, options\n"
    tapa = "def tapa_attention_triton(q, k, v, **options):\n    return q, options\n"
    for name, text in {"forgetting_attention.py": fox, "attention_triton.py": tapa}.items():
        (inner / name).write_text(text)
        (deeper / name).write_text("raise RuntimeError('the wrong one')\n")
    for name in ("fox_official", "tapa_release"):
        monkeypatch.delitem(sys.modules, f"gnomon_peer_{name}", raising=False)
    return tmp_path


def test_code_from_a_folder(data: Data, folder: Path) -> None:
    asked = query(data, "fox", fox_official=folder)
    q, log_f, options = peer("fox_official").make(asked).run("fwd")()
    assert list(q.shape) == [2, 4, 70, 16]
    assert torch.equal(log_f.transpose(1, 2), asked.inputs.extra["log_f"])
    assert options == {"head_first": True}
    pruned = query(data, "fox_pruned", fox_official=folder)
    options = peer("fox_official").make(pruned).run("fwd")()[2]
    assert options == {"head_first": True, "adaptive_threshold": "auto"}
    call = peer("tapa_release").make(query(data, "tapa", tapa_release=folder))
    assert call.run("fwd")()[1] == {"theta": 0.5, "alpha": 0.1, "causal": True}


def test_code_that_is_not_there(data: Data, tmp_path: Path, folder: Path) -> None:
    with pytest.raises(Absent, match="no folder given: --fox-official DIR"):
        peer("fox_official").make(query(data, "fox"))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(Absent, match=r"no attention_triton\.py in the folder of --tapa-release"):
        peer("tapa_release").make(query(data, "tapa", tapa_release=empty))
    with pytest.raises(Absent, match="forward pass only"):
        peer("tapa_release").make(query(data, "tapa", "fwd_bwd", tapa_release=folder))

"""A run: its sets, what fails in them, the budget, the document."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_clock import FakeClock, Work

import gnomon as gn
from gnomon.benchmarks import run as module
from gnomon.benchmarks.calls import Call
from gnomon.benchmarks.peers import Peer, Query
from gnomon.benchmarks.run import Ours, Plan, run
from gnomon.benchmarks.shapes import Problem
from gnomon.benchmarks.timing import Absent
from gnomon.dsl.errors import InputError

SCHEMA = {
    "variant": str,
    "implementation": str,
    "B": int,
    "T": int,
    "H": int,
    "groups": int,
    "D": int,
    "dtype": str,
    "pass": str,
    "median_ms": float,
    "spread": float,
    "ratio_to_cudnn": float,
    "peak_mib": float,
}


def nodes(*names: str) -> list[Any]:
    return [getattr(gn.catalogue, name).node for name in names]


def small(*names: str, **options: Any) -> Plan:
    """A plan that needs no GPU."""
    given = {"lengths": (64,), "dims": (16,), "tokens": 128, "channels": 32, "rounds": 5}
    return Plan(nodes(*names), **{"device": "cpu", **given, **options})


class FakeCall(Call):
    """A call of a known length; a backward pass takes twice as long again."""

    def run(self, which: str) -> Any:
        ms = float(self.cotangent)
        return Work("peer", ms if which == "fwd" else 3 * ms)


def timed(ms: float) -> Any:
    return lambda query: FakeCall(lambda: torch.zeros(()), [], torch.tensor(ms))


def absent(query: Query) -> Call:
    raise Absent("not on this card")


def broken(query: Query) -> Call:
    raise RuntimeError("no kernel")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers of known lengths; ours takes 3 ms forward and 12 ms in both passes."""
    peers = (
        Peer("cudnn", ("nope",), ("cpu",), timed(2.0)),
        Peer("flex", ("nope", "fox"), ("cpu",), timed(4.0)),
        Peer("fla_triton", ("fox",), ("cpu",), absent),
        Peer("fox_official", ("fox",), ("cpu",), broken),
        Peer("elsewhere", ("fox",), ("cuda",), timed(1.0)),
    )
    monkeypatch.setattr(module, "PEERS", peers)

    def make(own: Ours, variant: Any, problem: Any, which: str, inputs: Any) -> Work:
        return Work("gnomon", 3.0 if which == "fwd" else 12.0)

    monkeypatch.setattr(Ours, "make", make)


def last(plan: Plan, **options: Any) -> Any:
    *_, document = run(plan, FakeClock(), **options)
    return document


def brief(records: Sequence[Any]) -> list[tuple[Any, ...]]:
    keys = ("variant", "implementation", "median_ms", "ratio_to_cudnn")
    return [tuple(record[key] for key in keys) for record in records]


@pytest.mark.usefixtures("fake")
def test_every_implementation_has_a_record_and_a_ratio() -> None:
    records = last(small("fox", "nope"))["records"]
    forward = [record for record in records if record["pass"] == "fwd"]
    assert brief(forward) == [
        ("fox", "gnomon", 3.0, 1.5),
        ("nope", "gnomon", 3.0, 1.5),
        ("nope", "cudnn", 2.0, 1.0),
        ("nope", "flex", 4.0, 2.0),
        ("fox", "flex", 4.0, 2.0),
        ("fox", "fla_triton", None, None),
        ("fox", "fox_official", None, None),
    ]
    assert [r.get("absent") for r in forward][-2:] == ["not on this card", None]
    assert [r.get("error") for r in forward][-2:] == [None, "RuntimeError: no kernel"]
    both = [record for record in records if record["pass"] == "fwd_bwd"]
    assert brief(both)[0] == ("fox", "gnomon", 12.0, 2.0)
    assert {r["peak_mib"] for r in both if r["median_ms"] is not None} == {12.0}


@pytest.mark.usefixtures("fake")
def test_cudnn_is_measured_without_its_variant_and_only_named_peers_are() -> None:
    assert [r[:2] for r in brief(last(small("fox", peers=["cudnn"]))["records"][:2])] == [
        ("fox", "gnomon"),
        ("nope", "cudnn"),
    ]
    (record,) = last(small("fox", peers=[], passes=("fwd",)))["records"]
    assert (record["median_ms"], record["ratio_to_cudnn"]) == (3.0, None)


@pytest.mark.usefixtures("fake")
def test_the_document_survives_json_and_every_record_has_every_field() -> None:
    plan = small("fox", "nope", lengths=(64, 32), groups=2)
    document = json.loads(json.dumps(last(plan), allow_nan=False))
    assert list(document) == [
        "device",
        "versions",
        "commit",
        "protocol",
        "records",
        "left_out",
    ]
    assert document["protocol"] == {"rounds": 5, "sample_ms": 250.0, "warm_ms": 60.0}
    assert {"torch", "triton", "driver", "cuda", "python", "fla"} <= set(document["versions"])
    assert document["device"]["name"]
    assert len(document["records"]) == 2 * 2 * 7
    for record in document["records"]:
        for name, kind in SCHEMA.items():
            is_time = name in ("median_ms", "spread", "ratio_to_cudnn", "peak_mib")
            assert isinstance(record[name], kind) or (is_time and record[name] is None)
        extra = set(record) - set(SCHEMA)
        assert extra <= {"absent", "error"}
        assert bool(extra) == (record["median_ms"] is None)
    assert {(r["B"], r["T"], r["groups"]) for r in document["records"]} == {(2, 64, 2), (4, 32, 2)}


@pytest.mark.usefixtures("fake")
def test_the_document_is_there_after_each_set() -> None:
    lengths = [len(document["records"]) for document in run(small("nope"), FakeClock())]
    assert lengths == [3, 6, 6]


@pytest.mark.usefixtures("fake")
def test_the_budget_ends_the_run_between_sets() -> None:
    seconds = iter([100.0, 100.0, 130.0, 161.0, 170.0])
    plan = small("nope", lengths=(64, 32), budget=60.0)
    document = last(plan, now=lambda: next(seconds))
    assert [(r["T"], r["pass"]) for r in document["records"][::3]] == [(64, "fwd"), (64, "fwd_bwd")]
    assert [(x["T"], x["D"], x["pass"], x["reason"]) for x in document["left_out"]] == [
        (32, 16, "fwd", "the budget of 60 s was over"),
        (32, 16, "fwd_bwd", "the budget of 60 s was over"),
    ]


@pytest.mark.usefixtures("fake")
def test_a_lost_device_leaves_out_what_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, document = run(small("fox", peers=["fox_official"]), FakeClock(lost_by="Xid 31"))
    errors = [record["error"] for record in document["records"]]
    assert errors == ["the device was lost before: Xid 31", "RuntimeError: no kernel"]
    assert [x["reason"] for x in document["left_out"]] == ["the device was lost: Xid 31"]


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that are a little off: the record says which, and the peers are timed."""
    checked: list[str] = []

    def compiled(variant: Any) -> Any:
        def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
            checked.append(variant.name)
            found = gn.dsl.reference.reference(variant, q, k, v, **options)
            return tuple(x.to(q.dtype) * 1.02 for x in found)

        attention.variant = variant  # type: ignore[attr-defined]
        return attention

    monkeypatch.setattr(module, "compile", compiled)
    plan = small("nope", passes=("fwd",), sample_ms=1.0, warm_ms=0.0, peers=["math"])
    *_, document = run(plan)
    ours, peer = document["records"]
    assert ours["median_ms"] is None
    assert ours["error"].startswith("WrongKernelError: out 2.1e-02, bound 5e-03 (64 tokens); lse")
    assert peer["median_ms"] > 0
    assert len(checked) == 1


def test_a_check_is_made_once_for_each_width(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(module, "compile", lambda variant: lambda q, k, v: q * 1.0)

    def no_fault(_: Any, problem: Problem, *__: Any) -> str:
        made.append(problem.D)
        return ""

    monkeypatch.setattr(module, "fault", no_fault)
    plan = small("nope", lengths=(64, 32), dims=(16, 8), sample_ms=0.1, warm_ms=0.0, peers=[])
    *_, document = run(plan)
    assert made == [16, 8]
    assert all(record["median_ms"] > 0 for record in document["records"])


def test_the_whole_path_on_the_cpu() -> None:
    """Compiled, checked against the oracle, timed beside torch."""
    *_, document = run(small("nope", sample_ms=2.0, warm_ms=1.0, tokens=64))
    assert [(r["implementation"], r["pass"]) for r in document["records"]] == [
        ("gnomon", "fwd"),
        ("math", "fwd"),
        ("gnomon", "fwd_bwd"),
        ("math", "fwd_bwd"),
    ]
    assert all(r["median_ms"] > 0 and "error" not in r for r in document["records"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "tpu"}, "--device: expected some of cuda, cpu; got tpu"),
        ({"passes": ["bwd"]}, "--passes: expected some of fwd, fwd_bwd; got bwd"),
        ({"peers": ["cudnn", "cudn"]}, "got cudn"),
        ({"groups": 3}, "--groups: expected a divisor of the 2 heads"),
        ({"groups": 0}, "--groups: expected a number above 0; got 0"),
        ({"lengths": [10**6]}, "--lengths: expected at most 256"),
    ],
)
def test_plans_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        small("nope", **options)
    assert text in str(error.value)


def test_two_variants_of_one_name() -> None:
    twice = nodes("fox", "fox")
    with pytest.raises(InputError, match="VARIANTS: expected a name once; got fox, fox"):
        replace(small("nope"), variants=twice)


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what is said without a GPU")
def test_no_gpu() -> None:
    with pytest.raises(InputError, match="--device: expected a CUDA device; got cuda"):
        small("nope", device="cuda")

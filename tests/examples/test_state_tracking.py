"""The state tracking example: its model, a short training, its file, and refused options."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import state_tracking
import torch
from flip_flop import SETS, VOCABULARY, WRITE, read_places, sample, wrong_bits
from state_tracking import CPU, SMOKE, Directions, Options, Tracker, arguments_of, train
from torch.nn import functional
from torch.nn.functional import one_hot
from tracking_plot import lowest, plot

import gnomon as gn
from gnomon.dsl.errors import InputError

TINY = replace(CPU, **SMOKE)
PATH = gn.catalogue.path


def texts(count: int = 3, length: int = 16) -> torch.Tensor:
    return sample(count, length, 0.5, torch.Generator().manual_seed(0))


def test_directions_come_from_three_tokens_and_none_later() -> None:
    torch.manual_seed(0)
    made, x = Directions(16, 16), torch.randn(1, 9, 16)
    before = made(x)
    x[0, 4] += 1
    changed = (made(x) - before).abs().amax(-1)[0] > 0
    assert changed.tolist() == [4 <= at <= 6 for at in range(9)]
    assert made.bfloat16()(x.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("name", SETS)
def test_three_steps_solve_the_language(name: str) -> None:
    """The construction of the example's docstring, by hand: no training."""
    one = sample(200, 64, SETS[name], torch.Generator().manual_seed(2))
    before = functional.pad(one, (2, 0), value=-1)
    last, last_but_one = before[:, 1:-1], before[:, :-2]
    is_bit, e1, e2 = one < 2, *torch.eye(32)[:2]
    written = is_bit & (last == WRITE)
    after_bit, swaps = ~is_bit & (last >= 0), ~is_bit & (last_but_one == WRITE)

    w = torch.where(written[..., None], e2, e1)
    w = torch.where(swaps[..., None], (e1 - e2) / math.sqrt(2), w)
    beta = (written | after_bit).float() + swaps
    k = is_bit[..., None] * e1
    q = (40 * e2).expand_as(k)
    v = functional.pad(one_hot(one, VOCABULARY).float(), (0, 32 - VOCABULARY))
    v[~is_bit] = 0
    q, k, v, w = (x.unsqueeze(2).contiguous() for x in (q, k, v, w))
    out = gn.compile(PATH)(q, k, v, w=w, beta=beta.unsqueeze(2))
    assert int(wrong_bits(out[:, :, 0, :VOCABULARY], one)) == 0

    place = torch.arange(64)  # all that a query of r sees is the last written bit
    memory = place.where(written, 0).cummax(1).values
    logits = 40 / math.sqrt(32) * one_hot(memory, 64)
    weights = logits.masked_fill(place > place[:, None], -math.inf).softmax(-1)
    reads = functional.pad(read_places(one), (0, 1))
    assert int(reads.sum()) > 30
    error = (out[:, :, 0] - weights @ v[:, :, 0])[reads].abs().max()
    assert float(error) < 1e-5


def test_steps_are_reflections_of_length_one_with_strengths_to_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Tracker(PATH, TINY)
    layer, seen = model.attention, {}
    inner = layer.attention

    def listen(q: Any, k: Any, v: Any, **inputs: Any) -> Any:
        seen.update(inputs)
        return inner(q, k, v, **inputs)

    monkeypatch.setattr(layer, "attention", listen)
    for parameter in layer.maps["beta"].parameters():
        parameter.data.mul_(30)
    model(texts(8, 32))
    assert torch.allclose(seen["w"].norm(dim=-1), torch.ones(8, 32, 2))
    assert seen["w"].dtype == seen["beta"].dtype == torch.float32
    beta = seen["beta"].detach()
    assert 0 <= float(beta.min()) < 0.5
    assert 1.5 < float(beta.max()) <= 2


@pytest.mark.parametrize("name", ["path", "rope", "path_fox"])
def test_no_token_sees_a_later_one(name: str) -> None:
    torch.manual_seed(0)
    model, one = Tracker(gn.catalogue.find(name), TINY), texts()
    other = one.clone()
    other[:, 9:] = (one[:, 9:] + 1) % VOCABULARY
    assert model(one).shape == (3, 16, VOCABULARY)
    assert torch.allclose(model(one)[:, :9], model(other)[:, :9], atol=1e-6)
    assert not torch.allclose(model(one)[:, 9:], model(other)[:, 9:], atol=1e-3)


def test_the_loss_is_that_of_read_bits_alone() -> None:
    model, one = Tracker(PATH, TINY), texts()
    logits = model(one).detach().double().log_softmax(-1)
    nats = [
        -float(logits[row, at, one[row, at + 1]])
        for row, text in enumerate(one.tolist())
        for at, token in enumerate(text[:-1])
        if token == 3
    ]
    assert len(nats) > 2
    loss = state_tracking.loss_of(model, one).item()
    assert math.isclose(loss, sum(nats) / len(nats), rel_tol=1e-5)
    assert state_tracking.loss_of(model, torch.tensor([[2, 1, 4, 0]])).item() == 0, "nothing read"


class Constant(torch.nn.Module):
    """The same logits for every text."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(*texts.shape, VOCABULARY)


def test_the_rate_rises_and_falls_to_nothing() -> None:
    model, rates = Constant(), []
    options = replace(TINY, steps=10, warm_up=4, rate=1.0)
    optimiser = torch.optim.SGD(model.parameters())
    for number in range(10):
        state_tracking.step(model, optimiser, number, options, torch.Generator())
        rates.append(round(optimiser.param_groups[0]["lr"], 6))
    assert rates == [0.25, 0.5, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    bits, rest = model.logits[:2], model.logits[2:]
    assert float(bits.detach().min()) > float(rest.detach().max()), "what follows r is a bit"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a smoke run leaves."""
    made: Path = tmp_path_factory.mktemp("tracking")
    state_tracking.main(["--device", "cpu", "--smoke", "--seeds", "2", "--out", str(made)])
    return made


@pytest.fixture(scope="module")
def found(folder: Path) -> Any:
    return json.loads((folder / "state_tracking_cpu.json").read_text())


def test_a_few_steps_lower_the_loss(found: Any) -> None:
    for run in found["runs"]:
        first, last = run["checks"][0], run["checks"][-1]
        assert last["loss"] < 0.9 * first["loss"], run["variant"]


def test_the_file_says_what_was_run(found: Any) -> None:
    assert list(found) == ["device", "versions", "commit", "options", "runs"]
    assert found["device"]["name"]
    assert found["device"]["threads"] == 1
    assert found["versions"]["torch"] == torch.__version__
    assert found["options"] == asdict(replace(TINY, seeds=2))
    assert [(run["variant"], run["seed"]) for run in found["runs"]] == [
        ("path", 0),
        ("rope", 0),
        ("path", 1),
        ("rope", 1),
    ]
    for run in found["runs"]:
        assert run["steps"] == TINY.steps
        assert [check["step"] for check in run["checks"]] == [5, 20]
        assert list(run["error"]) == list(SETS)
        for name in SETS:
            assert run["reads"][name] >= TINY.reads
            assert run["error"][name] == run["wrong"][name] / run["reads"][name]


def test_a_seed_is_a_run(found: Any) -> None:
    again = asdict(train(PATH, 1, TINY, torch.device("cpu")))
    before = found["runs"][2]
    assert again["error"] == before["error"]
    assert [c["loss"] for c in again["checks"]] == [c["loss"] for c in before["checks"]]
    assert before["checks"] != found["runs"][0]["checks"]


def test_no_error_has_a_place_on_the_axis(folder: Path, found: Any, tmp_path: Path) -> None:
    png = b"\x89PNG"
    assert (folder / "state_tracking_cpu.png").read_bytes().startswith(png)
    for run in found["runs"]:
        for check in run["checks"]:
            check["error"] = dict.fromkeys(SETS, 0.0)
    plot(found, tmp_path / "zero.png")
    assert (tmp_path / "zero.png").read_bytes().startswith(png)
    assert 0 < lowest(100) < 1 / 100


def test_options_of_the_device_unless_they_are_given() -> None:
    options, given = arguments_of(["--device", "cpu", "--rate", "0.01", "--check-reads", "7"])
    assert options == replace(CPU, rate=0.01, check_reads=7)
    assert given["variants"] == ["path", "rope"]
    assert Options().length == 512
    names = [v.name for v in state_tracking.variants_of(["path,path_fox", "nope"])]
    assert names == ["path", "path_fox", "nope"]


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        (["--length", "7"], "--length"),
        (["--length", "2"], "--length"),
        (["--width", "40"], "--width"),
        (["--steps", "0"], "--steps"),
        (["--warm-up", "-1"], "--warm-up"),
        (["--check-reads", "0"], "--check-reads"),
        (["--rate", "0"], "--rate"),
        (["--rate", "nan"], "--rate"),
        (["--seeds", "0"], "--seeds"),
    ],
)
def test_impossible_options_are_refused(arguments: list[str], argument: str) -> None:
    with pytest.raises(InputError) as caught:
        arguments_of(["--device", "cpu", *arguments])
    assert caught.value.argument == argument


def test_variants_and_devices_that_are_not_there_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InputError, match="documents"):
        state_tracking.variants_of(["documents"])
    with pytest.raises(InputError, match="--variants"):
        state_tracking.variants_of([","])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="--device"):
        state_tracking.device_of("cuda")
    assert state_tracking.device_of("auto").type == "cpu"

"""What every test has: golden files, one thread a library, poisoned memory, a marker for GPUs."""

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import threadpoolctl
import torch

GOLDEN = Path(__file__).parent / "golden"

# `--hypothesis-profile=thorough` digs deeper; every other run is the same run each time.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=20)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


def pytest_configure(config: pytest.Config) -> None:
    """The shell's switches do not reach the tests; what they compile stays in the checkout."""
    for name in [name for name in os.environ if name.startswith("GNOMON_")]:
        del os.environ[name]
    if config.cache is not None:
        os.environ["GNOMON_CACHE"] = str(config.cache.mkdir("gnomon"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch finds none"))


class Golden(str):
    """The text of a golden file; `assert text == golden`, or `== golden.code` for a .py file."""

    path: Path
    update: bool

    @staticmethod
    def at(path: Path, update: bool) -> "Golden":
        golden = Golden(path.read_text().removesuffix("\n") if path.exists() else "")
        golden.path, golden.update = path, update
        return golden

    @property
    def code(self) -> "Golden":
        return Golden.at(self.path.with_name(f"{self.path.stem}.py"), self.update)

    def __eq__(self, text: object) -> bool:
        text = str(text).removesuffix("\n")
        if self.update:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(f"{text}\n")
            return True
        if not self.path.exists():
            pytest.fail(f"no {self.path}: run with --update-golden, read the file, commit it")
        return str.__eq__(self, text)

    def __ne__(self, text: object) -> bool:
        return not self == text

    __hash__ = str.__hash__


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """The file tests/golden/<folders>/<test module>/<test name>.txt."""
    module = request.path.relative_to(Path(__file__).parent).with_suffix("")
    name = re.sub(r"[^\w.=+-]+", "_", request.node.name).strip("_")
    update = request.config.getoption("--update-golden")
    return Golden.at(GOLDEN / module / f"{name}.txt", update)


@pytest.fixture(scope="session", autouse=True)
def one_thread_a_library() -> Iterator[None]:
    """Two workers on two cores: BLAS and torch keep to one thread each."""
    torch.set_num_threads(1)
    with threadpoolctl.threadpool_limits(1):
        yield


def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The same maker, whose tensors are full of NaN where a module of gnomon calls it."""

    @functools.wraps(make)
    def make_poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = make(*args, **kwargs)
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if caller.startswith("gnomon") and tensor.is_floating_point():
            with torch.no_grad():
                tensor.fill_(torch.nan)
        return tensor

    return make_poisoned


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote is NaN: a kernel that lets it reach a result cannot pass."""
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, poisoned(getattr(torch.Tensor, name)))

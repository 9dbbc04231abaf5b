"""Generated modules on disk: a file a text, whole files, races, folders that cannot be written."""

import inspect
import logging
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gnomon.runtime.modules import load

ROOT = Path(__file__).parents[2]
SOURCE = '"""softmax(q_i · k_j) - m·|i - j|"""\n\n\ndef double(x):\n    return 2 * x\n'


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache."""
    monkeypatch.setenv("GNOMON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def test_a_text_becomes_a_file_and_a_module(folder: Path) -> None:
    module = load("twice", SOURCE)
    assert module.double(21) == 42
    (file,) = folder.iterdir() if not (folder / "__pycache__").exists() else folder.glob("*.py")
    assert module.__file__ == str(file)
    assert file.read_text(encoding="utf-8") == SOURCE
    assert file.name.startswith("twice_")
    # Numba and Triton look for the text; pickles look for the name
    assert inspect.getsource(module.double).startswith("def double")
    assert pickle.loads(pickle.dumps(module.double)) is module.double


def test_equal_texts_are_one_module_and_others_have_files_of_their_own(folder: Path) -> None:
    assert load("twice", SOURCE) is load("twice", SOURCE)
    other = load("twice", SOURCE.replace("2 * x", "3 * x"))
    assert other.double(1) == 3
    assert load("twice", SOURCE).double(1) == 2
    assert len(list(folder.glob("*.py"))) == 2


def test_a_file_once_written_stays(folder: Path) -> None:
    path = Path(str(load("stays", SOURCE).__file__))
    before = path.stat().st_mtime_ns
    run("stays", folder)
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("rest", [b"", SOURCE.encode()[:20], b"\xff\xfe\x00"], ids=len)
def test_a_damaged_file_is_written_anew(folder: Path, rest: bytes) -> None:
    name = f"damaged{len(rest)}"
    path = Path(str(load(name, SOURCE).__file__))
    path.write_bytes(rest)
    assert run(name, folder) == "42"
    assert path.read_bytes() == SOURCE.encode()


def run(name: str, folder: Path, **environment: str) -> str:
    """The same load in another process."""
    code = f"from gnomon.runtime.modules import load; print(load({name!r}, {SOURCE!a}).double(21))"
    given = {"GNOMON_CACHE": str(folder.parent), "PYTHONPATH": str(ROOT / ".pyroot"), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_any_locale(folder: Path) -> None:
    assert run("locale", folder, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") == "42"
    (file,) = folder.glob("locale*.py")
    assert file.read_bytes() == SOURCE.encode()


def test_threads_that_load_at_once_get_one_module(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: load("race", SOURCE), range(16)))
    assert len({id(module) for module in made}) == 1
    assert not list(folder.glob("*.tmp"))


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("GNOMON_CACHE", str(blocked))
    with caplog.at_level(logging.WARNING, logger="gnomon"):
        first, second = load("spare", SOURCE), load("spare", SOURCE + "\n")
    assert first.double(2) == second.double(2) == 4
    (record,) = caplog.records  # said once
    assert "kernels of this process are kept elsewhere" in record.getMessage()
    assert Path(str(first.__file__)).parent == Path(str(second.__file__)).parent
    assert not Path(str(first.__file__)).is_relative_to(tmp_path)


def test_a_text_that_fails_leaves_no_module() -> None:
    broken = "raise KeyError('broken')\n"
    for _ in range(2):
        with pytest.raises(KeyError, match="broken"):
            load("broken", broken)
    assert not [name for name in sys.modules if name.startswith("gnomon_generated.broken")]


def test_a_file_of_the_users_folder_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = Path(str(load("tried", SOURCE).__file__)).name
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / name).write_text("def double(x):\n    return -x\n")
    monkeypatch.setenv("GNOMON_KERNEL_DIR", str(mine))
    with caplog.at_level(logging.WARNING, logger="gnomon"):
        assert load("tried", SOURCE).double(21) == -21
    assert f"using {mine / name} instead of the generated kernel" in caplog.text
    assert load("another", SOURCE).double(21) == 42

"""The environment variables: what they mean, and that wrong ones are refused."""

import logging
from pathlib import Path

import pytest

from gnomon.runtime.settings import Settings, logger, settings


@pytest.fixture(autouse=True)
def none_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GNOMON_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_without_any(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings() == Settings(tmp_path / ".cache" / "gnomon", None, None, "warning")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert settings().cache == tmp_path / "xdg" / "gnomon"


def test_all_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {"CACHE": "a", "DUMP": "b", "KERNEL_DIR": ""}
    for name, folder in given.items():
        monkeypatch.setenv(f"GNOMON_{name}", str(tmp_path / folder))
    monkeypatch.setenv("GNOMON_LOG", "debug")
    monkeypatch.setenv("GNOMON_COMMIT", "0123abc")
    assert settings() == Settings(tmp_path / "a", tmp_path / "b", tmp_path, "debug", "0123abc")


def test_the_home_folder_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GNOMON_CACHE", "~/kernels")
    assert settings().cache == tmp_path / "kernels"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "GNOMON_LOG",
            "loud",
            "GNOMON_LOG: expected one of debug, info, warning, error; got 'loud'",
        ),
        ("GNOMON_CACHE", "", "GNOMON_CACHE: expected a folder; got an empty string"),
        ("GNOMON_DUMP", "", "GNOMON_DUMP: expected a folder; got an empty string"),
        (
            "GNOMON_KERNEL_DIR",
            "/no/such/folder",
            "GNOMON_KERNEL_DIR: expected a folder; got '/no/such/folder'",
        ),
        (
            "GNOMON_DUMPS",
            "x",
            "GNOMON_DUMPS: no such setting; known are GNOMON_CACHE, GNOMON_COMMIT, GNOMON_DUMP, "
            "GNOMON_KERNEL_DIR, GNOMON_LOG",
        ),
    ],
)
def test_wrong_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, text: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="GNOMON_") as error:
        settings()
    assert str(error.value) == text


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_the_logger_has_the_level_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setenv("GNOMON_LOG", level)
    assert logger().level == getattr(logging, level.upper())
    assert logger().name == "gnomon"

"""Versions of Triton that no kernel was made for are refused, with what to install."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from gnomon.dsl.errors import UnsupportedError
from gnomon.runtime import here, versions
from gnomon.runtime.versions import BEFORE, OLDEST, check_triton


@pytest.mark.parametrize("found", ["3.6.0", "3.7.1", "3.9.0", "3.9.0+git1234"])
def test_supported_versions(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda package: found)
    check_triton()


@pytest.mark.parametrize("found", ["3.5.1", "2.1.0", "3.10.0", "4.0.0"])
def test_other_versions_are_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda package: found)
    with pytest.raises(UnsupportedError) as error:
        check_triton()
    first, fix = str(error.value).splitlines()
    assert first == f"triton {found} with torch {found}: the kernels are for triton >= 3.6, < 3.10"
    assert fix.strip().startswith("install triton >= 3.6, < 3.10: torch 2.11 brings triton 3.6")


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(versions, "version", missing)
    with pytest.raises(UnsupportedError, match="need triton, which is missing"):
        check_triton()


def test_the_range_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    needs = [x for x in project["project"]["dependencies"] if x.startswith("triton")]
    low, high = (".".join(map(str, numbers)) for numbers in (OLDEST, BEFORE))
    assert needs[0].startswith(f"triton>={low},<{high};")


def test_the_version_of_the_driver_is_no_number_of_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "version"
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0)\n"
    )
    monkeypatch.setattr(here, "_DRIVER", path)
    assert here.driver() == "580.159.04"
    monkeypatch.setattr(here, "_DRIVER", tmp_path / "none")
    assert here.driver() == ""

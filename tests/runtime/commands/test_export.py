"""`gnomon export`: which files are written, and whether their tests pass."""

import json
from pathlib import Path

import pytest
from command_line import refusal, text

from gnomon.runtime.commands.export import run_tests

FILES = ["fox.py", "fox_numba.py", "fox_triton.py", "fox_reference.py", "test_fox.py", "README.md"]


def test_a_folder_with_kernels_for_both_targets(tmp_path: Path) -> None:
    folder = tmp_path / "fox_attention"
    found = json.loads(text("export", "fox", "--to", str(folder), "--json"))
    assert [Path(path).name for path in found["files"]] == FILES
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert found["tests_passed"] is None
    kernels = (folder / "fox_triton.py").read_text()
    assert "gnomon export fox --to fox_attention" in kernels
    assert str(tmp_path) not in kernels


def test_one_target_under_a_licence(tmp_path: Path) -> None:
    licence = tmp_path / "HEADER"
    licence.write_text("Copyright the receiving repository\nMIT\n")
    options = ("--target", "triton", "--licence", str(licence))
    shown = text("export", "fox", "--to", str(tmp_path / "out"), *options)
    assert "try: python -m pytest" in shown
    first = (tmp_path / "out" / "fox.py").read_text().splitlines()[:2]
    assert first == ["# Copyright the receiving repository", "# MIT"]
    assert not (tmp_path / "out" / "fox_numba.py").exists()


def test_the_files_are_the_same_when_written_again(tmp_path: Path) -> None:
    for _ in range(2):
        text("export", "nope", "--to", str(tmp_path / "nope"))
        now = {path.name: path.read_text() for path in (tmp_path / "nope").iterdir()}
    text("export", "nope", "--to", str(tmp_path / "twice" / "nope"))
    assert now == {p.name: p.read_text() for p in (tmp_path / "twice" / "nope").iterdir()}


@pytest.mark.parametrize(("value", "passes"), [("1", True), ("2", False)])
def test_exported_tests_run_whatever_stands_around_the_folder(
    tmp_path: Path, value: str, passes: bool
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--wrong"\n')
    folder = tmp_path / "exported"
    folder.mkdir()
    (folder / "one.py").write_text("ONE = 1\n")
    body = f"from one import ONE\n\n\ndef test_one():\n    assert ONE == {value}\n"
    (folder / "test_one.py").write_text(body)
    assert run_tests(folder, quiet=True) is passes


def test_questions_that_make_no_sense(tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    assert refusal("export", "fox", "--to", folder, "--target", "cuda") == (
        "--target: expected numba or triton or numba,triton; got 'cuda'\n"
    )
    assert refusal("export", "fox", "--to", folder, "--as", "fla") == (
        "--as: expected standalone; got 'fla'\n"
    )
    assert "cope: ScoreScan has no schedule yet" in refusal("export", "cope", "--to", folder)
    assert not (tmp_path / "out").exists()

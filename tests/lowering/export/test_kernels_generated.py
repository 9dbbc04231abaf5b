"""The kernels that are checked in are those that the compiler writes."""

from pathlib import Path

import pytest
from command_line import run

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "options"),
    [("fox", ()), ("tapa", ()), ("path", ("--dim", "128")), ("path_fox", ("--dim", "128"))],
)
def test_the_files_are_what_the_compiler_writes(
    name: str, options: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """`--update-golden` writes them anew; read the difference before you commit it."""
    kept = ROOT / "kernels_generated" / "sm_90" / name
    update = request.config.getoption("--update-golden")
    folder = kept if update else tmp_path / name
    done = run("export", name, "--to", str(folder), "--target", "triton", "--gpu", "h200", *options)
    assert done.exit_code == 0, done.output
    made = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    assert made == {path.name: path.read_text() for path in kept.iterdir() if path.is_file()}
    assert f"def {name}_fwd_tma(" in made[f"{name}.py"]

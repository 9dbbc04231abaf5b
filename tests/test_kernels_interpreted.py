"""Some tests of tests/kernels without a GPU: the same kernels in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = (
    "(sixteen_bits and (fox_pruned or tapa_linear or t5_encoder or softpick or streaming))"
    " or nothing_in_nothing_out or pack_of_nothing or rows_without_keys"
    " or (packed_sequences and rope and fewer)"
    " or (first_call and t5) or (another_shape and fox)"
)


def test_kernels_are_right_in_the_interpreter(tmp_path: Path) -> None:
    """The interpreter is switched on before triton is imported: a process of its own."""
    summary = tmp_path / "summary.json"
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "GNOMON_KERNEL_SUMMARY": str(summary),
    }
    command = [sys.executable, "-m", "pytest", "-q", "tests/kernels"]
    done = subprocess.run(
        [*command, "-k", NAMES, "-o", f"cache_dir={tmp_path}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout
    assert '"passed": ' in summary.read_text()

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from generated_modules import assert_formatted, plain_python

from gnomon.dsl import catalogue
from gnomon.dsl.errors import InputError
from gnomon.dsl.nodes import Input
from gnomon.dsl.trace import Declaration
from gnomon.lowering.emit.module import Module, Provenance
from gnomon.lowering.export.sample import sample
from gnomon.lowering.export.standalone import Standalone, print_standalone, write_standalone
from gnomon.lowering.pipelines import to_kernels, to_program

ORIGIN = Provenance("abc123", "gnomon export fox", "0.1.0", "Copyright 2026 someone.\nMIT")
QUICK = "not far and not long_sequences and not 64"


def triton(declaration: Declaration) -> Module:
    program = to_program(declaration.node)
    forms = [[to_kernels(a, packed=form) for a in program.attentions] for form in (False, True)]
    return Module(program, forms[0], forms[1], "triton", provenance=ORIGIN)


def both(declaration: Declaration) -> Standalone:
    return Standalone([triton(declaration), plain_python(declaration, provenance=ORIGIN)])


def run_tests(folder: Path, name: str, chosen: str = QUICK) -> subprocess.CompletedProcess[str]:
    """The exported tests where this package cannot be imported."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    blocked = folder / "conftest.py"
    blocked.write_text("import sys\n\nsys.modules['gnomon'] = None\n")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-k", chosen, f"test_{name}.py"],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_files_of_an_export() -> None:
    files = print_standalone(both(catalogue.fox))
    assert list(files) == [
        "fox.py",
        "fox_triton.py",
        "fox_numba.py",
        "fox_reference.py",
        "test_fox.py",
        "README.md",
    ]
    alone = print_standalone(Standalone([triton(catalogue.fox)]))
    assert list(alone) == ["fox.py", "fox_reference.py", "test_fox.py", "README.md"]
    with pytest.raises(InputError, match="modules: expected a module for each target; got none"):
        print_standalone(Standalone([]))


def test_every_python_file_has_the_licence_and_the_command() -> None:
    for name, text in print_standalone(both(catalogue.fox)).items():
        if name.endswith(".py"):
            assert text.startswith("# Copyright 2026 someone.\n# MIT\n"), name
        if not name.startswith("test"):
            assert "`gnomon export fox`" in text, name
        assert "gnomon.lowering" not in text


def test_exported_files_are_formatted_and_lint_free(tmp_path: Path) -> None:
    texts: dict[str, str] = {}
    for name in ("fox", "fire", "swin", "documents", "block_selection", "ssd", "softpick"):
        files = print_standalone(Standalone([triton(catalogue.find(name))]))
        texts |= {key: text for key, text in files.items() if key.endswith(".py")}
    texts |= {"entry.py": print_standalone(both(catalogue.fox))["fox.py"]}
    assert_formatted(texts, tmp_path)


@pytest.mark.parametrize("name", ["fox", "rope_axial", "softpick"])
def test_exported_tests_pass_without_this_package(name: str, tmp_path: Path) -> None:
    write_standalone(both(catalogue.find(name)), tmp_path)
    run = run_tests(tmp_path, name)
    assert run.returncode == 0, run.stdout
    assert "passed" in run.stdout
    assert "skipped" not in run.stdout


@pytest.mark.parametrize(
    ("right", "wrong", "fails"),
    [
        ("row_dot(do, o) - dlse", "row_dot(do, o)", "log_sum_exp"),
        ("rows = query_rows(call)", "rows = slice(0, call.T_q)", "log_sum_exp"),
        (" call.T_k - call.T_q,", " 0,", "outputs_and_gradients"),
        ("d_k = fold_heads(d_k, k, 2)", "d_k = d_k * 1.001", "one_key_head"),
        ("bos_k = cu_seqlens_k[i_s]", "bos_k = cu_seqlens_q[i_s]", "fewer_queries"),
    ],
)
def test_exported_tests_find_a_broken_kernel(
    right: str, wrong: str, fails: str, tmp_path: Path
) -> None:
    paths = write_standalone(Standalone([plain_python(catalogue.fox)]), tmp_path)
    text = paths[0].read_text()
    assert right in text
    paths[0].write_text(text.replace(right, wrong))
    run = run_tests(tmp_path, "fox", fails)
    assert run.returncode == 1, run.stdout
    assert "failed" in run.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run: there is a GPU")
def test_a_triton_export_says_why_it_skips(tmp_path: Path) -> None:
    write_standalone(Standalone([triton(catalogue.fox)]), tmp_path)
    run = run_tests(tmp_path, "fox", "gradients")
    assert run.returncode == 0, run.stdout
    assert "skipped" in run.stdout
    assert "torch finds no GPU" in (tmp_path / "test_fox.py").read_text()


def test_the_entry_goes_by_the_device(tmp_path: Path) -> None:
    write_standalone(both(catalogue.nope), tmp_path)
    script = "import torch, nope; x = torch.ones(1, 2, 1, 8); print(nope.nope(x, x, x).shape)"
    refused = "import torch, nope; x = torch.ones(1, 2, 1, 8, device='meta'); nope.nope(x, x, x)"
    assert "torch.Size([1, 2, 1, 8])" in _run(script, tmp_path).stdout
    errors = _run(refused, tmp_path).stderr
    assert "ValueError: q: expected a device of ['cuda', 'cpu']; got meta" in errors


def _run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "argument", "code"),
    [
        ("fox", "log_f", "F.logsigmoid(torch.randn(batch, time_k, heads))"),
        ("ssd", "dt", "0.2 + 0.8 * torch.rand(batch, time_k, heads)"),
        ("ssd", "a", "-0.2 - 0.8 * torch.rand(heads)"),
        ("kerple_log", "r2", "0.2 + 0.8 * torch.rand(heads)"),
        ("documents", "ids", "torch.randint(3, (batch, time_k)).sort(1).values"),
        ("deberta", "k_r", "torch.randn(heads, 24, 32) / 32**0.5"),
        ("fire", "b1", "torch.randn(8)"),
    ],
)
def test_inputs_have_values_that_suit_them(name: str, argument: str, code: str) -> None:
    node = catalogue.find(name).node
    (item,) = [x for x in node.inputs if isinstance(x, Input) and x.name == argument]
    assert sample(node, item) == code

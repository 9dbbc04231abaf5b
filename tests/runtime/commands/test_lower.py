"""`gnomon lower`: every stage, every target, what a GPU would say."""

import ast
import json

import pytest
from command_line import refusal, text
from conftest import Golden

import gnomon as gn
from gnomon.dsl.canonical import canonical
from gnomon.dsl.show import text as shown
from gnomon.lowering.emit.plain import print_reference
from gnomon.lowering.pipelines import stages, to_program
from gnomon.runtime.compile import Attention, Form

FOX = gn.catalogue.fox.node


def functions(source: str) -> list[str]:
    return [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]


def test_the_passes_in_order() -> None:
    listed = json.loads(text("lower", "fox", "--list", "--json"))
    assert [each["name"] for each in listed] == [name for name, _, _ in stages(FOX)]
    assert all(each["purpose"] in text("lower", "fox", "--list") for each in listed)


def test_after_a_pass() -> None:
    assert text("lower", "fox", "--after", "canonical") == shown(canonical(FOX))
    program = text("lower", "fox", "--after", "split_prologue")
    assert program.startswith("program fox\n")
    assert text("lower", "fox", "--after", "drop_row_constants") != program
    kernels = text("lower", "fox", "--after", "remove_dead")
    assert [line for line in kernels.splitlines() if line.startswith("kernel ")] == [
        line for line in kernels.splitlines() if line.startswith("kernel fox_")
    ]
    one = text("lower", "fox", "--after", "remove_dead", "--kernel", "fwd")
    assert kernels.startswith(one)


def test_an_unknown_pass_target_kernel_or_gpu_has_near_ones(golden: Golden) -> None:
    wrong = (
        ("--after", "canoncal"),
        ("--to", "trition"),
        ("--kernel", "bwd"),
        ("--gpu", "h2000"),
        ("--gpu", "h200", "--to", "numba"),
        ("--dtype", "fp8"),
        ("--to", "torch", "--module"),
    )
    assert "\n".join(refusal("lower", "fox", *options) for options in wrong) == golden


@pytest.mark.parametrize("target", ["triton", "numba"])
def test_kernels_alone(target: str) -> None:
    source = text("lower", "fox", "--to", target)
    kernels = [name for name in functions(source) if name.startswith("fox_")]
    assert kernels == ["fox_fwd", "fox_bwd_rows", "fox_bwd_columns"]
    one = text("lower", "fox", "--to", target, "--kernel", "fwd")
    assert [name for name in functions(one) if name.startswith("fox_")] == ["fox_fwd"]


def test_triton_is_what_is_printed_unless_something_is_named() -> None:
    assert text("lower", "fox") == text("lower", "fox", "--to", "triton")


def test_packed_kernels_read_the_offsets_of_sequences() -> None:
    assert "cu_seqlens_k" in text("lower", "fox", "--packed")
    assert "cu_seqlens_k" not in text("lower", "fox")


def test_a_module_is_what_compile_imports() -> None:
    source = text("lower", "fox", "--to", "numba", "--module", "--dtype", "bf16")
    form = Form("numba", "bf16", packed=False, positions=False, widths=(64, 64))
    assert source == Attention(FOX, None, None).source(form)


def test_tilelang_and_torch() -> None:
    source = text("lower", "fox", "--to", "tilelang", "--kernel", "fwd")
    assert "import tilelang.language as T" in source
    plain = text("lower", "fox", "--to", "torch")
    assert plain == print_reference(to_program(FOX)).rstrip("\n") + "\n"


def test_reports_of_a_gpu_stand_in_comments_beside_the_source() -> None:
    printed = text("lower", "fox", "--to", "triton", "--gpu", "h200", "--kernel", "fwd")
    ast.parse(printed)
    assert "def fox_fwd_tma(" in printed, "an H200 copies tiles by hardware"
    assert "b_k = tl.reshape(k.load(" in printed
    title, head, row = printed.strip().splitlines()[-3:]
    assert title == "# on h200 (sm_90), bf16, 64 channels"
    assert head.split()[-4:] == ["registers", "spills", "shared", "uses"]
    cells = row.split()
    assert cells[1] == "fox_fwd_tma"
    assert 64 <= int(cells[7]) <= 255
    assert cells[-2:] == ["tma", "wgmma"]


def test_choices_with_alternatives_and_costs() -> None:
    choices = json.loads(text("lower", "fox", "--explain", "--json"))
    assert any(choice["alternatives"] and choice["cost"] for choice in choices)
    table = text("lower", "fox", "--explain")
    assert all(choice["subject"] in table for choice in choices)
    assert {"flops", "special", "bytes"} <= set(table.splitlines()[0].split())


def test_what_has_no_lowering_is_refused_with_its_line() -> None:
    refused = refusal("lower", "cope")
    assert "cope: ScoreScan has no schedule yet" in refused
    assert "gn.score_scan(" in refused

"""The whole pipeline: its stages, their dump, and that passes over kernels change no result."""

from pathlib import Path

import pytest
import torch
from support import small_tensors
from tile_calls import Result, Tiles, attend

import gnomon as gn
from gnomon.dsl.nodes import Variant
from gnomon.lowering import pipelines
from gnomon.lowering.core import Program
from gnomon.lowering.pipelines import (
    ATTENTION_PASSES,
    KERNEL_PASSES,
    KernelPass,
    dump,
    lower,
    stages,
)
from gnomon.lowering.show import stage_text

NAMES = [
    *("canonical", "split_prologue", "drop_row_constants", "rescale_ratio"),
    *("schedule", "hoist_invariants", "remove_dead"),
]


def test_stages_in_their_order_with_a_reason_each() -> None:
    found = list(stages(gn.catalogue.fox.node))
    assert [stage.name for stage in found] == NAMES
    assert all(stage.purpose for stage in found)
    assert isinstance(found[0].left, Variant)
    assert isinstance(found[1].left, Program)


def test_the_last_stage_is_what_lower_gives() -> None:
    *_, last = stages(gn.catalogue.fox.node)
    (made,) = lower(gn.catalogue.fox.node).kernels
    assert last.left == made.all()


def test_passes_have_names_of_their_own() -> None:
    names = [each.name for each in (*ATTENTION_PASSES, *KERNEL_PASSES)]
    assert len(set(names)) == len(names)
    for each in (*ATTENTION_PASSES, *KERNEL_PASSES):
        assert each.run.__name__ == each.name


def test_a_dump_has_a_file_for_each_stage(tmp_path: Path) -> None:
    dump(gn.catalogue.fox.node, tmp_path / "dump")
    files = sorted((tmp_path / "dump").iterdir())
    assert [file.name for file in files] == [f"{n:02}-{name}.txt" for n, name in enumerate(NAMES)]
    for file, stage in zip(files, stages(gn.catalogue.fox.node), strict=True):
        first, _, rest = file.read_text().partition("\n\n")
        assert first == f"# {stage.name}: {stage.purpose}"
        assert rest == stage_text(stage.left) + "\n"


def test_several_attentions_have_their_kernels_one_after_another() -> None:
    differential = next(
        e.declaration
        for e in gn.catalogue.ENTRIES
        if e.declaration is not None and e.name.startswith("diff")
    )
    names = [stage.name for stage in stages(differential.node)]
    assert names == [*NAMES[:4], *NAMES[4:], *NAMES[4:]]


@pytest.mark.parametrize("passes", [(), KERNEL_PASSES[:1], KERNEL_PASSES[1:]])
@pytest.mark.parametrize("name", ["fox", "fire", "t5", "softpick", "streaming", "ssd"])
def test_passes_over_kernels_change_no_bit(
    name: str, passes: tuple[KernelPass, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    declaration = gn.catalogue.find(name)
    tensors = small_tensors(declaration, time=11, dim=8, entries=9)
    do = torch.randn(2, 11, 4, 8, generator=torch.Generator().manual_seed(1))

    def result() -> Result:
        return attend(declaration.node, tensors, do, tiles=Tiles(4, 8))

    expected = result()
    monkeypatch.setattr(pipelines, "KERNEL_PASSES", passes)
    made = result()
    assert torch.equal(made.out, expected.out)
    for input_name, gradient in expected.grads.items():
        assert torch.equal(made.grads[input_name], gradient), input_name

"""Which tiles a module gets: by site, policy and pins; what is said; what never happens."""

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tuned_records import HERE, TOOLS

import gnomon as gn
from gnomon.dsl.errors import InputError
from gnomon.dsl.show import digest
from gnomon.lowering.pipelines import Kernels, lower
from gnomon.runtime import compile as compiling
from gnomon.runtime import configs, pins
from gnomon.runtime.compile import Attention, Form
from gnomon.runtime.configs import Site, Tuning, choose, key_of, look_up
from gnomon.runtime.guard import guard
from gnomon.runtime.tuned import Pick, Table, Toolchain

FOX = gn.catalogue.fox.node
SITE = Site.of(HERE, 8192, 1)
FORM = Form("triton", "bf16", False, False, (128, 128), True, SITE)
TILES = {"BM": 32, "BN": 16, "num_warps": 2, "num_stages": 5}


def kernels(variant: Any = FOX) -> tuple[Kernels, ...]:
    return lower(variant).kernels


def pick_for(role: str, toolchain: Toolchain = TOOLS, variant: Any = FOX) -> Pick:
    key = key_of(kernels(variant)[0], role, (128, 128), "bf16", SITE, descriptors=True)
    return Pick(key, HERE, toolchain, TILES, "timed", formula=digest(variant))


def tuning(*picks: Pick, policy: Any = "nearest") -> Tuning:
    return Tuning(policy, Table(picks), HERE, TOOLS)


def chosen(with_: Tuning, variant: Any = FOX) -> dict[str, configs.Chosen]:
    return choose(
        kernels(variant),
        (128, 128),
        "bf16",
        site=SITE,
        descriptors=True,
        formula=digest(variant),
        tuning=with_,
    )


def test_each_kernel_has_tiles_of_its_own_and_a_reason() -> None:
    found = chosen(tuning(pick_for("bwd_rows")))
    assert list(found) == ["fox_fwd", "fox_bwd_rows", "fox_bwd_columns"]
    assert found["fox_bwd_rows"].tiles.numbers("triton") == TILES
    assert found["fox_bwd_rows"].reason == "timed for this kernel, shape, device and toolchain"
    default = look_up("triton", 128, 128, numbers=True)
    assert found["fox_fwd"].tiles == default.config.fwd
    assert found["fox_fwd"].reason == default.reason


def test_rows_that_lower_to_one_kernel_share_what_was_found() -> None:
    rope, plain = gn.catalogue.rope.node, gn.catalogue.nope.node
    found = chosen(tuning(pick_for("fwd", variant=rope)), plain)
    assert found["nope_fwd"].tiles.numbers("triton") == TILES


def test_forms_with_descriptors_and_pointers_are_two_kernels() -> None:
    with_, without = (
        key_of(kernels()[0], "fwd", (128, 128), "bf16", SITE, descriptors=each)
        for each in (True, False)
    )
    assert with_.kernel != without.kernel
    assert replace(with_, kernel=without.kernel) == without


def test_documents_and_selected_blocks_depend_on_data() -> None:
    found = {
        name: key_of(
            kernels(getattr(gn.catalogue, name).node)[0], "fwd", (64, 64), "bf16", SITE
        ).sparsity
        for name in ("fox", "documents", "block_selection", "sliding_window")
    }
    assert found == {
        "fox": "static",
        "documents": "data",
        "block_selection": "data",
        "sliding_window": "static",
    }


def test_strict_refuses_what_was_not_timed_here() -> None:
    whole = [pick_for(role) for role in configs.ROLES]
    found = chosen(tuning(*whole, policy="strict"))
    assert all(each.tiles.numbers("triton") == TILES for each in found.values())
    older = [replace(p, toolchain=Toolchain("3.5.1")) for p in whole]
    with pytest.raises(InputError) as error:
        chosen(tuning(*older, policy="strict"))
    text = str(error.value)
    assert text.startswith("tuning: expected tiles timed for fwd of kernel ")
    assert "got timed for this kernel, shape and device with another toolchain" in text
    assert "gnomon tune VARIANT --gpu auto" in text
    with pytest.raises(InputError, match="nothing of this kernel"):
        chosen(tuning(policy="strict"))


def test_an_unknown_policy_is_refused() -> None:
    bad: Any = "fastest"
    with pytest.raises(InputError) as error:
        gn.compile(FOX, tuning=bad)
    assert str(error.value) == "tuning: expected 'nearest', 'strict' or pins; got 'fastest'"


def test_a_module_is_printed_with_the_tiles_that_were_found() -> None:
    attention = Attention(FOX, "triton", None, tuning(pick_for("fwd")))
    text = attention.source(FORM)
    launch = text[text.index("def launch_fox_fwd") : text.index("def launch_fox_bwd_rows")]
    assert "num_stages=5" in launch
    assert "num_stages=5" not in text.replace(launch, "")
    assert attention.source(replace(FORM, site=None)) != text


def test_a_length_compiles_anew_only_where_its_tiles_differ() -> None:
    attention = Attention(FOX, "triton", None, tuning(*(pick_for(r) for r in configs.ROLES)))
    far = replace(FORM, site=Site.of(HERE, 100_000, 1))
    assert attention.source(far) == attention.source(FORM)
    assert attention.module(far) is attention.module(FORM)


def test_a_given_config_is_not_looked_up() -> None:
    own = look_up("triton", 64, 64).config
    attention = Attention(FOX, "triton", own, tuning(pick_for("fwd"), policy="strict"))
    assert "num_stages=5" not in attention.source(FORM)


def test_nothing_new_is_compiled_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attention = Attention(FOX, "triton", None, tuning(pick_for("fwd")))
    made = attention.module(replace(FORM, site=Site.of(HERE, 2048, 1)))
    monkeypatch.setattr(compiling, "is_capturing", lambda: True)
    monkeypatch.setattr(attention, "_source", lambda form: pytest.fail("it lowered in a capture"))
    assert attention.module(FORM) is made


def test_a_guess_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    site = Site.of(replace(HERE, id="a-gpu-of-this-test"), 8192, 1)
    with caplog.at_level(logging.WARNING, "gnomon"):
        for _ in range(3):
            configs.say("fox", site, chosen(tuning(pick_for("fwd"))))
        configs.say("fox", site, chosen(tuning(*(pick_for(r) for r in configs.ROLES))))
    assert [record.getMessage() for record in caplog.records] == [
        "fox on a-gpu-of-this-test at T = 8192: the tiles of bwd_rows, bwd_columns are a guess "
        "(default of the GPU, measured on an H200 for plain attention and FoX); "
        "`gnomon tune fox --gpu auto` measures"
    ]


def test_what_was_timed_is_no_guess(caplog: pytest.LogCaptureFixture) -> None:
    site = Site.of(replace(HERE, id="another-gpu-of-this-test"), 8192, 1)
    with caplog.at_level(logging.WARNING, "gnomon"):
        configs.say("fox", site, chosen(tuning(*(pick_for(r) for r in configs.ROLES))))
    assert not caplog.records


# ---- tiles that do not compile here


class OutOfResources(Exception):  # noqa: N818  Triton's name
    pass


def module_of(launch: Any) -> ModuleType:
    made = ModuleType("generated")
    made.launch_fox_fwd = launch  # type: ignore[attr-defined]
    return made


def raising(error: Exception) -> Any:
    def launch(x: int) -> int:
        raise error

    return launch


@pytest.mark.parametrize(
    "error",
    [OutOfResources("shared memory"), RuntimeError("PassManager::run failed")],
    ids=["resources", "compiler"],
)
def test_tiles_of_another_compiler_that_fail_here_give_way(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    module = module_of(raising(error))
    made: list[int] = []

    def launch(x: int) -> int:
        made.append(x)
        return 2 * x

    spare = module_of(launch)
    guard(module, lambda: spare)
    with caplog.at_level(logging.WARNING, "gnomon"):
        assert [module.launch_fox_fwd(3), module.launch_fox_fwd(4)] == [6, 8]
    assert made == [3, 4]
    assert len(caplog.records) == 1
    assert "launch_fox_fwd: its tuned tiles do not compile here" in caplog.text


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("CUDA error: illegal access")])
def test_other_errors_are_the_callers(error: Exception) -> None:
    module = module_of(raising(error))
    guard(module, lambda: pytest.fail("it was replaced"))
    with pytest.raises(type(error)):
        module.launch_fox_fwd(3)


def test_what_works_is_not_guarded_any_more() -> None:
    launch = torch.add
    module = module_of(launch)
    guard(module, lambda: pytest.fail("it was replaced"))
    assert module.launch_fox_fwd is not launch
    module.launch_fox_fwd(torch.zeros(1), torch.zeros(1))
    assert module.launch_fox_fwd is launch


def test_a_module_by_another_compilers_record_is_guarded() -> None:
    older = replace(pick_for("fwd"), toolchain=Toolchain("3.5.1"))
    attention = Attention(FOX, "triton", None, tuning(older))
    module = attention.module(FORM)
    assert hasattr(module.launch_fox_fwd, "__wrapped__")


# ---- pins


def test_pins_are_saved_and_loaded(tmp_path: Path) -> None:
    made = tuning(pick_for("fwd"), policy="pinned")
    pins.save(made, tmp_path / "pins.json")
    assert pins.load(tmp_path / "pins.json") == made


def test_pins_rule_whatever_the_machine_is() -> None:
    made = tuning(pick_for("fwd"), policy="pinned")
    other = Site.of(replace(HERE, id="nvidia-h200-nvl", processors=120), 8192, 1)
    found = choose(kernels(), (128, 128), "bf16", site=other, descriptors=True, tuning=made)
    assert found["fox_fwd"].tiles.numbers("triton") == TILES


@pytest.mark.parametrize("text", ["", "{}", '{"gnomon_pins": 1, "device": 3}'])
def test_a_file_without_pins_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pins.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"expected a file that pins\.save wrote; got pins\.json"):
        pins.load(path)


def test_only_pins_can_be_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got a look-up that is nearest"):
        pins.save(Tuning(), tmp_path / "pins.json")


RANK = """
import sys, torch.distributed as dist
from test_configs import pick_for, tuning
from gnomon.runtime import pins
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
own = tuning(pick_for("fwd" if rank == 0 else "bwd_rows"), policy="pinned")
got = pins.shared(own)
print([pick.key.role for pick in got.table.picks])
dist.destroy_process_group()
"""


def test_rank_0_decides_and_the_others_receive(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    folders = [root / ".pyroot", root / "tests", Path(__file__).parent]
    environment = {"PYTHONPATH": ":".join(map(str, folders)), "PATH": "", "HOME": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for rank in (0, 1)
    ]
    assert [p.communicate(timeout=120)[0].strip() for p in processes] == ["['fwd']", "['fwd']"]

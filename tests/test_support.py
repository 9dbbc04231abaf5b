"""The tools of the tests fail when they should."""

from pathlib import Path

import pytest
import torch
from support import assert_close, small_tensors

from gnomon.dsl import catalogue
from gnomon.dsl.nodes import (
    At,
    Builtin,
    Constant,
    Decay,
    Diagonal,
    Dot,
    Input,
    Mask,
    Outer,
    Softmax,
    Variant,
    Width,
)
from gnomon.dsl.reference import reference


def test_close_tensors_are_close_within_the_ratio() -> None:
    expected = torch.tensor([3.0, 4.0])
    assert_close("x", expected, expected + torch.tensor([0.03, 0.04]), 0.0101)
    with pytest.raises(AssertionError, match=r"relative RMS error 1\.000e-02, bound 9\.9e-03"):
        assert_close("x", expected, expected + torch.tensor([0.03, 0.04]), 0.0099)


def test_zeros_are_close_to_zeros_alone() -> None:
    assert_close("x", torch.zeros(3), torch.zeros(3), 0.0)
    with pytest.raises(AssertionError, match="relative RMS error"):
        assert_close("x", torch.zeros(3), torch.full((3,), 1e-6), 0.1)


@pytest.mark.parametrize(
    ("actual", "complaint"),
    [
        (None, "got None"),
        (torch.tensor([1.0]), "expected torch.Size"),
        (torch.tensor([1.0, torch.nan]), "1 of 2 are NaN"),
        (torch.tensor([1.0, torch.inf]), "infinities differ"),
        (torch.tensor([1.0, 1e9]), "infinities differ"),
    ],
)
def test_what_is_never_close(actual: torch.Tensor | None, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        assert_close("lse", torch.tensor([1.0, -torch.inf]), actual, 1.0)


def test_equal_infinities_are_close() -> None:
    assert_close("lse", torch.tensor([1.0, -torch.inf]), torch.tensor([1.0, -torch.inf]), 0.0)


D = Width.of("d")
Q = Input("q", "row", "Head", (D,), "real")
K = Input("k", "column", "KVHead", (D,), "real")


def variant(*inputs: Input, logit: Dot | Decay) -> Variant:
    return Variant("v", "", (Q, K, *inputs), (), Softmax(logit, None, Mask("causal", (False,))))


def path() -> Variant:
    w = Input("w", "token", "KVHead", (D,), "real")
    beta = Input("beta", "token", "KVHead", (), "real")
    log_g = Input("log_g", "token", "Head", (D,), "real")
    table = Input("table", "constant", None, (Width.of("table.0"), D), "real")
    transport = Outer(w, w, beta)
    return variant(w, beta, log_g, table, logit=Dot(Dot(Q, table), Diagonal(log_g, D), transport))


def test_tensors_have_the_shapes_and_dtypes_of_the_declaration() -> None:
    made = small_tensors(path(), dtype=torch.bfloat16, time=9, queries=5, value_dim=24, entries=7)
    assert {name: (tuple(x.shape), x.dtype) for name, x in made.items()} == {
        "q": ((2, 5, 4, 16), torch.bfloat16),
        "k": ((2, 9, 2, 16), torch.bfloat16),
        "v": ((2, 9, 2, 24), torch.bfloat16),
        "w": ((2, 9, 2, 16), torch.bfloat16),
        "beta": ((2, 9, 2), torch.float32),
        "log_g": ((2, 9, 4, 16), torch.float32),
        "table": ((7, 16), torch.float32),
    }


def test_values_suit_the_roles() -> None:
    made = small_tensors(path(), requires_grad=True)
    assert_close("w", torch.ones(2, 20, 2), made["w"].norm(dim=-1), 1e-6)
    assert made["beta"].min() >= 0
    assert made["beta"].max() <= 2
    assert made["log_g"].max() < 0
    assert all(x.requires_grad and x.is_leaf for x in made.values())


def test_the_seed_decides() -> None:
    assert torch.equal(small_tensors(path())["q"], small_tensors(path())["q"])
    assert not torch.equal(small_tensors(path())["q"], small_tensors(path(), seed=1)["q"])


def test_integers_are_documents_and_blocks() -> None:
    ids = Input("ids", "token", None, (), "int")
    blocks = Input("blocks", "row", "KVHead", (Width.of("blocks.0"),), "int")
    mask = Mask("and", (Mask("same_document", (ids,)), Mask("selected_blocks", (blocks, 8))))
    node = Variant("v", "", (Q, K, ids, blocks), (), Softmax(Dot(Q, K), None, mask))
    made = small_tensors(node)
    assert (made["ids"].diff(dim=1) >= 0).all()
    assert made["blocks"].shape == (2, 20, 2, 2)
    assert made["blocks"].max() == 2  # 20 tokens are blocks 0, 1, 2 of 8


def test_coordinates_are_a_grid() -> None:
    place = At(Builtin("position", "y"), "row"), At(Builtin("position", "x"), "column")
    made = small_tensors(variant(logit=Dot(*place)), time=6)
    assert made["positions"]["y"].tolist() == [[0, 0, 0, 1, 1, 1]] * 2
    assert made["positions"]["x"].tolist() == [[0, 1, 2, 0, 1, 2]] * 2


def test_a_golden_text_must_be_equal(
    golden: object, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    make = type(golden).at  # type: ignore[attr-defined]
    assert make(tmp_path / "deep/x.txt", True) == "one\ntwo"
    assert (tmp_path / "deep/x.txt").read_text() == "one\ntwo\n"
    stored = make(tmp_path / "deep/x.txt", False)
    assert stored == "one\ntwo"
    assert stored == "one\ntwo\n"
    assert stored != "one"
    assert stored.code.path.name == "x.py"


def test_a_missing_golden_file_says_what_to_do(golden: object, tmp_path: Path) -> None:
    missing = type(golden).at(tmp_path / "x.txt", False)  # type: ignore[attr-defined]
    with pytest.raises(pytest.fail.Exception, match="run with --update-golden"):
        _ = missing == "text"


def test_golden_files_are_named_after_the_test(golden: object) -> None:
    path: Path = golden.path  # type: ignore[attr-defined]
    assert path.parts[-3:] == (
        "golden",
        "test_support",
        "test_golden_files_are_named_after_the_test.txt",
    )


@pytest.mark.parametrize(
    "maker",
    [
        "torch.empty(3)",
        "torch.empty_like(x)",
        "torch.empty_strided((3,), (1,))",
        "x.new_empty(3)",
        "torch.empty(3, requires_grad=True)",
    ],
)
def test_memory_that_gnomon_has_not_written_is_poisoned(maker: str) -> None:
    scope = {"__name__": "gnomon.runtime.anything", "torch": torch, "x": torch.ones(3)}
    assert eval(maker, scope).isnan().all()


def test_libraries_keep_to_one_thread() -> None:
    assert torch.get_num_threads() == 1


def test_integers_cannot_be_poisoned_but_work() -> None:
    scope = {"__name__": "gnomon.runtime.anything", "torch": torch}
    assert eval("torch.empty(3, dtype=torch.int32)", scope).dtype == torch.int32


def test_constants_take_no_input() -> None:
    assert set(small_tensors(variant(logit=Decay(Constant(-1.0))))) == {"q", "k", "v"}


def test_every_row_of_the_catalogue_is_finite_on_small_tensors() -> None:
    rows = [entry.declaration for entry in catalogue.ENTRIES if entry.declaration is not None]
    assert len(rows) >= 72
    odd = [row.name for row in rows if not reference(row, **small_tensors(row)).isfinite().all()]
    assert odd == []

"""The catalogue: 80 rows, fixed names, the buckets of T5, and what the grammar refuses."""

import json
import math
import pickle
from pathlib import Path

import pytest
import torch
from support import small_tensors

import gnomon as gn
from gnomon.dsl import catalogue
from gnomon.dsl.catalogue.bias import t5_edges
from gnomon.dsl.reference import reference

REFUSED = {
    6: "values are weighted, not modulated",
    20: "heads do not meet",
    21: "one pair at a time",
    22: "heads do not meet",
    64: "one pass over the keys",
    73: "no sum over queries",
    74: "values come from outside",
    75: "values are weighted, not modulated",
}
FIXED = {
    "path": 47,
    "path_fox": 48,
    "path_fox_fla": 48,
    "fox": 16,
    "tapa": 56,
    "tapa_linear": 57,
    "alibi": 11,
    "rope": 24,
    "rope_pairs": 23,
}


def test_every_row_stands_in_the_catalogue_once_or_in_several_forms() -> None:
    rows = [entry.row for entry in catalogue.ENTRIES]
    assert rows == sorted(rows)
    assert set(rows) == set(range(1, 81))
    declared = {entry.row for entry in catalogue.ENTRIES if entry.declaration is not None}
    assert declared == set(range(1, 81)) - set(REFUSED)


def test_the_fixed_names_are_those_of_their_rows() -> None:
    rows = {entry.name: entry.row for entry in catalogue.ENTRIES}
    assert {name: rows[name] for name in FIXED} == FIXED


def test_names_are_unique_and_are_attributes() -> None:
    names = [entry.name for entry in catalogue.ENTRIES]
    assert len(names) == len(set(names))
    for entry in catalogue.ENTRIES:
        if entry.declaration is not None:
            assert getattr(gn.catalogue, entry.name) is entry.declaration
            assert catalogue.find(entry.name) is entry.declaration
            assert entry.name in catalogue.__all__


@pytest.mark.parametrize("row", REFUSED)
def test_a_refused_row_names_its_law_and_its_line(row: int) -> None:
    (entry,) = (entry for entry in catalogue.ENTRIES if entry.row == row)
    assert entry.declaration is None
    assert entry.refusal is not None
    assert entry.refusal.law == REFUSED[row]
    assert (entry.reason or "").startswith(f"law '{REFUSED[row]}': ")
    assert Path(entry.refusal.where.file).name == "refused.py"
    assert entry.refusal.where.function == entry.name
    assert str(pickle.loads(pickle.dumps(entry.refusal))) == str(entry.refusal)


def test_every_entry_says_formula_family_and_source() -> None:
    for entry in catalogue.ENTRIES:
        assert len(entry.formula) > 10, entry.name
        assert "\n" not in entry.formula, entry.name
        assert entry.family, entry.name
        assert entry.source, entry.name


def test_an_entry_can_be_written_as_json() -> None:
    (entry,) = (entry for entry in catalogue.ENTRIES if entry.name == "path_fox")
    assert json.loads(json.dumps([entry.inputs, entry.defaults, entry.reason])) == [
        {
            "w": "[batch, time_k, KVHead, d]",
            "beta": "[batch, time_k, KVHead]",
            "log_f": "[batch, time_k, Head]",
        },
        {},
        None,
    ]
    (entry,) = (entry for entry in catalogue.ENTRIES if entry.name == "tapa")
    assert entry.defaults == {"alpha": 0.1, "theta": 0.5}
    assert entry.formula.startswith("q_A . k_A / sqrt(theta d) * cos(2 pi (i - j)^alpha")


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    with pytest.raises(gn.InputError, match=r"did you mean path_fox"):
        catalogue.find("pathfox")
    with pytest.raises(gn.InputError, match=r"law 'one pass over the keys'"):
        catalogue.find("entmax")


def test_a_family_takes_no_legal_program_as_refused() -> None:
    def legal(q, k):  # type: ignore[no-untyped-def]
        """softmax( q . k )"""
        return gn.softmax(gn.dot(q, k), mask=gn.causal())

    with pytest.raises(TypeError, match="legal is a sentence of the grammar"):
        catalogue.Family("none").refused(1, "nobody")(legal)


def published_bucket(distance: torch.Tensor, buckets: int, furthest: int) -> torch.Tensor:
    """The bucket of a distance in float32, step by step as in the published code of T5."""
    exact = buckets // 2
    log = torch.log(distance.float() / exact) / math.log(furthest / exact)
    far = exact + (log * (buckets - exact)).to(torch.long)
    return torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


@pytest.mark.parametrize(
    ("buckets", "furthest"),
    [(32, 128), (16, 128), (8, 64), (32, 256), (64, 512), (10, 160), (20, 320)],
)
def test_the_buckets_of_t5_have_the_published_edges(buckets: int, furthest: int) -> None:
    """At distances such as 16, 32, 64 the float32 logarithm lies on an edge."""
    distance = torch.arange(2 * furthest)
    edges = torch.tensor(t5_edges(buckets, furthest))
    mine = distance.clamp(max=buckets // 2) + (distance[:, None] >= edges).sum(1)
    assert torch.equal(mine, published_bucket(distance, buckets, furthest))


@pytest.mark.parametrize("name", ["t5", "t5_encoder"])
def test_t5_reads_the_table_at_the_published_bucket(name: str) -> None:
    declaration = catalogue.find(name)
    tensors = small_tensors(
        declaration, batch=1, time=200, heads=1, kv_heads=1, dtype=torch.float64, entries=32
    )
    tensors["q"] = torch.zeros_like(tensors["q"])
    away = torch.arange(200)[:, None] - torch.arange(200)
    bucket = published_bucket(away.clamp(min=0), 32, 128)
    if name == "t5_encoder":
        bucket = published_bucket(away.abs(), 16, 128) + torch.where(away < 0, 16, 0)
    logits = tensors["bias"][0][bucket]
    if name == "t5":
        logits = logits.masked_fill(away < 0, -torch.inf)
    expected = logits.softmax(1) @ tensors["v"][0, :, 0]
    torch.testing.assert_close(
        reference(declaration, **tensors)[0, :, 0], expected, rtol=1e-12, atol=1e-12
    )

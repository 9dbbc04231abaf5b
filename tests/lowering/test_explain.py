"""Each choice of the compiler is told with its reason, its alternatives and what they cost."""

import dataclasses
import json

import pytest

import gnomon as gn
from gnomon.dsl.errors import UnsupportedError
from gnomon.lowering.config import Config, Tiles
from gnomon.lowering.cost import Cost
from gnomon.lowering.explain import Choice, explain, text


def choices(name: str) -> dict[str, Choice]:
    return {choice.subject: choice for choice in explain(gn.catalogue.find(name).node)}


def saved(choice: Choice) -> Cost:
    """What the first alternative costs more."""
    (other, *_) = choice.alternatives
    assert choice.cost is not None
    assert other.cost is not None
    return other.cost + choice.cost.times(-1)


def test_the_row_term_of_fox_saves_an_operation_a_pair() -> None:
    found = choices("fox")["row terms"]
    assert found.chosen == "log_f_sum_q[i] left the pairs"
    assert saved(found).simple >= 1


def test_a_variant_without_row_terms_says_so() -> None:
    found = choices("nope")["row terms"]
    assert (found.chosen, found.alternatives) == ("none", ())


def test_streams_are_passed_through_or_mapped_once() -> None:
    found = choices("fire")
    assert found["stream q"].chosen == "passed through untouched"
    assert found["stream scale"].chosen == "a number of the launch"
    mapped = found["stream c_term_q"]
    assert mapped.chosen == "mapped once for each token, before the kernel"
    assert saved(mapped).simple > 0
    assert choices("fox")["stream log_f_sum_k"].chosen.startswith("summed along the sequence")


def test_a_rotated_query_is_mapped_before_the_kernel() -> None:
    found = choices("rope")["stream q"]
    assert found.chosen == "mapped once for each token, before the kernel"
    assert found.alternatives[0].what == "formed for every tile of queries"


def test_prefix_sums_are_read_relative_to_a_tile() -> None:
    found = choices("fox")["prefix sums"]
    assert "relative to the first row of the query tile" in found.chosen
    assert "error" in found.alternatives[0].note
    assert "prefix sums" not in choices("rope")


def test_ratios_with_and_without_an_exponent() -> None:
    assert "divided by exp(max" in choices("softpick")["ratio"].chosen
    assert choices("softpick")["ratio"].alternatives[0].note == "fp32 overflows beyond x = 88"
    plain = choices("retention")["ratio"]
    assert (plain.chosen, plain.alternatives) == ("sums as they are", ())


def test_masks_say_their_loops() -> None:
    causal = choices("nope")["mask"]
    assert "2 loops over keys, edge tiles apart" in causal.chosen
    assert saved(causal).simple > 0
    documents = choices("documents")["mask"]
    assert documents.chosen.endswith("every tile that may have pairs, with masks")


def test_gradients_say_where_they_are_collected() -> None:
    found = choices("fire")
    assert found["gradient of q"].chosen == "by products of tiles in fire_bwd_rows"
    assert found["gradient of k"].chosen == "by products of tiles in fire_bwd_columns"
    assert "partial sums for each channel" in found["gradient of w1"].chosen
    assert found["gradient of w1"].alternatives[0].what == "atomic additions"
    assert "row term" in found["gradient of b2"].why
    assert "scattered into entries" in choices("t5")["gradient of bias"].chosen
    fox = choices("fox")
    assert fox["gradient of log_f_sum_k"].chosen == "as one sum for each line in fox_bwd_columns"
    assert fox["gradient of log_f_sum_q"].chosen == "none in a kernel"


def test_tiles_as_given_with_their_neighbours() -> None:
    config = Config(Tiles(128, 32), Tiles(64, 64), Tiles(32, 128))
    found = {c.subject: c for c in explain(gn.catalogue.fox.node, config, sizes={"D0": 128})}
    forward = found["tiles of fox_fwd"]
    assert forward.chosen == "128 queries by 32 keys"
    assert [a.what for a in forward.alternatives] == ["256 by 32", "128 by 64", "64 by 32"]
    assert found["tiles of fox_bwd_columns"].chosen == "32 queries by 128 keys"


def test_several_attentions_are_told_apart() -> None:
    diff = next(e for e in gn.catalogue.ENTRIES if e.name.startswith("diff"))
    assert diff.declaration is not None
    subjects = [choice.subject for choice in explain(diff.declaration.node)]
    assert {subject.partition(":")[0] for subject in subjects} == {
        f"{diff.declaration.name}_1",
        f"{diff.declaration.name}_2",
    }


def test_every_row_that_lowers_is_explained() -> None:
    told = 0
    for entry in gn.catalogue.ENTRIES:
        if entry.declaration is not None:
            try:
                found = explain(entry.declaration.node)
            except UnsupportedError:
                continue
            told += 1
            assert all(choice.chosen and choice.why for choice in found)
            json.dumps([dataclasses.asdict(choice) for choice in found])
    assert told >= 45


def test_the_text_has_reasons_and_alternatives() -> None:
    lines = text(explain(gn.catalogue.fox.node)).splitlines()
    start = lines.index(next(line for line in lines if line.startswith("row terms")))
    assert lines[start + 1].startswith("    because a softmax does not see")
    assert lines[start + 2].startswith("    or kept in the logit  [")


def test_what_does_not_lower_is_not_explained() -> None:
    with pytest.raises(UnsupportedError):
        explain(gn.catalogue.cope.node)

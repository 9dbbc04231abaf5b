"""The sizes of a call, found from shapes alone."""

import pytest

import gnomon as gn
from gnomon.dsl import catalogue
from gnomon.dsl.signature import (
    check_call,
    coordinates,
    needs_ordered_positions,
    summed_inputs,
)

QKV = {"q": (2, 3, 4, 8), "k": (2, 5, 2, 8), "v": (2, 5, 2, 6)}


def test_every_axis_has_a_size_and_each_table_its_own() -> None:
    shapes = {**QKV, "bias": (4, 13, 9)}
    assert check_call(catalogue.find("swin").node, shapes) == {
        "batch": 2,
        "time_q": 3,
        "time_k": 5,
        "Head": 4,
        "KVHead": 2,
        "d": 8,
        "d_v": 6,
        "bias.0": 13,
        "bias.1": 9,
    }


def test_axes_of_one_name_have_one_size() -> None:
    shapes = {**QKV, "w_q": (4, 6, 8), "w_k": (2, 7, 8)}
    with pytest.raises(gn.InputError, match=r"w_k: expected the shape \[KVHead 2, Model 6, d 8\]"):
        check_call(catalogue.find("sinusoidal").node, shapes)


def test_a_size_may_be_learned_from_a_part_of_it() -> None:
    @gn.variant
    def planes(q, k, x: gn.Param[gn.Plane], y: gn.Param[gn.Repeat]):  # type: ignore[no-untyped-def]
        """q . k + sum x + sum y"""
        bias = gn.channel_sum(x) + gn.channel_sum(y)
        return gn.softmax(gn.dot(q, k) + bias, mask=gn.causal())

    assert check_call(planes.node, {**QKV, "x": (4,), "y": (3,)})["Repeat"] == 3
    with pytest.raises(gn.InputError, match=r"x: expected the shape \[1/2 d 4\]; got \[8\]"):
        check_call(planes.node, {**QKV, "x": (8,), "y": (3,)})


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("path_fox", {"beta", "log_f"}),
        ("path_normalized", {"beta"}),  # w may have 16 bits: |w|^2 stands in the scale, in fp32
        ("delta_product", {"beta"}),
        ("wall", {"log_g"}),
        ("ssd", {"dt"}),
        ("carope", {"f"}),
        ("grape_m_contextual", {"g"}),
        ("mla", set()),
        ("rwkv7_linear", {"log_d"}),
    ],
)
def test_what_is_summed_or_steps_a_transport_stays_wide(name: str, names: set[str]) -> None:
    assert summed_inputs(catalogue.find(name).node) == names


def test_only_real_powers_of_distances_ask_for_ordered_positions() -> None:
    asking = {
        entry.name
        for entry in catalogue.ENTRIES
        if entry.declaration is not None and needs_ordered_positions(entry.declaration.node)
    }
    assert asking == {
        "tapa",
        "tapa_no_turns",
        "tapa_linear",
        "tapa_general",
        "kerple_log",
        "kerple_power",
        "fire",
    }


def test_the_coordinates_that_a_variant_reads() -> None:
    assert set(coordinates(catalogue.find("m_rope").node)) == {"t", "y", "x"}
    assert coordinates(catalogue.find("retention").node) == (None,)
    assert coordinates(catalogue.find("grape_m").node) == (None,)
    assert coordinates(catalogue.find("fox").node) == ()

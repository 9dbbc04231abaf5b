"""The oracle of each variant against its formula, written by hand for one head."""

from dataclasses import dataclass, field
from typing import Any

import naive
import numpy as np
import pytest
import torch
from naive.base import Array, everything, omega, turned
from torch import Tensor

from gnomon.dsl import catalogue
from gnomon.dsl.reference import reference

BATCH, TIME, HEADS, KV_HEADS, DIM, VALUE = 2, 11, 4, 2, 8, 6
SIZES = {"b": BATCH, "t": TIME, "h": HEADS, "g": KV_HEADS, "d": DIM, "v": VALUE, "p": DIM // 2}
TOLERANCE = 1e-11


@dataclass
class Case:
    """A variant, its numbers, and the axes of its inputs: letters of SIZES, or a number."""

    name: str
    inputs: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("nope"),
    Case("sinusoidal", {"w_q": "h6d", "w_k": "g6d"}),
    Case("learned_absolute", {"table": "t5", "w_q": "h5d", "w_k": "g5d"}),
    Case("delta_product_linear", {"w": "btg3d", "beta": "btg3"}),
    Case("alibi_learned", {"slope": "h"}),
    Case("grape_a_query", {"u": "hd", "omega": "h"}),
    Case("p_rope"),
    Case("rope_interpolated"),
    Case("rope_dynamic_ntk", {}, {"trained": 5}),
    Case("fope", {"mix_cos": "pp", "mix_sin": "pp"}),
    Case("mamba3_angles", {"dt": "btg", "theta": "btgp"}),
    Case("repo", {"z": "btg"}),
    Case("llama4_temperature", {}, {"floor": 3}),
    Case("fox_pruned", {"log_f": "bth"}),
    Case("path", {"w": "btgd", "beta": "btg"}),
    Case("path_normalized", {"w": "btgd", "beta": "btg"}),
    Case("path_fox", {"w": "btgd", "beta": "btg", "log_f": "bth"}),
    Case("path_fox_fla", {"w": "btgd", "beta": "btg", "log_f": "bth"}),
    Case("gated_delta", {"beta": "btg", "log_a": "bth"}),
    Case("delta_product", {"w": "btg3d", "beta": "btg3"}),
    Case("ordered_plane_rotations", {"w": "btg2d"}),
    Case("iplr", {"w": "btgd", "u": "btgd", "beta": "btg"}),
    Case("dplr", {"log_d": "btgd", "w": "btgd", "u": "btgd"}),
    Case("kda", {"log_alpha": "btgd", "beta": "btg"}),
    Case("ordered_rotations", {"p": "btg244"}),
    Case("delta_net", {"beta": "btg"}),
    Case("kda_linear", {"log_alpha": "btgd", "beta": "btg"}),
    Case("rwkv7_linear", {"log_d": "btgd", "kappa": "btgd", "a": "btgd"}),
    Case("gla", {"log_g": "btgd"}),
    Case("ssd", {"dt": "bth", "a": "h"}),
    Case("retention"),
    Case("tapa"),
    Case("tapa_no_turns"),
    Case("tapa_linear"),
    Case("tapa_general", {"m": "hdd", "n": "hdd"}),
    Case("fox", {"log_f": "bth"}),
    Case("cable", {"x": "bth"}),
    Case("alibi"),
    Case("kerple_log", {"r1": "h", "r2": "h"}),
    Case("kerple_power", {"r1": "h", "r2": "h"}),
    Case("sandwich", {"omega": "5"}),
    Case("fire", {"w1": "5", "b1": "5", "w2": "h5", "b2": "h", "c": "", "threshold": ""}),
    Case("grape_a", {"u": "gd", "omega": "h"}),
    Case("grape_ap", {"p": "btg4", "slope": "h"}),
    Case("t5", {"bias": "h8"}, {"buckets": 8, "max_distance": 12}),
    Case("t5_encoder", {"bias": "h8"}, {"buckets": 8, "max_distance": 12}),
    Case("tupe", {"p_q": "htd", "p_k": "gtd", "bias": "h8"}, {"buckets": 8, "max_distance": 12}),
    Case("shaw_key", {"a": "7d"}, {"clip": 3}),
    Case("transformer_xl", {"u": "hd", "v_r": "hd", "w_r": "h6d"}),
    Case("deberta", {"k_r": "h8d", "q_r": "g8d"}, {"span": 4}),
    Case("rope"),
    Case("rope_pairs"),
    Case("rope_partial"),
    Case("rope_ntk"),
    Case("yarn"),
    Case("yarn_by_plane"),
    Case("longrope", {"stretch": "p"}),
    Case("rerope", {}, {"window": 3, "leak": 0.25}),
    Case("self_extend", {}, {"window": 4, "group": 3}),
    Case("xpos"),
    Case("hope_hyperbolic", {"damping": ""}),
    Case("pope", {"delta": "hd"}),
    Case("grape_m", {"a": "gd", "b": "gd", "omega": "g"}),
    Case("carope", {"f": "btg"}),
    Case("selective_rope", {"step": "btgp"}),
    Case("grape_m_contextual", {"g": "btg"}),
    Case("mla", {"q_r": "bth4", "k_r": "bt4"}),
    Case("wall", {"log_g": "bthd"}),
    Case("soft_cap", {}, {"cap": 2.0}),
    Case("softmax_off_by_one"),
    Case("learned_sink", {"sink": "h"}),
    Case("sigmoid_attention", {"bias": "h"}),
    Case("softpick"),
    Case("scalable_softmax", {"s": "h"}),
    Case("log_n_scaling", {}, {"trained": 4}),
    Case("stick_breaking"),
    Case("geometric"),
    Case("cope", {"e": "4d"}, {"furthest": 4}),
    Case("differential", {"weight": "v", "lam": ""}),
    Case("gated", {"gate": "bthv"}),
    Case("sliding_window", {}, {"size": 3}),
    Case("streaming", {}, {"size": 3, "sinks": 2}),
    Case("prefix_lm", {}, {"count": 4}),
    Case("documents", {"ids": "bt"}),
    Case("block_selection", {"blocks": "btg2"}, {"size": 3}),
]

LOGS = {"log_f", "log_a", "log_d", "log_alpha", "log_g"}
UNITS = {"beta", "f", "step", "dt", "r1", "r2", "c", "stretch", "g", "damping"}
WHOLE = {"ids", "blocks"}


def draw(name: str, letters: str, random: torch.Generator) -> Tensor:
    """An input in the range that its role asks for."""
    shape = [SIZES[x] if x in SIZES else int(x) for x in letters]
    if name in WHOLE:
        return torch.randint(0, 4, shape, generator=random)
    x = torch.randn(shape, generator=random, dtype=torch.float64)
    if name in LOGS:
        return torch.nn.functional.logsigmoid(x)
    if name in UNITS:
        return torch.sigmoid(x) + (1.0 if name in ("stretch", "damping") else 0.0)
    return x * {"delta": 3.0, "threshold": 6.0, "w": 0.3}.get(name, 0.7)


def one_head(tensor: Tensor, letters: str, batch: int, head: int) -> Any:
    """What one query head of one sequence sees of an input; a KV head serves a group."""
    group = HEADS // KV_HEADS
    at = {"b": batch, "h": head, "g": head // group}
    found = tensor[tuple(at.get(letter, slice(None)) for letter in letters)].numpy()
    return found if found.ndim else found.item()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_oracle_gives_the_published_formula(case: Case) -> None:
    random = torch.Generator().manual_seed(len(case.name))
    letters = {"q": "bthd", "k": "btgd", "v": "btgv", **case.inputs}
    tensors: dict[str, Any] = {n: draw(n, axes, random) for n, axes in letters.items()}
    formula = naive.formula(case.name)
    q, k, v = (tensors.pop(name) for name in "qkv")
    found = reference(catalogue.find(case.name).bind(**case.numbers), q, k, v, **tensors)
    tensors |= {"q": q, "k": k, "v": v}
    assert found.dtype == torch.float64
    assert found.shape == (BATCH, TIME, HEADS, VALUE)
    for batch in range(BATCH):
        for head in range(HEADS):
            own = {n: one_head(x, letters[n], batch, head) for n, x in tensors.items()}
            expected = formula(**own, h=head, H=HEADS)
            np.testing.assert_allclose(
                found[batch, :, head].numpy(), expected, rtol=TOLERANCE, atol=TOLERANCE
            )


def test_a_two_dimensional_table_is_read_at_the_distances_of_both_coordinates() -> None:
    """Row 9: a window of 3 x 4 patches, the pair (2, 3) to (0, 1) reads [2 + 3, 2 + 3]."""
    random = torch.Generator().manual_seed(0)
    y, x = torch.arange(12) // 4, torch.arange(12) % 4
    q, k, v = (torch.randn(1, 12, HEADS, DIM, generator=random).double() for _ in range(3))
    bias = draw("bias", "h77", random)
    where = {"y": y[None], "x": x[None]}
    found = reference(catalogue.find("swin").bind(side=4), q, k, v, bias=bias, positions=where)
    for i in (0, 7, 11):
        logits = torch.stack([bias[:, y[i] - y[j] + 3, x[i] - x[j] + 3] for j in range(12)])
        logits = logits + torch.einsum("hd,jhd->jh", q[0, i], k[0]) / DIM**0.5
        expected = torch.einsum("jh,jhv->hv", logits.softmax(0), v[0])
        torch.testing.assert_close(found[0, i], expected, rtol=1e-12, atol=1e-12)


def test_each_plane_of_m_rope_turns_with_its_own_coordinate() -> None:
    random = torch.Generator().manual_seed(1)
    q, k, v = (draw(n, f"bt{h}d", random) for n, h in (("q", "h"), ("k", "g"), ("v", "g")))
    places = {c: torch.randint(0, 9, (BATCH, TIME), generator=random).sort(1)[0] for c in "tyx"}
    variant = catalogue.find("m_rope").bind(sections=(1, 3), time_scale=0.5)
    found = reference(variant, q, k, v, positions=places)
    owner = [places["t"] * 0.5, places["y"], places["y"], places["x"]]
    for batch in range(BATCH):
        angle = np.stack([p[batch].numpy() for p in owner], 1) * omega(DIM)
        for head in range(HEADS):
            own = [x[batch, :, at].numpy() for x, at in ((q, head), (k, head // 2), (v, head // 2))]
            expected = turned(own[0], own[1], own[2], angle)
            np.testing.assert_allclose(found[batch, :, head].numpy(), expected, rtol=1e-11)


@pytest.mark.parametrize("name", ["comrope", "liere"])
def test_the_matrix_exponential_of_a_place_acts_on_its_token(name: str) -> None:
    """In blocks of 2 the turns commute, so that ComRoPE depends on x_i - x_j alone."""
    random = torch.Generator().manual_seed(2)
    q, k, v = (draw(n, "btgd", random) for n in "qkv")
    p_y, p_x = (draw("p", "g422" if name == "comrope" else "gdd", random) for _ in range(2))
    places = {c: torch.randint(0, 5, (BATCH, TIME), generator=random) for c in "yx"}
    found = reference(catalogue.find(name), q, k, v, p_y=p_y, p_x=p_x, positions=places)
    for batch, head in ((0, 0), (1, 1)):
        skews = [skew(p[head].numpy()) for p in (p_y, p_x)]
        place = np.stack([places[c][batch].numpy() for c in "yx"], 1)
        own = tuple(t[batch, :, head].numpy() for t in (q, k, v))
        formula = naive.formula(name)
        expected = formula(*own, place, skews)
        np.testing.assert_allclose(found[batch, :, head].numpy(), expected, rtol=1e-10)


def skew(p: Array) -> Array:
    """P - P^T, blocks laid out on the diagonal."""
    if p.ndim == 2:
        return np.asarray(p - p.T)
    size = p.shape[1]
    whole = np.zeros((len(p) * size,) * 2)
    for c, block in enumerate(p):
        whole[c * size : (c + 1) * size, c * size : (c + 1) * size] = block - block.T
    return whole


def test_half_of_the_planes_of_axial_rope_turn_with_y_and_half_with_x() -> None:
    random = torch.Generator().manual_seed(3)
    q, k, v = (draw(n, "btgd", random) for n in "qkv")
    places = {c: torch.randint(0, 5, (BATCH, TIME), generator=random) for c in "yx"}
    found = reference(catalogue.find("rope_axial"), q, k, v, positions=places)
    w = omega(DIM, 100.0)
    y, x = (places[c][1].numpy()[:, None] for c in "yx")
    own = [t[1, :, 0].numpy() for t in (q, k, v)]
    angle = np.concatenate([y * w[:2], x * w[2:]], 1)
    expected = turned(own[0], own[1], own[2], angle, everything)
    np.testing.assert_allclose(found[1, :, 0].numpy(), expected, rtol=1e-11)


def test_every_declared_row_has_a_formula_of_its_own() -> None:
    checked = {case.name for case in CASES} | {"swin", "m_rope", "comrope", "liere", "rope_axial"}
    declared = {entry.name for entry in catalogue.ENTRIES if entry.declaration is not None}
    assert declared == checked

"""The published variants, one short file a family; each is `gnomon.catalogue.NAME`.

`ENTRIES` has a line for every declaration and every refused row, in the order of the rows.
"""

import difflib
from typing import TYPE_CHECKING

from gnomon.dsl.catalogue.bias import (
    BIAS,
    alibi,
    alibi_learned,
    deberta,
    fire,
    kerple_log,
    kerple_power,
    sandwich,
    shaw_key,
    swin,
    t5,
    t5_encoder,
    transformer_xl,
)
from gnomon.dsl.catalogue.entry import Entry, Family
from gnomon.dsl.catalogue.gates import (
    GATES,
    cable,
    fox,
    fox_pruned,
    grape_a,
    grape_a_query,
    grape_ap,
)
from gnomon.dsl.catalogue.linear import (
    LINEAR,
    delta_net,
    delta_product_linear,
    gla,
    kda_linear,
    retention,
    rwkv7_linear,
    ssd,
)
from gnomon.dsl.catalogue.maps import (
    MAPS,
    carope,
    comrope,
    fope,
    grape_m,
    grape_m_contextual,
    hope_hyperbolic,
    liere,
    mamba3_angles,
    mla,
    pope,
    repo,
    selective_rope,
    wall,
    xpos,
)
from gnomon.dsl.catalogue.masks import (
    MASKS,
    block_selection,
    documents,
    prefix_lm,
    sliding_window,
    streaming,
)
from gnomon.dsl.catalogue.normalisers import (
    NORMALISERS,
    cope,
    differential,
    gated,
    geometric,
    learned_sink,
    llama4_temperature,
    log_n_scaling,
    scalable_softmax,
    sigmoid_attention,
    soft_cap,
    softmax_off_by_one,
    softpick,
    stick_breaking,
)
from gnomon.dsl.catalogue.phase import (
    PHASE,
    tapa,
    tapa_general,
    tapa_linear,
    tapa_no_turns,
)
from gnomon.dsl.catalogue.positions import (
    POSITIONS,
    learned_absolute,
    nope,
    sinusoidal,
    tupe,
)
from gnomon.dsl.catalogue.products import (
    PRODUCTS,
    delta_product,
    dplr,
    gated_delta,
    iplr,
    kda,
    ordered_plane_rotations,
    ordered_rotations,
    path,
    path_fox,
    path_fox_fla,
    path_normalized,
)
from gnomon.dsl.catalogue.refused import REFUSED
from gnomon.dsl.catalogue.rotary import (
    ROTARY,
    longrope,
    m_rope,
    p_rope,
    rerope,
    rope,
    rope_axial,
    rope_dynamic_ntk,
    rope_interpolated,
    rope_ntk,
    rope_pairs,
    rope_partial,
    self_extend,
    yarn,
    yarn_by_plane,
)
from gnomon.dsl.errors import InputError
from gnomon.dsl.trace import Declaration

FAMILIES: tuple[Family, ...] = (
    POSITIONS,
    BIAS,
    GATES,
    ROTARY,
    MAPS,
    PRODUCTS,
    LINEAR,
    PHASE,
    NORMALISERS,
    MASKS,
    REFUSED,
)
ENTRIES: tuple[Entry, ...] = tuple(
    sorted((entry for family in FAMILIES for entry in family.entries), key=lambda entry: entry.row)
)


def find(name: str) -> Declaration:
    """The declaration of that name.

    Raises:
        InputError: there is none; the error has the nearest names, or the law that refuses it.
    """
    known = {entry.name: entry for entry in ENTRIES}
    entry = known.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, known, 3)
        fix = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
        raise InputError("name", "a variant of the catalogue", repr(name), fix)
    if entry.declaration is None:
        raise InputError("name", "a variant that can be said", repr(name), entry.reason or "")
    return entry.declaration


__all__ = [
    "ENTRIES",
    "FAMILIES",
    "Entry",
    "Family",
    "alibi",
    "alibi_learned",
    "block_selection",
    "cable",
    "carope",
    "comrope",
    "cope",
    "deberta",
    "delta_net",
    "delta_product",
    "delta_product_linear",
    "differential",
    "documents",
    "dplr",
    "find",
    "fire",
    "fope",
    "fox",
    "fox_pruned",
    "gated",
    "gated_delta",
    "geometric",
    "gla",
    "grape_a",
    "grape_a_query",
    "grape_ap",
    "grape_m",
    "grape_m_contextual",
    "hope_hyperbolic",
    "iplr",
    "kda",
    "kda_linear",
    "kerple_log",
    "kerple_power",
    "learned_absolute",
    "learned_sink",
    "liere",
    "llama4_temperature",
    "log_n_scaling",
    "longrope",
    "m_rope",
    "mamba3_angles",
    "mla",
    "nope",
    "ordered_plane_rotations",
    "ordered_rotations",
    "p_rope",
    "path",
    "path_fox",
    "path_fox_fla",
    "path_normalized",
    "pope",
    "prefix_lm",
    "repo",
    "rerope",
    "retention",
    "rope",
    "rope_axial",
    "rope_dynamic_ntk",
    "rope_interpolated",
    "rope_ntk",
    "rope_pairs",
    "rope_partial",
    "rwkv7_linear",
    "sandwich",
    "scalable_softmax",
    "selective_rope",
    "self_extend",
    "shaw_key",
    "sigmoid_attention",
    "sinusoidal",
    "sliding_window",
    "soft_cap",
    "softmax_off_by_one",
    "softpick",
    "ssd",
    "stick_breaking",
    "streaming",
    "swin",
    "t5",
    "t5_encoder",
    "tapa",
    "tapa_general",
    "tapa_linear",
    "tapa_no_turns",
    "transformer_xl",
    "tupe",
    "wall",
    "xpos",
    "yarn",
    "yarn_by_plane",
]

if not TYPE_CHECKING:  # a checker shall see which variants exist

    def __getattr__(name: str) -> object:
        """A name that is no variant: what may have been meant, or the law that refuses it."""
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return find(name)
        except InputError as error:
            raise AttributeError(str(error)) from None

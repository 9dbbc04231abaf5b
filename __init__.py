"""Gnomon: a kernel compiler for attention whose positions are encoded inside the score."""

from importlib import import_module
from typing import TYPE_CHECKING

from gnomon.dsl.axes import (
    Axis,
    Dim,
    Entry,
    Head,
    KVHead,
    Param,
    Plane,
    Query,
    Repeat,
    Token,
    ValueDim,
)
from gnomon.dsl.errors import (
    BrokenLawsError,
    CompilerBug,
    GnomonError,
    InputError,
    LawError,
    UnknownWordError,
    UnsupportedError,
    VariantError,
)
from gnomon.dsl.nodes import Expr as Value
from gnomon.dsl.nodes import Mask
from gnomon.dsl.trace import Declaration, variant
from gnomon.dsl.words import unknown_word
from gnomon.dsl.words_maps import (
    at_key,
    at_query,
    channel,
    channel_sum,
    concat,
    dim,
    distance,
    frequencies,
    head,
    head_count,
    interpolate,
    l2_norm,
    length,
    lookup,
    plane,
    position,
    prefix_sum,
    rms_norm,
    rotate,
    rotation,
    rsqrt_dim,
    split,
    visible_count,
)
from gnomon.dsl.words_pointwise import (
    clip,
    cos,
    cos_turns,
    detach,
    exp,
    expm1,
    floor,
    log,
    log1p,
    log_sigmoid,
    maximum,
    minimum,
    relu,
    rsqrt,
    sigmoid,
    sin,
    softplus,
    sqrt,
    tanh,
    where,
)
from gnomon.dsl.words_scores import (
    causal,
    decay,
    diagonal,
    dot,
    everything,
    expm,
    first_keys,
    householder,
    identity,
    negligible,
    outer,
    ratio,
    same_document,
    score_scan,
    selected_blocks,
    softmax,
    stick_breaking,
    weighted_sum,
    window,
)

if TYPE_CHECKING:
    from gnomon.dsl import catalogue as catalogue
    from gnomon.runtime.compile import compile as compile

# imported when first asked for: the catalogue traces every variant, the runtime needs torch
_LATER = {
    "catalogue": ("gnomon.dsl.catalogue", ""),
    "compile": ("gnomon.runtime.compile", "compile"),
}

__all__ = [
    "Axis",
    "BrokenLawsError",
    "CompilerBug",
    "Declaration",
    "Dim",
    "Entry",
    "GnomonError",
    "Head",
    "InputError",
    "KVHead",
    "LawError",
    "Mask",
    "Param",
    "Plane",
    "Query",
    "Repeat",
    "Token",
    "UnknownWordError",
    "UnsupportedError",
    "Value",
    "ValueDim",
    "VariantError",
    "at_key",
    "at_query",
    "causal",
    "channel",
    "channel_sum",
    "clip",
    "compile",
    "concat",
    "cos",
    "cos_turns",
    "decay",
    "detach",
    "diagonal",
    "dim",
    "distance",
    "dot",
    "everything",
    "exp",
    "expm",
    "expm1",
    "first_keys",
    "floor",
    "frequencies",
    "head",
    "head_count",
    "householder",
    "identity",
    "interpolate",
    "l2_norm",
    "length",
    "log",
    "log1p",
    "log_sigmoid",
    "lookup",
    "maximum",
    "minimum",
    "negligible",
    "outer",
    "plane",
    "position",
    "prefix_sum",
    "ratio",
    "relu",
    "rms_norm",
    "rotate",
    "rotation",
    "rsqrt",
    "rsqrt_dim",
    "same_document",
    "score_scan",
    "selected_blocks",
    "sigmoid",
    "sin",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "stick_breaking",
    "tanh",
    "variant",
    "visible_count",
    "weighted_sum",
    "where",
    "window",
]

if not TYPE_CHECKING:  # a checker shall see which words exist

    def __getattr__(name: str) -> object:
        """Names that are imported late; a word that does not exist says which one may be meant."""
        if name in _LATER:
            module, attribute = _LATER[name]
            found = import_module(module)
            found = getattr(found, attribute) if attribute else found
            globals()[name] = found
            return found
        if name.startswith("__"):
            raise AttributeError(name)
        raise unknown_word(name, tuple(__all__))

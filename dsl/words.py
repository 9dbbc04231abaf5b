"""All words of the language, and the answer to those that it does not have."""

import difflib

from gnomon.dsl import words_maps, words_pointwise, words_scores
from gnomon.dsl.errors import LawError, UnknownWordError, VariantError

WORDS: dict[str, object] = {
    name: word
    for module in (words_maps, words_pointwise, words_scores)
    for name, word in vars(module).items()
    if getattr(word, "__module__", None) == module.__name__ and not name.startswith("_")
}

_NORMALISERS = "normalisers: gn.softmax, gn.weighted_sum, gn.ratio, gn.stick_breaking"

REFUSED = {
    "entmax": (
        "one pass over the keys",
        "alpha-entmax finds a threshold for each row by several passes over its keys",
        _NORMALISERS,
    ),
    "sparsemax": (
        "one pass over the keys",
        "sparsemax finds a threshold for each row by several passes over its keys",
        _NORMALISERS,
    ),
    "mix_heads": (
        "heads do not meet",
        "a score is a number of one pair in one head; a tile holds no other head",
        "mix heads outside the kernel: in the projections of q and k, or of the outputs",
    ),
}

_ELSEWHERE = {
    "sum": "gn.channel_sum(x) sums over channels, gn.decay(x) over the tokens between j and i",
    "linear": "linear attention is gn.weighted_sum(weight, mask=...)",
    "cumsum": "gn.prefix_sum(x)",
    "abs": "Python's abs(x)",
    "pow": "Python's x ** y",
    "sinh": "(gn.exp(x) - gn.exp(-x)) / 2",
    "cosh": "(gn.exp(x) + gn.exp(-x)) / 2",
    "silu": "x * gn.sigmoid(x)",
    "max": "gn.maximum(a, b)",
    "min": "gn.minimum(a, b)",
    "QueryHead": "gn.Head, the heads of q",
    "KeyHead": "gn.KVHead, the heads of k and v",
}


def unknown_word(name: str, others: tuple[str, ...] = ()) -> VariantError:
    """What `gn.name` says where it is no word: the law that refuses it, or the nearest words."""
    if name in REFUSED:
        law, what, fix = REFUSED[name]
        return LawError(law, what, fix)
    near = difflib.get_close_matches(name, sorted({*WORDS, *others}), 2)
    if name in _ELSEWHERE:
        fix = f"write {_ELSEWHERE[name]}"
    elif near:
        fix = f"did you mean {' or '.join(f'gn.{n}' for n in near)}?"
    else:
        fix = "the words are listed in dsl/README.md and in gnomon.__all__"
    return UnknownWordError(f"gnomon has no word {name!r}", fix)

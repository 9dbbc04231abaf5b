"""Which pairs exist: windows, documents, prefixes, sink tokens, chosen blocks."""

import gnomon as gn
from gnomon import Entry, KVHead, Query, Token
from gnomon.dsl.catalogue.entry import Family

MASKS = Family("masks")


@MASKS.row(78, "Beltagy et al. 2020 (Longformer), arXiv 2004.05150; Mistral, arXiv 2310.06825")
@gn.variant
def sliding_window(q, k, *, size=4096):
    "q_i . k_j / sqrt(d),  i - size < j <= i"
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal() & gn.window(size))


@MASKS.row(79, "common practice")
@gn.variant
def documents(q, k, ids: Token[int]):
    """q_i . k_j / sqrt(d),  j <= i in the same document

    Positions go on across documents; cu_seqlens restarts them.
    """
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal() & gn.same_document(ids))


@MASKS.row(79, "Raffel et al. 2019, arXiv 1910.10683")
@gn.variant
def prefix_lm(q, k, *, count=256):
    "q_i . k_j / sqrt(d),  j <= i or j < count: everybody sees the prefix"
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal() | gn.first_keys(count))


@MASKS.row(
    79,
    "Xiao et al. 2023 (StreamingLLM), arXiv 2309.17453; Han et al. 2023 (Lambda mask), arXiv "
    "2308.16137",
)
@gn.variant
def streaming(q, k, *, size=4096, sinks=4):
    """q_i . k_j / sqrt(d),  j <= i and (i - j < size or j < sinks)

    StreamingLLM also renumbers the positions inside its cache.
    """
    mask = gn.causal() & (gn.window(size) | gn.first_keys(sinks))
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=mask)


@MASKS.row(80, "Lu et al. 2025 (MoBA), arXiv 2502.13189; Yuan et al. 2025 (NSA), arXiv 2502.11089")
@gn.variant
def block_selection(q, k, blocks: Query[KVHead, Entry, int], *, size=64):
    """q_i . k_j / sqrt(d),  j <= i in one of the blocks that i selected

    No gradient goes through the choice. An entry of -1 chooses nothing.
    """
    mask = gn.causal() & gn.selected_blocks(blocks, size=size)
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=mask)

"""What a mask is known to hide."""

from gnomon.dsl.nodes import Mask


def is_causal(mask: Mask) -> bool:
    """Whether no key after the query is visible."""
    parts = [is_causal(m) for m in mask.operands if isinstance(m, Mask)]
    if mask.rule == "and":
        return any(parts)
    return all(parts) if mask.rule == "or" else mask.rule == "causal"


def is_stretch(mask: Mask) -> bool:
    """Whether the visible keys of a row lie side by side."""
    if mask.rule == "and":
        return all(is_stretch(m) for m in mask.operands if isinstance(m, Mask))
    return mask.rule not in ("or", "first_keys", "selected_blocks")

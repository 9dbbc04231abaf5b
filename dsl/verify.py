"""The laws of a whole variant; all broken ones are reported at once."""

from gnomon.dsl.nodes import Variant


def verify(variant: Variant) -> None:
    """Raise what is broken."""

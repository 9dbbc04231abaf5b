"""gnomon.lowering.passes."""

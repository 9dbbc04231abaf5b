"""gnomon.lowering."""

"""gnomon.lowering.export."""

"""gnomon.lowering.emit."""

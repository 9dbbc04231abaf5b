"""gnomon.lowering.schedules."""

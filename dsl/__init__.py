"""gnomon.dsl."""

"""gnomon.runtime."""

"""gnomon.autotune: which configuration is fastest, and how we know."""

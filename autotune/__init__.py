"""gnomon.autotune."""

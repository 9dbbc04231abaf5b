"""gnomon.kernels_generated."""

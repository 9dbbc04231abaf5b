"""Tile programs for the stages of a transport I - beta w u^T: everything around the pair kernels."""

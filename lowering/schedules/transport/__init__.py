"""Tile programs for the stages of a transport I - beta w u^T: all but its pairs."""

"""Gnomon: a kernel compiler for attention whose positions are encoded inside the score."""

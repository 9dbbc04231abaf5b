"""Peers side by side: the same problem, the same run, medians with the machine's description."""

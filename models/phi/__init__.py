"""Phi: the architecture `phi3` (Phi 3, 3.5 and 4)."""

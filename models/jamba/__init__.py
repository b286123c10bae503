"""Jamba: the architecture `jamba`."""

"""Falcon: the architecture `falcon-h1`."""

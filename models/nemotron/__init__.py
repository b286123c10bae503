"""Nemotron: the architecture `nemotron_h`."""

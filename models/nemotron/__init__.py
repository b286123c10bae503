"""Nemotron: the architectures `nemotron` and `nemotron_h`."""

"""Granite: the architecture `granite` (Granite 3, dense)."""

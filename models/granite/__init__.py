"""Granite: the architectures `granite` (Granite 3, dense) and `granitehybrid` (Granite 4)."""

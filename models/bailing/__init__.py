"""Bailing: the architecture `bailingmoe2` (Ling 2.0, Ring 2.0)."""

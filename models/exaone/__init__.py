"""EXAONE: the architecture `exaone4` (EXAONE 4)."""

"""EXAONE: the architectures `exaone4` (EXAONE 4) and `exaone-moe` (K-EXAONE)."""

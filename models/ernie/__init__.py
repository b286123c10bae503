"""ERNIE: the architectures `ernie4_5` (ERNIE 4.5, dense) and `ernie4_5-moe`."""

"""ERNIE: the architecture `ernie4_5` (ERNIE 4.5, dense)."""

"""Kimi: the architecture `kimi-linear`; Kimi K2 is a `deepseek2`."""

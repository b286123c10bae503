"""Cohere: the architectures `cohere2` (Command R7B, Command A) and `command-r`."""

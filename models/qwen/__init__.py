"""Qwen: the architectures `qwen2`, `qwen3` and `qwen3moe`."""

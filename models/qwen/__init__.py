"""Qwen: the architectures `qwen2`, `qwen2moe`, `qwen3` and `qwen3moe`."""

"""RWKV: the architecture `rwkv7`."""

"""Hunyuan: the architectures `hunyuan-dense` (Hunyuan 0.5B to 7B) and `hunyuan-moe` (A13B)."""

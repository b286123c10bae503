"""Hunyuan: the architecture `hunyuan-dense` (Hunyuan 0.5B to 7B)."""

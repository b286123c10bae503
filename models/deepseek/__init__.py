"""DeepSeek: the architecture `deepseek2` (V2, V3, GLM 4.7 Flash)."""

"""DeepSeek: the architectures `deepseek2` (V2, V3, GLM 4.7 Flash) and `deepseek4`."""

"""OLMo: the architectures `olmo` (OLMo 1) and `olmo2` (OLMo 2 and 3)."""

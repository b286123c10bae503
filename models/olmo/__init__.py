"""OLMo: the architecture `olmo2` (OLMo 2 and 3)."""

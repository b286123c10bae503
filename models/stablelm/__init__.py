"""StableLM: the architecture `stablelm` (StableLM 3B, StableLM 2)."""

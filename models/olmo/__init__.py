"""OLMo: the architectures `olmo` (OLMo 1), `olmo2` (OLMo 2 and 3), `olmoe` and `olmo_hybrid`."""

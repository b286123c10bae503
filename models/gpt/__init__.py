"""GPT: the architectures `gpt2` and `gptneox` (Pythia, GPT-NeoX)."""

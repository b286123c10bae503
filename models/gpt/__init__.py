"""GPT: the architectures `gpt2`, `gptneox` (Pythia, GPT-NeoX), `bloom` and `mpt`."""

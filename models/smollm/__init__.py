"""SmolLM: the architecture `smollm3`; SmolLM and SmolLM 2 are `llama`."""

"""Asking a loaded model: prompts, options, generation, embeddings."""

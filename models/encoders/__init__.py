"""Encoders of text: embeddings, classes, ranks."""

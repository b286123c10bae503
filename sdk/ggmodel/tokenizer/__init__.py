"""Text to tokens and back, exactly as in training.

`Tokenizer.from_metadata(metadata)` builds the vocabulary of a GGUF: byte pairs ("gpt2", "gemma4"),
SentencePiece ("llama"), unigrams ("t5"), WordPiece ("bert") or the longest bytes ("rwkv").
"""

from .tokenizer import TextStream, Tokenizer

__all__ = ["TextStream", "Tokenizer"]

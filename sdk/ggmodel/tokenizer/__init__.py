"""Text to tokens and back, exactly as the model was trained.

`Tokenizer.from_metadata(metadata)` rebuilds a vocabulary out of the metadata of a GGUF: byte pair
vocabularies ("gpt2", "gemma4"), SentencePiece ("llama") and WordPiece ("bert").
"""

from .stream import TextStream
from .tokenizer import Tokenizer

__all__ = ["TextStream", "Tokenizer"]

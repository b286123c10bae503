"""Classes with the names and habits of other packages, for programs that use these.

- sentence-transformers: `SentenceTransformer`, `CrossEncoder`;
- llama-cpp-python: `Llama`, `LlamaGrammar`, `LlamaPromptLookupDecoding`, `LlamaState`;
- lm-eval: `ggmodel.compat.lm_eval.GGModel`, which needs it.

`from ggmodel.compat import Llama` takes the place of the package's import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..imports import lazily

if TYPE_CHECKING:
    from .llama import Llama, LlamaGrammar, LlamaPromptLookupDecoding, LlamaState
    from .sentence_transformers import (
        CrossEncoder,
        SentenceTransformer,
        colbert_score,
        lexical_score,
    )

__all__ = [
    "CrossEncoder",
    "Llama",
    "LlamaGrammar",
    "LlamaPromptLookupDecoding",
    "LlamaState",
    "SentenceTransformer",
    "colbert_score",
    "lexical_score",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "llama": "Llama LlamaGrammar LlamaPromptLookupDecoding LlamaState",
        "sentence_transformers": "CrossEncoder SentenceTransformer colbert_score lexical_score",
    },
)

"""The package whose source has the ggml that is built."""

from __future__ import annotations

NAME = "llama-cpp-python"
"""A package whose source contains llama.cpp, which contains ggml."""
VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"

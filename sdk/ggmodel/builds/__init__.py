"""Builds of ggml on this machine: made from source, kept in the user's data folder, one chosen.

This imports neither ggml nor the binding, so that it works where these are broken. The source
is that of the package named here.
"""

from __future__ import annotations

PACKAGE = "llama-cpp-python"
"""A package whose source contains llama.cpp, which contains ggml."""
VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"

"""The model for lm-eval where that is not installed; tests/evaluations has it with lm-eval."""

from __future__ import annotations

import importlib

import pytest

from ggmodel.errors import Unsupported


def test_it_asks_for_lm_eval():
    with pytest.raises(Unsupported, match="pip install 'lm-eval>="):
        importlib.import_module("ggmodel.compat.lm_eval")

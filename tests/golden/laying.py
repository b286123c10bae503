"""Prompts of goldens as a loaded model takes them."""

from __future__ import annotations

from typing import Any

from ggmodel.runner import LoadedModel
from tests.golden.files import Golden, Prompt


def laid_out(model: LoadedModel, golden: Golden, prompt: Prompt) -> list[Any]:
    """The prompt, its images as their embeddings."""
    items: list[Any] = []
    for part in prompt.parts:
        if isinstance(part, str):
            picture = golden.pictures[part]
            items.append(model.embeddings(picture.pixels, **picture.data))
        else:
            items += part
    return items

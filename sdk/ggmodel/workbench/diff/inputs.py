"""The inputs of a model and its reference: whether tokens, pixels and length are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...convert.from_hf import normalize
from ...errors import ConfigError
from ...runner import LoadedModel

_BY_LENGTH = ("longrope", "su")  # scalings of rope with two sets of factors


def placeholder_of(config: Mapping[str, Any], kind: str) -> int:
    """The token that stands for a row of an item in a reference's prompt; frames of a video may
    have that of images.

    Args:
        kind: of the item, such as "image".

    Raises:
        ConfigError: the config names none.
    """
    names = [f"{k}_token_{name}" for k in (kind, "image") for name in ("index", "id")]
    if config.get("is_encoder_decoder"):
        names = ["decoder_start_token_id"]
    token = next((config[key] for key in names if config.get(key)), None)
    if not isinstance(token, int):
        raise ConfigError(f"the reference's config names no {' or '.join(names)}")
    return token


def same_tokens(model: LoadedModel, prompt: Sequence[Any], ids: Sequence[int], image: int) -> str:
    """The first difference between a prompt here and in the reference; "" if there is none.

    Args:
        prompt: with an image, as `LoadedModel.logits` takes it.
        ids: token ids of the reference.
        image: the reference's token for a row of the item.
    """
    numbers = model.prompts.numbers(prompt)
    table = model.engine.inputs
    ours: list[int | None] = []  # None is a row of an image
    for number in numbers:
        entry = table[number] if number < 0 else None
        embedding = None if entry is None else entry.embedding
        token = int(number) if embedding is None else embedding.token(image)
        ours.append(None if token == image else token)
    theirs = [None if token == image else int(token) for token in ids]
    if ours == theirs:
        return ""
    n = min(len(ours), len(theirs))
    at = next((i for i in range(n) if ours[i] != theirs[i]), n)
    shown = " and ".join(
        f"{name} {_shown(model, tokens[at] if at < len(tokens) else -1)}"
        for name, tokens in (("ggmodel has", ours), ("the reference", theirs))
    )
    return (
        f"prompt: they differ at token {at} of {len(ours)} here and {len(theirs)} there: {shown}; "
        "look at post_tokenize, image_inputs and preprocess"
    )


def _shown(model: LoadedModel, token: int | None) -> str:
    if token is None:
        return "a row of the item"
    if token < 0:
        return "none"
    text = "" if model.tokenizer is None else f" {model.detokenize([token])!r}"
    return f"{token}{text}"


def fitting_context(config: Mapping[str, Any], tokens: int) -> int | None:
    """The context length with which a model takes the same factors of LongRoPE as transformers for
    a prompt of so many tokens; None if any does. Transformers goes by the prompt's length,
    ggmodel and llama.cpp by the loaded context's.

    Args:
        config: config.json of the checkpoint.
    """
    hf = normalize(config)
    scaling = hf.get("rope_scaling")
    if not isinstance(scaling, Mapping):
        return None
    if scaling.get("rope_type", scaling.get("type")) not in _BY_LENGTH:
        return None
    original = hf.get("original_max_position_embeddings") or scaling.get(
        "original_max_position_embeddings"
    )
    if not isinstance(original, int) or tokens > original:
        return None
    return original

"""Inside a model for a prompt: attention weights, the logit lens, norms, and steering vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, PromptError, Unsupported
from ..runner import LoadedModel, Steering
from ..runner.sampling import log_probabilities
from .trace import trace


@dataclass(frozen=True, eq=False)
class Grid:
    """Numbers by row and token, to be drawn.

    Attributes:
        rows: their names. columns: texts of the tokens.
        values: float32 [rows, columns]. texts: of the cells, or None.
    """

    rows: list[str]
    columns: list[str]
    values: np.ndarray
    texts: list[list[str]] | None = None


def token_texts(model: LoadedModel, prompt: Any) -> list[str]:
    """The text of each input of a prompt; "▢" for a row of a picture or another item, the id where
    the file has no vocabulary."""
    ids = model.prompts.read(prompt).tolist()
    if model.tokenizer is None:
        return [str(i) for i in ids]
    return ["▢" if i < 0 else model.detokenize([i]) or f"<{i}>" for i in ids]


def norms(model: LoadedModel, prompt: Any, *names: str) -> Grid:
    """The norm of what modules give, by token; of all layers where none is named."""
    with model.capture(*(names or model.residual)) as seen:
        model.logits(prompt)
    columns = token_texts(model, prompt)
    whole = {n: v for n, v in seen.items() if len(v) == len(columns)}
    values = np.array([np.linalg.norm(v, axis=1) for v in whole.values()], np.float32)
    return Grid(list(whole), columns, values)


def logit_lens(model: LoadedModel, prompt: Any) -> Grid:
    """The likeliest next token, and its probability, if the model ended after each layer: the
    result of the last layer is replaced by that of an earlier one, and all behind it is computed as
    ever."""
    layers = model.residual
    with model.capture(*layers) as seen:
        last = model.logits(prompt)
    states = dict(seen)
    values, texts = [], []
    for name in layers:
        rows = last
        if name != layers[-1]:
            rows = _ending_with(model, prompt, layers[-1], states[name])
        best = rows.argmax(axis=1)
        sure = (log_probabilities(rows[i], int(b), 0)[0] for i, b in enumerate(best))
        values.append(np.exp([*sure]))
        texts.append([_text(model, int(b)) for b in best])
    return Grid(layers, token_texts(model, prompt), np.array(values, np.float32), texts)


def _ending_with(model: LoadedModel, prompt: Any, last: str, states: np.ndarray) -> np.ndarray:
    """Logits of a prompt, with the last layer's result replaced."""
    done = 0

    def replaced(rows: np.ndarray) -> np.ndarray:
        nonlocal done
        done += len(rows)
        return states[done - len(rows) : done]

    with model.patch({last: replaced}):
        return model.logits(prompt)


def _text(model: LoadedModel, token: int) -> str:
    return str(token) if model.tokenizer is None else model.detokenize([token]) or f"<{token}>"


def attention_weights(model: LoadedModel, prompt: Any, layer: int) -> np.ndarray:
    """The attention weights of a layer, float32 [heads, n, n]: of each token (row) to each token
    before it and itself. They are those that the layer multiplies values with; with sinks, rows add
    up to less than 1.

    Raises:
        Unsupported: the model was not loaded with `flash_attention="off"`, which computes them; or
            the layer has no attention.
    """
    if model.backend.flash_attention:
        raise Unsupported(
            'fused attention keeps no weights: load the model with flash_attention="off"'
        )
    if not 0 <= layer < len(model.residual):
        raise ConfigError(f"layer {layer}; the model has layers 0 to {len(model.residual) - 1}")
    scope = model.modules[model.residual[layer]].scope
    traced = trace(model, prompt, names=f"{scope}.*softmax", keep=True)
    n = traced.tokens
    weights = [v for v in traced.kept.values() if v.ndim == 3 and v.shape[1] == n]
    if not weights:
        raise Unsupported(f"layer {layer} has no attention to tokens")
    return np.ascontiguousarray(weights[0][:, :, :n])


def attention_grid(model: LoadedModel, prompt: Any, layer: int, head: int | None = None) -> Grid:
    """The attention weights of a head, or the mean of all heads, to be drawn.

    Raises:
        ConfigError: the layer has no such head.
        Unsupported: see `attention_weights`.
    """
    weights = attention_weights(model, prompt, layer)
    if head is not None and not 0 <= head < len(weights):
        raise ConfigError(f"head {head}; layer {layer} has heads 0 to {len(weights) - 1}")
    texts = token_texts(model, prompt)
    return Grid(texts, texts, weights.mean(axis=0) if head is None else weights[head])


def steering_vector(
    model: LoadedModel, positive: Sequence[Any], negative: Sequence[Any]
) -> Steering:
    """The direction from one kind of prompts to another: for each layer, the mean of its result
    after the last token of each positive prompt, less that of the negative ones.

    Raises:
        PromptError: either list is empty.
    """
    if not positive or not negative:
        raise PromptError("a steering vector needs prompts of both kinds")
    ends = [_mean_of_ends(model, prompts) for prompts in (positive, negative)]
    # llama.cpp has no direction for layer 0.
    return Steering({i: a - b for i, (a, b) in enumerate(zip(*ends, strict=True)) if i})


def _mean_of_ends(model: LoadedModel, prompts: Sequence[Any]) -> np.ndarray:
    """float32 [layers, width]."""
    with model.capture(*model.residual) as seen:
        for prompt in prompts:
            model.logits(prompt)
    ends = [[one[name][-1] for name in model.residual] for one in seen.requests]
    return np.mean(np.array(ends, np.float64), axis=0).astype(np.float32)


def save_steering(
    path: str | Path, steering: Steering, architecture: str, *, force: bool = False
) -> None:
    """Writes a steering vector as llama.cpp's control vectors are: a GGUF file with a tensor
    `direction.N` for layer N.

    Raises:
        ConfigError: it has a direction for layer 0, which such files cannot have.
        WriteError: the file cannot be written.
    """
    from ..convert.write import info, write_gguf
    from ..gguf_file import DType

    if 0 in steering.directions:
        raise ConfigError("a control vector of llama.cpp has no direction for layer 0")
    metadata = {
        "general.architecture": "controlvector",
        "controlvector.model_hint": architecture,
        "controlvector.layer_count": max(steering.directions, default=0),
    }
    tensors = {f"direction.{i}": d for i, d in sorted(steering.directions.items())}
    infos = [info(name, d.shape, DType.F32) for name, d in tensors.items()]
    write_gguf(
        path,
        metadata,
        infos,
        lambda one: tensors[one.name].data,
        lambda name: None,
        force=force,
    )

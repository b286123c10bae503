"""Loads a draft model for a loaded model, and compares their vocabularies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ConfigError, Unsupported
from ...gguf_file import TensorSource
from ...gguf_file.values import KeyValues
from ..engine.draft_model import DraftModel
from ..requests.loaded_model import LoadedModel
from .sources import Source

if TYPE_CHECKING:
    from ..options import Draft, Options

# llama.cpp's rule: vocabularies may be padded otherwise, and name their first tokens otherwise.
_MOST_PADDING, _FIRST_COMPARED = 128, 5
_TOKENS = "tokenizer.ggml.tokens"
_KINDS = ("tokenizer.ggml.model", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token")


class Load(Protocol):
    """Loads an opened source."""

    def __call__(self, source: TensorSource, options: Options, /) -> LoadedModel: ...


class Open(Protocol):
    """See `sources.open_source`."""

    def __call__(
        self, source: Source, mmproj: str | Path | None = None, models: str | Path | None = None
    ) -> TensorSource: ...


def source_of(draft: Draft) -> Source:
    """The source of a draft model. A loaded one is loaded again: its caches are its own."""
    return draft if isinstance(draft, (str, os.PathLike, TensorSource)) else draft.source


def options_of(draft: TensorSource, options: Options, context_length: int) -> Options:
    """The load options of a draft model: those of the large model, as far as they suit another one.

    Args:
        context_length: of the large model.
    """
    trained = KeyValues(draft.metadata).get("context_length", int)
    return replace(
        options,
        draft=None,
        steer=None,
        mmproj="",
        type=None,
        context_length=min(context_length, trained or context_length),
        gpu_layers="auto" if options.gpu_request.count else 0,
        adapters=None,
        override_tensor=None,
        rpc=(),
        deterministic=False,
        prefix_store=None,
        progress=None,
    )


def load_draft(model: LoadedModel, options: Options, opener: Open, load: Load) -> LoadedModel:
    """Loads the draft model of the options for a model that is loaded, and has that use it.

    Raises:
        Unsupported: the model generates nothing, or what it is given is no text.
        ConfigError: the vocabularies differ.
        Error: as `load`.
    """
    draft, engine = options.draft, model.engine
    assert draft is not None
    if model.model.only_embeds or model.model.prompt_item:
        raise Unsupported(
            f"{model.report.architecture}: a draft model needs a model that goes on with a text; "
            "leave out draft"
        )
    given = source_of(draft)
    opened = opener(given, "", options.models)
    try:
        compare_vocabularies(model.source, opened)
        loaded = load(opened, options_of(opened, options, model.context_length))
    except BaseException:
        if opened is not given:
            opened.close()
        raise
    loaded.backend.owns_source = opened is not given
    share = _size(loaded.source) / max(1, _size(model.source))
    plain = engine.speculation.costs.of
    drafter = DraftModel(loaded.engine, options.draft_tokens, share, engine.vocabulary, plain)
    engine.draft_with(drafter)
    return loaded


def _size(source: TensorSource) -> int:
    return sum(info.nbytes for info in source.tensors.values())


def compare_vocabularies(model: TensorSource, draft: TensorSource) -> None:
    """Compares the tokens of two models. At the end one may have up to 128 more.

    Raises:
        ConfigError: they differ.
    """
    ours, theirs = model.metadata, draft.metadata
    for key in _KINDS:
        if ours.get(key) != theirs.get(key):
            raise _different(draft, f"{key} is {theirs.get(key)!r}, the model's {ours.get(key)!r}")
    if ours.get(_KINDS[1]) and _special(ours, "bos") != _special(theirs, "bos"):
        raise _different(draft, "its texts begin with another token")
    tokens, others = _tokens(ours), _tokens(theirs)
    if abs(len(tokens) - len(others)) > _MOST_PADDING:
        raise _different(draft, f"it has {len(others):,} tokens, the model {len(tokens):,}")
    pairs = enumerate(zip(tokens, others, strict=False))
    for id, (token, other) in islice(pairs, _FIRST_COMPARED, None):
        if token != other:
            raise _different(draft, f"token {id} is {other!r:.60}, the model's {token!r:.60}")


def _tokens(metadata: Mapping[str, Any]) -> Sequence[Any]:
    tokens = metadata.get(_TOKENS, ())
    return tokens.tolist() if hasattr(tokens, "tolist") else tokens


def _special(metadata: Mapping[str, Any], name: str) -> Any:
    return metadata.get(f"tokenizer.ggml.{name}_token_id")


def _different(draft: TensorSource, how: str) -> ConfigError:
    return ConfigError(
        f"{draft.name} cannot draft for this model, because their vocabularies differ: {how}; take "
        "a smaller model of the same family, or the same in a smaller quantisation type"
    )

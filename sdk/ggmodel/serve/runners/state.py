"""Describes a loaded model to the server."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from ...chat.replies import read_declared
from ...chat.template import KEY as TEMPLATE
from ...chat.template import REPLIES_KEY, template_abilities
from ...errors import TemplateError
from ...gguf_file import Array
from ...gguf_file.source import quantization_of
from ...gguf_file.values import KeyValues
from ...model import Model
from ...runner import LoadedModel
from ...runner.sampling import DEFAULTS as SAMPLING
from ..infill import NEEDED, fill_tokens
from ..requests import State

_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask", "eot")
_RESERVED = ("reserved", "unused", "placeholder")
_MOST = 1024  # special tokens that are told
_LONG = 64  # items of a list that is left out of the metadata


def state_of(model: LoadedModel) -> State:
    """The state of a model that has just been loaded."""
    metadata = model.source.metadata
    keys = KeyValues(metadata)
    template = metadata.get(TEMPLATE)
    template = template if isinstance(template, str) else ""
    state = State(
        engine="ggmodel",
        path=str(model.source.files[0]) if model.source.files else model.source.name,
        architecture=model.report.architecture,
        kinds=[kind for kind in model.model.modalities() if kind != model.model.prompt_item],
        abilities=_abilities(model, template),
        context_length=model.context_length,
        trained_context=keys.get("context_length", int) or 0,
        parallel=len(model.engine.sequences.all),
        vocabulary=model.engine.vocabulary,
        width=keys.get("embedding_length", int) or 0,
        nbytes=model.memory.size() + (model.draft.memory.size() if model.draft else 0),
        parameters=sum(info.n_elements for info in model.source.tensors.values()),
        quantization=quantization_of(model.source),
        template=template,
        response_template=_declared(metadata),
        special_tokens=_special_tokens(model),
        special_ids=_special_ids(model),
        end_ids=[] if model.tokenizer is None else sorted(model.tokenizer.eog),
        metadata=plain_metadata(metadata),
        deterministic=model.backend.params.deterministic,
        adapters=list(model.adapters),
        sampling=SAMPLING | {k: v for k, v in model.defaults.options.items() if k in SAMPLING},
    )
    if "completion" in state.abilities and fill_tokens(state).keys() >= set(NEEDED):
        state.abilities.append("infill")
    return state


def _abilities(model: LoadedModel, template: str) -> list[str]:
    """The names of what it can do; see `State`."""
    architecture, abilities = type(model.model), list[str]()
    if not model.model.only_embeds:
        abilities.append("completion")
        if template and model.tokenizer is not None:
            abilities += ["chat", *template_abilities(template)]
    if architecture.hidden is not Model.hidden and not architecture.prompt_item:
        abilities.append("embedding")
    if model.ranks:
        abilities.append("rerank")
    hears = "audio" in model.model.modalities()
    if hears and architecture.speech is not Model.speech and model.tokenizer is not None:
        abilities.append("transcription")
    return abilities


def _special_tokens(model: LoadedModel) -> dict[str, str]:
    tokens, tokenizer = dict[str, str](), model.tokenizer
    if tokenizer is None:
        return tokens
    ids: dict[str, Any] = {
        name: model.source.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _SPECIAL
    }
    ids |= {"bos": tokenizer.bos, "eos": tokenizer.eos}
    for name, id in ids.items():
        if isinstance(id, int) and 0 <= id < tokenizer.size:
            tokens[f"{name}_token"] = tokenizer.token(id)
    return tokens


def _declared(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """The checkpoint's declaration of its replies; None where it is of no use."""
    try:
        declared = read_declared(metadata[REPLIES_KEY])
    except (KeyError, TemplateError):
        return None
    return dict(declared) if isinstance(declared, Mapping) else None


def _special_ids(model: LoadedModel) -> dict[str, int]:
    """Text → id of special tokens, but for those that vocabularies keep in reserve."""
    if model.tokenizer is None:
        return {}
    names = sorted(model.tokenizer.special.items(), key=lambda named: named[1])
    pairs = ((text, id) for text, id in names if not any(word in text for word in _RESERVED))
    return dict(islice(pairs, _MOST))


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as plain values, long lists and templates left out."""
    plain: dict[str, Any] = {}
    for key, value in metadata.items():
        if isinstance(value, Array) or (hasattr(value, "tolist") and hasattr(value, "__len__")):
            if len(value) > _LONG:
                continue
            value = value.tolist()
        if isinstance(value, (list, tuple)) and len(value) > _LONG:
            continue
        if not key.startswith(TEMPLATE):
            plain[key] = value
    return plain

"""Fields and hyperparameters that a checkpoint has and its template does not read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import Error
from ...model import Model, config_class, find
from ...model.registry import supported
from ...model.source_code import declared
from .fit import Fit
from .names import Proposal, learn, propose, unread, usable
from .source import camel, with_fields, with_imports

# Keys of a config.json about training, sampling and saving, which no architecture reads.
_NOT_READ = frozenset(
    "architectures model_type torch_dtype dtype transformers_version bos_token_id eos_token_id "
    "pad_token_id use_cache initializer_range tie_word_embeddings hidden_act hidden_activation "
    "attention_dropout hidden_dropout attention_bias mlp_bias pretraining_tp vocab_size "
    "_name_or_path auto_map output_router_logits router_aux_loss_coef router_jitter_noise "
    "rope_parameters rope_scaling max_window_layers chunk_size_feed_forward is_encoder_decoder "
    "output_attentions output_hidden_states return_dict id2label label2id problem_type "
    "attn_implementation resid_pdrop embd_pdrop quantization_config cache_implementation "
    "use_bidirectional_attention".split()
)


def extend(
    sources: dict[str, str],
    fit: Fit,
    given: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    models: str | Path | None,
) -> tuple[list[Proposal], list[str]]:
    """Adds fields for tensors and keys that the template does not read.

    Args:
        sources: path → text of the new model's files, changed in place.
        given, shapes: the checkpoint's config.json and the shapes of its tensors (numpy order).

    Returns:
        Fields for tensors, added where the template has their module; lines for keys.
    """
    known = learn(_all(models))
    proposals: list[Proposal] = []
    lines: dict[str, dict[str, list[str]]] = {}  # path → class → fields
    where = {
        c: path for path, text in sources.items() for c in re.findall(r"^class (\w+)", text, re.M)
    }
    own = camel(next(iter(sources)).split("/")[0].removesuffix(".py"))
    names = {fit.cls.__name__: own}
    for of in unread(shapes, fit.report.unused):
        cls = fit.owners.get(of.parent)
        owner = None if cls is None else names.get(cls.__name__, cls.__name__)
        taken = set() if cls is None else {*declared(cls), *dir(cls)}
        taken |= {p.line.partition(":")[0] for p in proposals if p.owner == owner}
        proposal = propose(of, owner if owner in where else None, known, fit.config, taken)
        proposals.append(proposal)
        if proposal.owner is not None:
            in_file = lines.setdefault(where[proposal.owner], {})
            in_file.setdefault(proposal.owner, []).append(proposal.line)
    config = f"{own}Config"
    keys = list(_keys(fit.cls, given))
    if keys and config in where:
        lines.setdefault(where[config], {})[config] = keys
    for path, added in lines.items():
        text = with_fields(sources[path], added, "From the checkpoint; nothing reads it yet:")
        kinds = {p.kind for p in proposals if p.owner in added}
        modules = {k: "ggmodel" if k == "Tensor" else "ggmodel.nn" for k in kinds}
        sources[path] = with_imports(text, modules)
    return proposals, keys


def _all(models: str | Path | None) -> Iterator[type[Model]]:
    for name in supported(models):
        try:
            yield find(name, models)
        except Error:
            continue  # an unfinished file


class _Reads(dict[str, Any]):
    """A config that records which of its keys are read."""

    def __init__(self, config: Mapping[str, Any]):
        super().__init__(config)
        self.asked: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def _keys(cls: type[Model], given: Mapping[str, Any]) -> Iterator[str]:
    """Hyperparameters for scalars of a config that the architecture does not read."""
    from ...convert.from_hf import normalize

    reads = _Reads(normalize(given))
    config_class(cls).from_hf(reads)
    taken = {*declared(config_class(cls)), *dir(config_class(cls))}
    for key, value in reads.items():
        plain = isinstance(value, (bool, int, float, str))
        if plain and key not in reads.asked and key not in _NOT_READ and key.isidentifier():
            kind = type(value).__name__
            yield f'{usable(key, taken)}: {kind} = kv("{key}", hf="{key}")'

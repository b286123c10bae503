"""Keys of a config.json that the reference reads, and an architecture's declaration does not.

`reference_keys.json` has the keys that transformers' code reads, by model class, and their
defaults; `python -m tests.convert.make_reference_keys` makes it from transformers' source.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..gguf_file.values import check_kind
from ..model import Config, Model, config_class
from ..model.config import key_fields, steps
from ..model.module import MISSING

# The shapes of tensors, or which there are, tell the same as these. Their kinds of values:
_BY_TENSORS = dict.fromkeys("attention_bias mlp_bias qkv_bias tie_word_embeddings".split(), bool)
_BY_TENSORS |= dict.fromkeys(
    "vocab_size vision_output_dim projector_input_dim projector_output_dim".split(), int
)
_CHECKED = {**_BY_TENSORS, "max_position_embeddings": int}
_MOST = 1 << 31  # of a size
# Without effect on results: about training, sampling, saving, and how outputs are returned.
WITHOUT_EFFECT = (
    *_BY_TENSORS,
    *"architectures model_type auto_map *name_or_path dtype torch_dtype transformers_version "
    "*initializer_range initializer_factor *dropout *dropout_prob *_pdrop *_dropout_p layerdrop "
    "use_cache return_dict output_attentions output_hidden_states output_router_logits "
    "gradient_checkpointing pretraining_tp chunk_size_feed_forward "
    "router_aux_loss_coef router_jitter_noise router_z_loss_coef aux_loss_alpha seq_aux ep_size "
    "*token_id *token_ids *token_index num_labels id2label label2id problem_type "
    "task_specific_params finetuning_task cache_implementation *attn_implementation *_attn_mode "
    "experts_implementation use_flash_attn use_return_dict torchscript pruned_* "
    "use_bfloat16 tokenizer_class sep_token* quantization_config compression_config "
    "*_attn_implementation_internal for_inference unsloth* kernel_config".split(),
)
TABLE = Path(__file__).with_name("reference_keys.json")
_ROPES = ("rope_parameters", "rope_scaling")
# Keys of a scaled rope: its type, which is read, says which of them count. transformers ignores
# YaRN's attn_factor, which some checkpoints have, with a warning.
_OF_ROPE = frozenset(
    "factor original_max_position_embeddings attention_factor attn_factor beta_fast beta_slow "
    "mscale mscale_all_dim truncate short_factor long_factor low_freq_factor high_freq_factor "
    "finetuned".split()
)
# nn.RopeConfig reads it for the rope. DeepSeek's attention scales scores by it, too (transformers,
# modeling_deepseek_v3, `yarn_apply_mscale`), as does nn.LatentConfig, which the recorded classes
# that do have; of others the author says it.
TWICE = "mscale_all_dim"
TWICE_SAID = (
    "; some models scale scores of attention by it. If the reference does, name it in a "
    "hyperparameter, hf='rope_scaling.mscale_all_dim', and multiply them by "
    "nn.paper_magnitude(h.rope_factor, h.NAME) ** 2; if not, put it into `fixed`"
)
_SPELLINGS = ("sliding_window_pattern", "_sliding_window_pattern", "max_window_layers")
_USUAL = {"rope_type": "default", "type": "default", "partial_rotary_factor": 1.0}


class Watched(Mapping[str, Any]):
    """A config that notes the keys that are looked at, those of objects within it with dots.

    Attributes:
        config: the same, without being watched.
        keys: the keys.
    """

    def __init__(self, config: Mapping[str, Any], keys: set[str] | None = None, prefix: str = ""):
        self.config, self._prefix = config, prefix
        self.looked_up: set[str] = set() if keys is None else keys

    def __getitem__(self, key: str) -> Any:
        value = self.config[key]
        if isinstance(value, Mapping):
            return Watched(value, self.looked_up, _below(self._prefix + key))
        self.looked_up.add(f"{self._prefix}{key}")
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.config)

    def __len__(self) -> int:
        return len(self.config)


@functools.cache
def reference_table(name: str) -> dict[str, dict[str, Any]]:
    """A table of transformers': "keys", model class → key → default, or "processors", which has
    the tables "of", model class → processors, and "keys", processor → key → default."""
    return json.loads(TABLE.read_text("utf-8"))[name]


def listed_classes(hf: Mapping[str, Any]) -> list[str]:
    """The classes of transformers that a config.json names."""
    names = hf.get("architectures") or []
    return [str(name) for name in (names if isinstance(names, list) else [names])]


def recorded(hf: Mapping[str, Any]) -> dict[str, Any] | None:
    """The keys that transformers reads for a config, with their defaults; None for a class that
    is not recorded. Texts of further kinds have records of their own: "CLASS:qwen3"."""
    text = hf.get("text_config")
    kind = text.get("model_type") if isinstance(text, Mapping) else None
    tables = reference_table("keys")
    each = (name for n in listed_classes(hf) for name in (f"{n}:{kind}", n))
    return next((tables[name] for name in each if name in tables), None)


def with_defaults(
    architecture: type[Model],
    raw: Mapping[str, Any],
    config: Mapping[str, Any],
    reference: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """A normalized config, and the reference's defaults of keys that its config.json lacks. Nulls
    stay so; keys that hyperparameters without a default need, and those of ropes, are not added.
    Spellings of local layers that the reference does not know are left out.

    Args:
        raw: the config.json, as it is.
    """
    names = {path.rpartition(".")[2] for path in reference or _SPELLINGS}
    result = {k: v for k, v in config.items() if k in names or k not in _SPELLINGS}
    fields = key_fields(config_class(architecture))
    needed = {
        h for _, f, _, optional in fields if f.default is MISSING and not optional for h in f.hf
    }
    nested = isinstance(result.get("rope_parameters"), Mapping)  # by kind of layer, bases included
    for path, default in (reference or {}).items():
        name = path.removeprefix("text_config.")
        part, _, key = name.rpartition(".")
        settled = name in needed or part in _ROPES or (nested and "rope" in key)
        within = f"{path.removesuffix(key)}rope_parameters.{key}"  # as transformers saves it
        if default is None or settled or _present(raw, path) or _present(raw, within):
            continue
        if not part:
            result.setdefault(key, default)
        elif isinstance(result.get(part), Mapping):
            result[part] = {key: default, **result[part]}
    return result


def _present(hf: Any, path: str) -> bool:
    for key in steps(path):
        if not isinstance(hf, Mapping) or key not in hf:
            return False
        hf = hf[key]
    return True


def _below(path: str) -> str:
    """The beginning of the paths of an object's keys."""
    return path if path.endswith(":") else f"{path}."


def unread_keys(
    architecture: type[Model],
    raw: Mapping[str, Any],
    hf: Watched,
    reference: Mapping[str, Any] | None,
) -> dict[str, str]:
    """Keys of a config.json that are not read, though the reference reads them and the value is
    neither its default nor one that the architecture assumes.

    Args:
        raw: the config.json, as it is.
        hf: the same normalized, when all hyperparameters and computed tensors have been read.
        reference: the keys that the reference reads, and their defaults; None for an unknown
            reference, of which only the keys of ropes are known.

    Returns:
        key → its value, and the value that is supported.

    Raises:
        ConfigError: a size or switch whose value tensors tell holds something impossible.
    """
    reference = reference or {}
    declared = config_class(architecture)
    named = [h for _, field, *_ in key_fields(declared) for h in field.hf if isinstance(h, str)]
    read = hf.looked_up.union(named)  # before fixed values are computed
    is_recorded = recorded(raw) is not None
    fixed = _fixed(declared)
    prepared = {n.partition(":")[0] for n in (*named, *fixed) if ":" in n}
    if architecture.takes_items():
        prepared.add("preprocessor")
    reference = {
        k: v for k, v in reference.items() if ":" not in k or k.partition(":")[0] in prepared
    }
    leaves = dict(_leaves(raw, reference))
    text = {k for k in leaves if any("." not in name for name in _canonical(k))}
    checked = text.union(read, reference)  # not parts that no field reads
    _check_values({k: v for k, v in leaves.items() if k in checked})
    absent = [k for k, v in reference.items() if v is not None and not _present(raw, k)]
    unread: dict[str, str] = {}
    for path in (*leaves, *absent):
        names = _canonical(path)
        key = next(iter(names & fixed.keys()), None)
        default = _default(path, reference)
        value = leaves.get(path, default)
        grid = path.startswith("vision_config.") and _of_rope(path) is not None
        if value == "axial" and grid:
            value = "default"  # what transformers called the rope of rows and columns before
        scores = path.endswith(TWICE) and not is_recorded
        if names.intersection(named if scores else read) or (
            key is None and not scores and (path not in leaves or _has_no_effect(path))
        ):
            continue
        supported = default if key is None else fixed[key]
        supported = supported(hf.config) if callable(supported) else supported
        counts = path in reference or _of_rope(path) is not None
        if counts and supported is not ... and (value or None) != (supported or None):
            only = _in_words(supported, grid) + (TWICE_SAID if scores else "")
            unread[path] = f"{path} is {value!r:.60}; supported: {only}"
    return unread


def _in_words(supported: Any, grid: bool) -> str:
    """The supported value in words; `grid`: it is that of a rope of rows and columns."""
    only = "none (leave it out)" if supported is None else f"{supported!r:.80}"
    return only + (" or 'axial'" if grid and supported == "default" else "")


def _check_values(leaves: Mapping[str, Any]) -> None:
    """Raises ConfigError for a value that cannot be, of a key that need not be read, and for two
    bases of one rope."""
    for path, value in leaves.items():
        kind = None if ":" in path else _CHECKED.get(path.rpartition(".")[2])
        if kind is not None:
            value = check_kind(path, value, kind, "config.json")
            if kind is int and not 0 < value <= _MOST:
                raise ConfigError(f"config.json: {path} is {value}; it must be 1 to {_MOST}")
        within = "rope_parameters.rope_theta"
        outer = path.removesuffix(within) + "rope_theta"
        if path.endswith(within) and leaves.get(outer, value) != value:
            raise ConfigError(
                f"config.json: {outer} is {leaves[outer]!r:.40}, {path} is {value!r:.40}; one rope "
                "has one base: remove the wrong one"
            )


def every_key(raw: Mapping[str, Any]) -> dict[str, None]:
    """A reference that reads all keys of a config.json."""
    return dict.fromkeys(path for path, _ in _leaves(raw, {}))


def _leaves(
    hf: Mapping[str, Any], reference: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Key and value, those of sub-configs and ropes with dots; without nulls and empty objects."""
    for key, value in hf.items():
        path = f"{prefix}{key}"
        within = _of_rope(path) is not None  # a rope by kind of layer
        deeper = key in _ROPES or within or (key.endswith("_config") and path not in reference)
        deeper = deeper or ":" in path
        if isinstance(value, Mapping) and deeper and not _has_no_effect(path):
            yield from _leaves(value, reference, _below(path))
        elif value is not None and value != {}:
            yield path, value


def _of_rope(path: str) -> str | None:
    """The key within a rope, "full_attention.factor"; None for other keys."""
    parts = path.split(".")
    at = next((i for i, part in enumerate(parts) if part in _ROPES), len(parts))
    return ".".join(parts[at + 1 :]) or None


def _canonical(path: str) -> set[str]:
    """The names that a key has in a normalized config; in documents beside it, those of the
    objects around it too."""
    if ":" in path:
        document, _, key = path.partition(":")
        parts = key.split(".")
        names = {f"{document}:{'.'.join(parts[: i + 1])}" for i in range(len(parts))}
        # The one file of older folders.
        other = {"features": "preprocessor", "preprocessor": "features"}.get(document)
        return names | ({f"{other}:{key}"} if other else set())
    path = path.removeprefix("text_config.")
    first, _, rest = path.partition(".")
    if first not in _ROPES:
        return {path}
    if rest == "type" or rest.endswith(".type"):  # before it was called so
        rest = rest.removesuffix("type") + "rope_type"
    return {path, rest, *(f"{rope}.{rest}" for rope in _ROPES)}


def _has_no_effect(path: str) -> bool:
    if ":" in path:
        return False
    key = path.rpartition(".")[2]
    return any(fnmatchcase(key, pattern) for pattern in WITHOUT_EFFECT) or (
        _of_rope(path) is not None and key in _OF_ROPE
    )


def _default(path: str, reference: Mapping[str, Any]) -> Any:
    """The default of a key; of one within a rope that of the key outside it."""
    key = path.rpartition(".")[2]
    if (within := _of_rope(path)) is not None:
        outer = path.removesuffix(within).removesuffix(".").rpartition(".")[0]
        path = f"{outer}.{key}" if outer else key
    return _USUAL.get(key) if reference.get(path) is None else reference[path]


def _fixed(declared: type[Config]) -> dict[str, Any]:
    """The fixed values of a class and those that it inherits from."""
    values: dict[str, Any] = {}
    for cls in reversed(declared.__mro__):
        values |= vars(cls).get("fixed", {})
    return values

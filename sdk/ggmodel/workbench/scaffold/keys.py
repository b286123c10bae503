"""How an architecture's hyperparameters fit a config.json: what is read, missing, and left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ...errors import Error
from ...gguf_file.metadata import KeyValues
from ...model import Model, config_class
from ...model.config import Config, key_fields
from ...model.fields import MISSING
from ...model.source_code import declared
from .llama_names import KEYS, VISION_KEYS
from .source import quoted, usable

# Keys about training, sampling, tokens and saving, which no architecture computes with.
_WITHOUT_EFFECT = (
    "architectures", "model_type", "*dtype", "transformers_version", "*token_id*", "_*", "is_*",
    "auto_map", "use_cache", "initializer_*", "*dropout*", "*_pdrop", "pretraining_tp", "output_*",
    "return_*", "id2label", "label2id", "problem_type", "*attn_implementation", "type",
    "quantization_config", "rope_type", "chunk_size_feed_forward", "tie_word_embeddings",
    "vocab_size", "use_return_dict", "*_aux_loss_coef", "router_jitter_noise", "torchscript",
    "cross_attention_hidden_size", "cache_implementation", "add_cross_attention",
    "tie_encoder_decoder", "attention_bias", "mlp_bias", "conv_bias",  # the tensors tell
)  # fmt: skip
_WINDOWS = {"sliding_attention", "full_attention"}
_PLACEHOLDERS: Mapping[type, Any] = {bool: False, int: 1, float: 1.0, str: "", list: [1]}
# Norms differ in kind, and so does the key of their epsilon.
_EPS = {
    "attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon",
    "attention.layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
}


class Reads(dict[str, Any]):
    """A config that records the paths of the keys that are read."""

    def __init__(self, config: Mapping[str, Any], prefix: str = "", asked: set[str] | None = None):
        self.asked: set[str] = set() if asked is None else asked
        self._prefix = prefix
        super().__init__(
            (k, Reads(v, f"{prefix}{k}.", self.asked) if isinstance(v, Mapping) else v)
            for k, v in config.items()
        )

    def __contains__(self, key: object) -> bool:
        self.asked.add(f"{self._prefix}{key}")
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(f"{self._prefix}{key}")
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(f"{self._prefix}{key}")
        return super().get(key, default)


@dataclass
class Hyperparameters:
    """How a declaration fits a config.json.

    Attributes:
        config: the hyperparameters; those that are missing have placeholders.
        unread: path of a key that nothing reads → its value.
        given: names of hyperparameters that the config gives.
        missing: names of those that it does not, and that are required.
        failed: why hyperparameters cannot be computed from the config.
    """

    config: Any
    unread: dict[str, Any] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, architecture: type[Model], given: Mapping[str, Any]) -> Hyperparameters:
        """
        Raises:
            ConfigError: the declaration is wrong, or a sub-config is no object.
        """
        from ...convert.from_hf import normalize

        reads = Reads(normalize(given))
        kind = config_class(architecture)
        metadata: dict[str, Any] = {"general.architecture": architecture.architecture}
        result = cls(None)
        for name, tag, value_kind, optional in key_fields(kind):
            key = f"{architecture.architecture}.{tag.names[0]}"
            try:
                found = kind.published(name, reads)
            except Error as error:
                result.failed.append(_reason(error))
                found = None
            if found is not None:
                result.given.add(name)
            elif tag.default is MISSING and not optional and key not in metadata:
                result.missing.append(name)
                found = _PLACEHOLDERS[value_kind]
            if found is not None:
                metadata[key] = found
        result.config = kind.read(KeyValues(metadata, "config.json"))
        result.unread = dict(_unread(reads, reads.asked))
        return result


def _reason(error: Error) -> str:
    cause = error.__cause__ if isinstance(error.__cause__, Error) else error
    return str(cause).partition("\n")[0]


def _unread(
    reads: Mapping[str, Any], asked: set[str], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Keys that were not asked for, with their values; those of `text_config` are at the top."""
    for key, value in reads.items():
        path = f"{prefix}{key}"
        if path == "text_config" or any(fnmatchcase(key, p) for p in _WITHOUT_EFFECT):
            continue
        if isinstance(value, Mapping):
            yield from _unread(value, asked, f"{path}.")
        elif path not in asked and value is not None and not _is_usual(key, value):
            yield path, value


def _is_usual(key: str, value: Any) -> bool:
    return value == [] or (key == "layer_types" and set(map(str, value)) == {"full_attention"})


@dataclass(frozen=True)
class KnownKey:
    """A hyperparameter of an architecture: its name, and its key in files."""

    field: str
    gguf: str


def learn_keys(architectures: Iterable[type[Model]]) -> dict[str, KnownKey]:
    """Key of config.json → its hyperparameter in most architectures."""
    votes: dict[str, Counter[KnownKey]] = {}
    for architecture in architectures:
        for name, tag, _, _ in key_fields(config_class(architecture)):
            for hf in tag.hf:
                if isinstance(hf, str):
                    votes.setdefault(hf, Counter())[KnownKey(name, tag.names[0])] += 1
    return {hf: count.most_common(1)[0][0] for hf, count in votes.items()}


def propose_keys(
    fit: Hyperparameters, config: type[Config], known: Mapping[str, KnownKey]
) -> dict[str, tuple[str, str]]:
    """A hyperparameter for each key that nothing reads: its name → the key, its line. One for a key
    of files that a field of the template has takes the place of that field.

    Args:
        config: the class of the template's hyperparameters.
    """
    taken = {*declared(config), *dir(config)}
    free = {t.names[0]: n for n, t, _, _ in key_fields(config) if n not in fit.given}
    free |= {_EPS[t]: free[t] for t in _EPS.keys() & free.keys()}
    lines: dict[str, tuple[str, str]] = {}
    for path, value in fit.unread.items():
        kind = type(value)
        if kind not in _PLACEHOLDERS or not path.replace(".", "_").isidentifier():
            continue
        name, names = _names(path, value, known)
        like = free.get(names[0])
        name = usable(name, taken) if like is None or like in lines else like
        taken.add(name)
        in_files = ", ".join(map(quoted, names))
        source = quoted(path)
        if path == "layer_types" and _WINDOWS.issuperset(map(str, value)):
            source = "nn.sliding_layers"
        lines[name] = path, f"{name}: {kind.__name__} = kv({in_files}, hf={source})"
    return lines


def _names(path: str, value: Any, known: Mapping[str, KnownKey]) -> tuple[str, tuple[str, ...]]:
    """A name for the hyperparameter of a key, and its keys in files."""
    above, _, key = path.rpartition(".")
    if path == "layer_types" and _WINDOWS.issuperset(map(str, value)):
        return "pattern", ("attention.sliding_window_pattern",)
    if above == "vision_config":
        name, own = VISION_KEYS.get(key, (f"vision_{key}", key))
        return name, (f"vision.{own}", f"clip.vision.{own}")
    if path in known:
        return known[path].field, (known[path].gguf,)
    if above and path not in KEYS:
        part = above.removesuffix("_config")
        return f"{part.replace('.', '_')}_{key}", (f"{part}.{key}",)
    return key, (KEYS.get(path, key),)

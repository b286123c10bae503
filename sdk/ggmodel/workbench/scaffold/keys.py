"""How an architecture's hyperparameters fit a config.json: what is read, missing, and left over."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import Error
from ...gguf_file.metadata import KeyValues
from ...model import Model, config_class
from ...model.config import Config, descend, key_fields
from ...model.fields import MISSING
from ...model.source_code import author_code, declared
from .llama_names import KEYS, VISION_KEYS
from .source import quoted, usable

_WINDOWS = {"sliding_attention", "full_attention"}
_PLACEHOLDERS: Mapping[type, Any] = {bool: False, int: 1, float: 1.0, str: "", list: [1]}
# Norms differ in kind, and so does the key of their epsilon.
_EPS = {
    "attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon",
    "attention.layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
}


@dataclass
class Hyperparameters:
    """How a declaration fits a config.json.

    Attributes:
        config: the hyperparameters; those that are missing have placeholders.
        unread: key that nothing reads, as `hf=` names it → its value.
        given: names of hyperparameters that the config gives.
        missing: names of those that it does not, and that are required.
        failed: names of those that cannot be computed from the config → the reason.
    """

    config: Any
    unread: dict[str, Any] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, architecture: type[Model], given: Mapping[str, Any]) -> Hyperparameters:
        """
        Raises:
            Error: the declaration is wrong, or the config is none.
        """
        from ...convert.from_hf import normalize
        from ...convert.keys import Watched, every_key, recorded, unread_keys, with_defaults

        hf = with_defaults(architecture, given, normalize(given), recorded(given))
        reads, kind = Watched(hf), config_class(architecture)
        metadata: dict[str, Any] = {"general.architecture": architecture.architecture}
        result = cls(None)
        for name, tag, value_kind, optional in key_fields(kind):
            key = f"{architecture.architecture}.{tag.names[0]}"
            watched, found = Watched(hf), None
            try:
                found = kind.published(name, watched)
            except Error as error:
                result.failed[name] = str(error).partition("\n")[0]
            else:
                reads.seen |= watched.seen
            if found is not None:
                result.given.add(name)
            elif tag.default is MISSING and not optional and key not in metadata:
                result.missing.append(name)
                found = _PLACEHOLDERS[value_kind]
            if found is not None:
                metadata[key] = found
        result.config = kind.read(KeyValues(metadata, "config.json"))
        with author_code(f"config.json does not fit {architecture.architecture!r}", None):
            unread = unread_keys(architecture, given, reads, every_key(given))
        result.unread = {_as_read(path): descend(given, path) for path in unread}
        return result


def _as_read(path: str) -> str:
    """The name of a key of config.json in its one spelling, as `hf=` takes it."""
    path = path.removeprefix("text_config.")
    return re.sub(r"^rope_parameters\.(?!\w+_attention\.)", "rope_scaling.", path)


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
    of files that a field of the template has takes the place of that field. A key that counts twice
    gets none: named, it would be taken for computed, and its refusal would go.

    Args:
        config: the class of the template's hyperparameters.
    """
    from ...convert.keys import TWICE  # slow

    taken = {*declared(config), *dir(config)}
    free = {t.names[0]: n for n, t, _, _ in key_fields(config) if n not in fit.given}
    free |= {_EPS[t]: free[t] for t in _EPS.keys() & free.keys()}
    lines: dict[str, tuple[str, str]] = {}
    for path, value in fit.unread.items():
        kind = type(value)
        if path.rpartition(".")[2] == TWICE:
            continue
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
        return name, (f"vision.{own}",)
    if path in known:
        return known[path].field, (known[path].gguf,)
    if above and path not in KEYS:
        part = above.replace("_config", "")
        return f"{part.replace('.', '_')}_{key}", (f"{part}.{key}",)
    return key, (KEYS.get(path, key),)

"""The fit of known architectures to a checkpoint: hyperparameters and tensors, the best one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import Error
from ...gguf_file.values import KeyValues
from ...model import LoadReport, Model, Module, config_class, find
from ...model.config import Config, descend, key_fields
from ...model.module import MISSING, module_fields
from ...model.source_code import author_code, declared
from . import blocks
from .source import quoted, usable
from .translate import KEYS, ROTATED, VISION_KEYS, Translation, translate

_WINDOWS = {"sliding_attention", "full_attention"}
_PLACEHOLDERS: Mapping[type, Any] = {bool: False, int: 1, float: 1.0, str: "", list: [1]}
_PART_OF_HEAD = (
    'lambda hf: int(hf.get("head_dim", hf["hidden_size"] // hf["num_attention_heads"]) * hf[%s])'
)
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
        present: names of hyperparameters that the config gives.
        missing: names of those that it does not, and that are required.
        failed: names of those that cannot be computed from the config → the reason.
    """

    config: Any
    unread: dict[str, Any] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, architecture: type[Model], hf_config: Mapping[str, Any]) -> Hyperparameters:
        """
        Raises:
            Error: the declaration is wrong, or the config is none.
        """
        from ...convert.from_hf import normalize
        from ...convert.keys import Watched, every_key, recorded, unread_keys, with_defaults

        hf = with_defaults(architecture, hf_config, normalize(hf_config), recorded(hf_config))
        reads, kind = Watched(hf), config_class(architecture)
        metadata: dict[str, Any] = {"general.architecture": architecture.architecture}
        result = cls(None)
        for name, tag, value_kind, optional in key_fields(kind):
            key = f"{architecture.architecture}.{tag.names[0]}"
            watched, value = Watched(hf), None
            try:
                value = kind.published(name, watched)
            except Error as error:
                result.failed[name] = str(error).partition("\n")[0]
            else:
                reads.looked_up |= watched.looked_up
            if value is not None:
                result.present.add(name)
            elif tag.default is MISSING and not optional and key not in metadata:
                result.missing.append(name)
                value = _PLACEHOLDERS[value_kind]
                if tag.least is not None and value_kind is not list:
                    value = max(value, tag.least)
            if value is not None:
                metadata[key] = value
        with author_code(f"config.json does not fit {architecture.architecture!r}", None):
            unread = unread_keys(architecture, hf_config, reads, every_key(hf_config))
        result.unread = {_as_read(path): descend(hf_config, path) for path in unread}
        for name, tag, value_kind, _ in key_fields(kind):  # under another name in config.json
            paths = (path for path in result.unread if KEYS.get(path) == tag.names[0])
            value = result.unread.get(next(paths, ""))
            if name not in result.present and isinstance(value, value_kind):
                metadata[f"{architecture.architecture}.{tag.names[0]}"] = value
        result.config = kind.read(KeyValues(metadata, "config.json"))
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
    fit: Hyperparameters, config: type[Config], known_keys: Mapping[str, KnownKey]
) -> dict[str, tuple[str, str]]:
    """A hyperparameter for each key that nothing reads: its name → the key, its line. One for a key
    of files that a field of the template has takes the place of that field. A key that counts twice
    gets none: named, it would be taken for computed, and its refusal would go.

    Args:
        config: the class of the template's hyperparameters.
    """
    from ...convert.keys import TWICE  # slow

    taken = {*declared(config), *dir(config)}
    free = {t.names[0]: n for n, t, _, _ in key_fields(config) if n not in fit.present}
    free |= {_EPS[t]: free[t] for t in _EPS.keys() & free.keys()}
    lines: dict[str, tuple[str, str]] = {}
    for path, value in fit.unread.items():
        kind = type(value)
        if path.rpartition(".")[2] == TWICE:
            continue
        if kind not in _PLACEHOLDERS or not path.replace(".", "_").isidentifier():
            continue
        name, names = _names(path, value, known_keys)
        source = quoted(path)
        if names[0] == ROTATED:
            name = "rope_dims"  # which `nn.Rotary` reads
            if kind is float:
                source = _PART_OF_HEAD % quoted(path.rpartition(".")[2])
            kind = int
        else:
            like = free.get(names[0])
            name = usable(name, taken) if like is None or like in lines else like
        taken.add(name)
        in_files = ", ".join(map(quoted, names))
        if path == "layer_types" and _WINDOWS.issuperset(map(str, value)):
            source = "nn.sliding_layers"
        lines[name] = path, f"{name}: {kind.__name__} = kv({in_files}, hf={source})"
    return lines


def _names(
    path: str, value: Any, known_keys: Mapping[str, KnownKey]
) -> tuple[str, tuple[str, ...]]:
    """A name for the hyperparameter of a key, and its keys in files."""
    above, _, key = path.rpartition(".")
    if path == "layer_types" and _WINDOWS.issuperset(map(str, value)):
        return "pattern", ("attention.sliding_window_pattern",)
    if above == "vision_config":
        name, own = VISION_KEYS.get(key, (f"vision_{key}", key))
        return name, (f"vision.{own}",)
    if path in known_keys:
        return known_keys[path].field, (known_keys[path].gguf,)
    if above and path not in KEYS:
        part = above.replace("_config", "")
        return f"{part.replace('.', '_')}_{key}", (f"{part}.{key}",)
    return key, (KEYS.get(path, key),)


@dataclass
class Fit:
    """The fit of an architecture's declaration to a checkpoint, whose tensors are called as the
    declaration expects them.

    Attributes:
        named: the config names it.
        blocks: how many it has otherwise than the checkpoint.
        read: names of tensors that fields read.
        owners: name of a module → its class in the declaration.
        translation: from the checkpoint's names.
        hyperparameters: how the declaration fits config.json.
    """

    cls: type[Model]
    config: Any
    named: bool
    blocks: int
    read: set[str]
    report: LoadReport
    owners: dict[str, type[Module]]
    translation: Translation
    hyperparameters: Hyperparameters

    @property
    def score(self) -> tuple[bool, bool, int, int, int, bool, bool, int]:
        # An embedding variant that fits equally well is a worse template. llama is the default.
        default = self.cls.architecture == "llama"
        usual = bool(self.read) or default
        more = len(self.read) - len(self.report.missing)
        keys = self.hyperparameters
        unread = sum("_config." not in path for path in keys.unread)  # towers show in tensors
        misfits = unread + len(keys.missing) + len(keys.failed)
        corrected = len(self.translation.corrections)
        head = "head" in module_fields(self.cls)
        # The simpler one of two alike; heads for whole texts make neither less simple.
        tags = (tag for _, tag, *_ in key_fields(config_class(self.cls)))
        needless = sum(not tag.names[0].startswith(_HEADS) for tag in tags)
        more_than = -self.blocks - misfits, more, -corrected, head, default, -needless
        return usual, self.named, *more_than


_HEADS = ("pooling_type", "classifier.")


def best_fit(
    name: str,
    hf_config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    names: list[str],
    models: str | Path | None,
) -> Fit:
    """The best of some architectures for a new one.

    Raises:
        Error: none can be tried; the last one's.
    """
    fits, errors, kinds = [], [], blocks.of_checkpoint(shapes, name)
    for template in names:
        try:
            fits.append(_fit(name, find(template, models), hf_config, shapes, kinds))
        except Error as error:
            errors.append(error)
    if not fits:
        raise errors[-1]
    return max(fits, key=lambda fit: fit.score)


def _fit(
    name: str,
    cls: type[Model],
    hf_config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    kinds: set[str],
) -> Fit:
    from ...convert.declaration import plan

    keys = Hyperparameters.of(cls, hf_config)
    translation = translate(cls, name, shapes)
    planned = plan(cls, keys.config, translation.names)
    read = {source for entry in planned.entries for source in entry.sources}
    owners = {pair.name: pair.module for pair in planned.pairs}
    named = listed_class(hf_config) in cls.hf_architectures
    apart = blocks.differences(cls, kinds)
    return Fit(cls, keys.config, named, apart, read, planned.report, owners, translation, keys)


def listed_class(hf_config: Mapping[str, Any]) -> str | None:
    """The class that a config names, if it names one."""
    listed = hf_config.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, str) and first.isidentifier() else None

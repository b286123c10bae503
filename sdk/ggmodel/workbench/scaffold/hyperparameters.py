"""Hyperparameters of a new architecture for the keys of a config.json."""

from __future__ import annotations

from collections.abc import Mapping

from ...model import config_class
from ...model.config import key_fields
from ...model.fields import MISSING
from .files import OTHERWISE, UNREAD, Files
from .keys import KnownKey, propose_keys
from .source import field_text, quoted, with_field, with_fields


def add_keys(files: Files, known: Mapping[str, KnownKey], widths: dict[str, int]) -> list[str]:
    """Adds hyperparameters for keys that the template does not read, and gives their lines.

    Args:
        widths: of the hyperparameters, to which those of the new ones are added.
    """
    from ...convert.keys import TWICE, TWICE_SAID  # slow

    config = f"{files.own}Config"
    files.left += [
        f"{config}: {key} is {value!r:.60}, and checkpoints with it are refused{TWICE_SAID}"
        for key, value in files.fit.hyperparameters.unread.items()
        if key.rpartition(".")[2] == TWICE
    ]
    lines = propose_keys(files.fit.hyperparameters, config_class(files.fit.cls), known)
    added = [line for _, line in lines.values()]
    for name, (key, _) in lines.items():
        value = files.fit.hyperparameters.unread[key]
        if isinstance(value, int) and not isinstance(value, bool):
            widths[name] = value
    path = files.file_of(config)
    if path is None:
        return added
    text, new = _without_failed(files, files.sources[path], config, added), list[str]()
    for name, (_, line) in lines.items():
        if field_text(text, config, name)[0] is None:
            new.append(line)
        else:
            text = with_field(text, config, name, line, "")
    files.sources[path] = with_fields(text, {config: new}, UNREAD) if new else text
    return added


def _without_failed(files: Files, text: str, config: str, added: list[str]) -> str:
    """The file without the `hf=` of hyperparameters that this config.json cannot give."""
    for name, tag, kind, _ in key_fields(config_class(files.fit.cls)):
        reason = files.fit.hyperparameters.failed.get(name)
        if reason is None:
            continue
        files.left.append(f"{config}.{name}: {reason}")
        plain = not callable(tag.default) and tag.default is not MISSING
        if plain and not any(line.startswith(f"{name}:") for line in added):
            names = ", ".join(map(quoted, tag.names))
            line = f"{name}: {kind.__name__} = kv({names}, default={tag.default!r})"
            text = with_field(text, config, name, line, OTHERWISE)
    return text

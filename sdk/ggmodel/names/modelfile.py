"""Modelfiles: what a model of Ollama is made of, as text. `FROM` names its files or another model,
other commands its template, system message, options, licences and conversation."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..runner.loading.resolved import ResolvedModel
from .grammar import is_path
from .layers import DerivedModel, add_file
from .ollama import (
    OWN_STORE,
    STORE,
    Layers,
    Ollama,
    blob_of,
    conversation_of,
    parameters_of,
    text_of,
)
from .resolver import find


@dataclass(frozen=True)
class Modelfile:
    """The content of a Modelfile.

    Attributes:
        bases: paths of GGUF files, with a projector the last; or a name.
        adapters: paths of LoRA adapters.
        template: in Go's language; "" for the one in the GGUF file.
        parameters: options as Ollama calls them; a list for several values.
        messages: dicts with role and content.
        ignored: commands that have no effect here.
        parent: the name of the model that it was made from; "" where that is unknown.
        stored: whether a store of Ollama's form has all of this.
    """

    bases: Sequence[str] = ()
    adapters: Sequence[str] = ()
    template: str = ""
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    licenses: Sequence[str] = ()
    messages: Sequence[Mapping[str, str]] = ()
    ignored: Sequence[str] = ()
    parent: str = ""
    stored: bool = False

    @property
    def options(self) -> list[tuple[str, Any]]:
        """Names and values of the parameters, one for each value of a list."""
        listed = ((k, v if isinstance(v, list) else [v]) for k, v in self.parameters.items())
        return [(name, value) for name, values in listed for value in values]

    def __str__(self) -> str:
        lines = [f"FROM {base}" for base in self.bases]
        lines += [f"ADAPTER {_quoted(path)}" for path in self.adapters]
        texts = (("TEMPLATE", self.template), ("SYSTEM", self.system))
        lines += [f"{command} {_quoted(text)}" for command, text in texts if text]
        lines += [f"PARAMETER {name} {_quoted(_word(value))}" for name, value in self.options]
        lines += [f"LICENSE {_quoted(text)}" for text in self.licenses]
        lines += [f"MESSAGE {m['role']} {_quoted(m['content'])}" for m in self.messages]
        return "".join(f"{line}\n" for line in lines)


_ROLES = ("system", "user", "assistant")
_FIELDS = {"FROM": "bases", "ADAPTER": "adapters", "LICENSE": "licenses"}
_TEXTS = {"TEMPLATE": "template", "SYSTEM": "system"}
_IGNORED = ("RENDERER", "PARSER", "REQUIRES", "DRAFT")  # of Ollama's own engine
_COMMANDS = (*_FIELDS, *_TEXTS, "PARAMETER", "MESSAGE")


def read(text: str) -> Modelfile:
    """The content of a Modelfile. Values may be in quotes, or in three, and have several lines.

    Raises:
        ConfigError: a line is none of it (named), or FROM is missing.
    """
    found: dict[str, Any] = {"parameters": {}, "messages": []}
    for number, command, rest in _commands(text.removeprefix("\ufeff")):
        name, _, value = rest.partition(" ")
        if command in _FIELDS:
            found.setdefault(_FIELDS[command], []).append(_unquoted(rest))
        elif command in _TEXTS:
            found[_TEXTS[command]] = _unquoted(rest)
        elif command == "PARAMETER":
            word = _unquoted(value.strip())
            if name == "stop":
                found["parameters"].setdefault(name, []).append(word)
            else:
                found["parameters"][name] = _value(word)
        elif command == "MESSAGE" and name in _ROLES:
            found["messages"].append({"role": name, "content": _unquoted(value.strip())})
        elif command == "MESSAGE":
            raise ConfigError(f"line {number}: a message's role is one of {', '.join(_ROLES)}")
        elif command in _IGNORED:
            found.setdefault("ignored", []).append(command)
        else:
            raise ConfigError(
                f"line {number}: {command[:40]!r} is no command; one of {', '.join(_COMMANDS)} is"
            )
    if "bases" not in found:
        raise ConfigError("there is no FROM line; FROM names a model, or the path of a GGUF file")
    return Modelfile(**found)


def _commands(text: str) -> Iterator[tuple[int, str, str]]:
    """The number of the line, the command and what follows it, quotes included."""
    lines = enumerate(io.StringIO(text), 1)  # lines end with \n alone
    for number, line in lines:
        command, _, rest = line.strip().replace("\t", " ", 1).partition(" ")
        if not command or command.startswith("#"):
            continue
        command, rest = command.upper(), line.lstrip()[len(command) :].lstrip(" \t")
        first = rest.partition(" ")[2].lstrip() if command in ("PARAMETER", "MESSAGE") else rest
        mark = '"""' if first.startswith('"""') else '"' if first.startswith('"') else ""
        value = first
        while mark and not (value.rstrip().endswith(mark) and len(value.rstrip()) >= 2 * len(mark)):
            _, more = next(lines, (0, ""))
            if not more:
                raise ConfigError(
                    f"line {number}: the text of {command} has no end; close it with {mark}"
                )
            value, rest = value + more, rest + more
        yield number, command, rest.rstrip()


def _unquoted(text: str) -> str:
    mark = '"""' if text.startswith('"""') else '"' if text.startswith('"') else ""
    return text[len(mark) : -len(mark)] if mark else text


def _value(word: str) -> Any:
    """The number or truth value that a word stands for, else the word."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return {"true": True, "false": False}.get(word.lower(), word)


def _quoted(text: str) -> str:
    """A value as Ollama's parser takes it."""
    if text and text == text.strip() and "\n" not in text and not text.startswith('"'):
        return text
    mark = '"""' if '"' in text else '"'
    return f"{mark}{text}{mark}"


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def describe(model: ResolvedModel) -> Modelfile:
    """The parts of a model of this machine.

    Raises:
        FormatError: a layer of Ollama's store is not what it should be.
    """
    if model.store in (STORE, OWN_STORE) and (found := Ollama().layers(model.name)):
        return _of_layers(*found)
    files = [*(model.parts or [model.path]), *([model.mmproj] if model.mmproj else [])]
    return Modelfile([str(file.absolute()) for file in files])


def derived_model(made: Modelfile, folder: Path, quantize: str = "") -> DerivedModel:
    """The model that a Modelfile describes, to be created.

    Args:
        folder: which paths are relative to.
        quantize: as for `DerivedModel`.

    Raises:
        ConfigError: FROM names a model beside files. ModelNotFound: a file does not exist.
    """

    def blobs(paths: Sequence[str]) -> dict[str, str]:
        files = [folder / os.path.expanduser(path) for path in paths]
        return {f"{i:05}-{file.name}": add_file(file) for i, file in enumerate(files)}

    files: dict[str, str] = {}
    base: str | ResolvedModel = ""
    if len(made.bases) > 1:
        files = blobs(made.bases)
    else:
        path = folder / os.path.expanduser(made.bases[0])
        is_name = not (path.exists() or is_path(made.bases[0]))
        base = made.bases[0] if is_name else find(path)
    return DerivedModel(
        base=base,
        files=files,
        adapters=blobs(made.adapters),
        template=made.template,
        system=made.system,
        params=made.parameters,
        messages=made.messages,
        licenses=made.licenses,
        quantize=quantize,
    )


def _of_layers(root: Path, layers: Layers) -> Modelfile:
    def paths(*kinds: str) -> list[str]:
        return [str(blob_of(root, layer)) for layer in layers.of(*kinds)]

    def texts(*kinds: str) -> list[str]:
        return [text_of(root, layer) for layer in layers.of(*kinds)]

    return Modelfile(
        paths("model") + paths("projector"),
        paths("adapter"),
        "".join(texts("template", "prompt")[-1:]),
        "".join(texts("system")[-1:]),
        parameters_of(root, layers),
        texts("license"),
        conversation_of(root, layers),
        parent=next((layer.parent for layer in layers.models), ""),
        stored=True,
    )

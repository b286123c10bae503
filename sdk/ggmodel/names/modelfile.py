"""Modelfiles: what a model of Ollama is made of, as text. `FROM` names its files or another model,
other commands its template, system message, options, licences and conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..runner.loading.resolved import ResolvedModel
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


@dataclass(frozen=True)
class Modelfile:
    """The content of a Modelfile.

    Attributes:
        bases: paths of GGUF files, with a projector the last; or a name.
        adapters: paths of LoRA adapters.
        template: in Go's language; "" for the one in the GGUF file.
        parameters: options as Ollama calls them; a list for several values.
        messages: dicts with role and content.
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
        next((layer.parent for layer in layers.models), ""),
        stored=True,
    )

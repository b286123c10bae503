"""The table of architectures, made of what model files register."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from ggmodel import nn
from ggmodel.model import Model, VisionModel, find, supported

_HEAD = """# Supported architectures

`ggmodel` runs these: GGUF files by their `general.architecture`, Hugging Face folders by the
`architectures` of config.json. Another one is [a file of yours](new-architecture.md). [Every one is
compared with transformers](goldens.md); [quantisation types](quantise.md#quantisation-types) hold
for all.

| architecture | classes of checkpoints | takes beside text | file |
|---|---|---|---|
"""
_TAIL = """
A model whose text another program writes as a plain one, beside a projector, is known by the pair:

| text | projector | architecture |
|---|---|---|
"""


def pages() -> dict[str, str]:
    """Path in the site → Markdown."""
    rows, pairs = [], []
    for name in built_in():
        cls = find(name)
        classes = ", ".join(f"`{hf}`" for hf in cls.hf_architectures)
        file = cls.__module__.removeprefix("ggmodel.").replace(".", "/") + ".py"
        rows.append(f"| `{name}` | {classes} | {', '.join(takes(cls))} | [{file}](../{file}) |\n")
        pairs += [f"| `{text}` | `{kind}` | `{name}` |\n" for text, kind in cls.pairs.items()]
    return {"architectures.md": "".join([_HEAD, *rows, _TAIL, *pairs])}


def built_in() -> list[str]:
    """The architectures of ggmodel itself; this process may have registered others."""
    return [name for name in supported() if find(name).__module__.startswith("ggmodel.models.")]


def takes(cls: type[Model]) -> Iterator[str]:
    """The kinds of items beside text that models of a class may take."""
    if issubclass(cls, VisionModel):
        yield "pictures"
    if "audio" in "".join(inspect.getsource(c.modalities) for c in _declaring(cls)):
        yield "sounds"
    if issubclass(cls, nn.VideoVision):
        yield "videos"


def _declaring(cls: type[Model]) -> list[type[Model]]:
    return [c for c in cls.__mro__ if "modalities" in vars(c) and c is not Model]

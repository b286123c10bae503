"""A folder in which commands of the documents run as they stand: it has all files they name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ggmodel.convert.quantize import decode
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.ml import DType
from tests.audio.sounds import pcm
from tests.children import import_path
from tests.documents import ROOT
from tests.transcript.whispers import sound
from tests.workbench import autoencoders

ASSETS = ROOT / "examples" / "assets"
ARCHITECTURES = ROOT / "tests" / "runner" / "models"  # with the one of `MODEL`
LINKS = {
    "FILE": "stories.gguf",
    "FILE.gguf": "stories.gguf",
    "model.gguf": "stories.gguf",
    "qwen.gguf": "stories.gguf",
    "voxtral.gguf": "tones.gguf",
}
PERSON = {"type": "object", "properties": {"age": {"enum": [3, 4]}}, "required": ["age"]}
PERSON["additionalProperties"] = False
ASKED = {"model": "qwen", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
REQUEST = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": ASKED}
TEXTS = {
    "TEXT.txt": "Once upon a time, there was a little fox. He had a friend. " * 40,
    "hero.json": json.dumps(PERSON),
    "person.json": json.dumps(PERSON),
    "answer.lark": 'start: "yes" | "no"',
    "requests.jsonl": json.dumps(REQUEST) + "\n",
}
TEMPLATE = """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}
{%- for part in m.content %}{% if 'audio' in part.type %}<sound>{% elif part.type == 'video' %}
<video>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"""
PRELUDE = """set -e
ggmodel() { "$PYTHON" -m ggmodel "$@"; }
"""


def lay(folder: Path, write_gguf: Callable[..., Path], whisper: Path) -> Path:
    """Puts everything into a folder.

    Args:
        whisper: a tiny one that writes times.
    """
    (folder / "whisper.gguf").symlink_to(whisper)
    for name in ("speech.mp3", "speech.wav"):
        (folder / name).write_bytes(pcm(sound("short"), width=4))
    (folder / "examples").symlink_to(ROOT / "examples")
    for name, asset in LINKS.items():
        (folder / name).symlink_to(ASSETS / asset)
    (folder / "short").mkdir()
    (folder / "short" / "speech.mp3").write_bytes(pcm(sound("short")[:24], 1000))
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    frames = [Image.new("L", (2, 2), shade) for shade in (40, 200)]
    for name in ("clip.mp4", "clip.gif"):  # told apart by their content
        frames[0].save(folder / name, "GIF", save_all=True, append_images=frames[1:], duration=500)
    write_gguf(folder / "MODEL", _sensing())
    autoencoders.write(folder / "SAE")
    return folder


def _sensing() -> MemorySource:
    """The stories' model with two weights more, which sees, hears and watches."""
    random = np.random.default_rng(5)
    with open_gguf(ASSETS / "stories.gguf") as file:
        metadata = {k.replace("llama.", "sensor."): v for k, v in file.metadata.items()}
        metadata |= {"general.architecture": "sensor", "tokenizer.chat_template": TEMPLATE}
        tensors: dict[str, Any] = {
            name: (DType.F32, t.shape, decode(file.data(name), t.dtype, t.n_elements).tobytes())
            for name, t in file.tensors.items()
        }
        for name in ("s.rows.weight", "s.deep.weight"):
            tensors[name] = random.normal(size=(192, 12)).astype(np.float32)
        return MemorySource(metadata, tensors)


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a block of shell commands, without stores of models and without a terminal."""
    home = str(folder / "home")
    own = {"PYTHON": sys.executable, "PYTHONPATH": import_path(), "HOME": home}
    stores = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": home,
        "OLLAMA_MODELS": home,
        "XDG_CACHE_HOME": home,
        "XDG_DATA_HOME": home,
    }
    return subprocess.run(
        ["sh", "-c", PRELUDE + script],
        cwd=folder,
        env={**os.environ, **own, **stores},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )

"""Damaged Hugging Face folders, loaded; the model generates."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import ggmodel
from ggmodel.errors import Error
from tests.convert.folders import write_golden
from tests.fuzz import jsons
from tests.fuzz.damage import damaged
from tests.fuzz.fuzzer import Fuzzer, Note

_GOLDENS = {
    "llama": "plain_gqa", "qwen2": "tied", "qwen3": "experts", "mistral": "window", "phi3": "long",
    "olmo2": "plain", "gemma2": "published", "gemma3": "images", "llama4": "released",
    "mllama": "images", "gpt_oss": "released",
}  # fmt: skip
_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
_MESSAGES = [{"role": "user", "content": "AB"}]
_JSON = ".json"


@cache
def folders() -> list[dict[str, bytes]]:
    """A folder of each architecture, some with their weights in several files."""
    found = []
    for i, (architecture, case) in enumerate(_GOLDENS.items()):
        with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
            folder, _ = write_golden(Path(name), architecture, case, shards=1 + i % 3)
            files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        about = json.loads(files["tokenizer_config.json"])
        files["tokenizer_config.json"] = json.dumps(about | {"chat_template": _TEMPLATE}).encode()
        files["generation_config.json"] = b'{"eos_token_id": [1], "temperature": 0.7}'
        files["added_tokens.json"] = b'{"<s>": 0, "</s>": 1}'
        files["special_tokens_map.json"] = b'{"bos_token": "<s>", "eos_token": {"content": "</s>"}}'
        files["chat_template.jinja"] = _TEMPLATE.encode()
        found.append(files)
    return found


class Folders(Fuzzer):
    """One or two damaged files of a folder."""

    name = "folders"
    unit = "loaded"
    weight = 3.0
    patience = 60.0
    memory = 2 << 30

    def open(self) -> None:
        folders()

    def make(self, random: Random) -> dict[str, bytes]:
        files = dict(random.choice(folders()))
        for _ in range(random.choice([1, 1, 2])):
            # Text is damaged more often than weights, of which there are many bytes.
            names = sorted(files)
            name = random.choice([*names, *(n for n in names if n.endswith(_JSON))])
            files[name] = self._changed(random, name, files[name])
        if random.random() < 0.08:
            del files[random.choice(sorted(files))]
        if random.random() < 0.05:
            a, b = random.choice(sorted(files)), random.choice(sorted(files))
            files[a], files[b] = files[b], files[a]
        return files

    def _changed(self, random: Random, name: str, raw: bytes) -> bytes:
        if name.endswith(_JSON):
            with suppress(ValueError):
                return jsons.written(random, jsons.mutated(random, json.loads(raw)))
        if name.endswith(".safetensors") and random.random() < 0.8:
            return _weights(random, raw)
        return damaged(random, raw)

    def run(self, case: dict[str, bytes], note: Note) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        for name, raw in case.items():
            (self.folder / name).write_bytes(raw)
        options: dict[str, Any] = {"context_length": 48, "batch_size": 16, "threads": 1}
        with ggmodel.load(self.folder, **options) as model:
            self.counts["loaded"] += 1
            for ask in (
                lambda: model.generate([1, 2, 3], max_tokens=3, temperature=0),
                lambda: model.generate("AB < é", max_tokens=2),
                lambda: model.chat(_MESSAGES, max_tokens=2),
                lambda: model.detokenize(range(64)),
            ):
                with suppress(Error):
                    ask()
                    self.counts["answered"] += 1


def _weights(random: Random, raw: bytes) -> bytes:
    """Safetensors with another header, or another length of it."""
    size = int.from_bytes(raw[:8], "little")
    try:
        header = json.loads(raw[8 : 8 + size])
    except ValueError:  # damaged before
        return damaged(random, raw)
    text = jsons.written(random, jsons.mutated(random, header))
    length = len(text)
    if random.random() < 0.15:
        length = random.choice([0, length - 1, length + 1, len(raw), 2**31, 2**63, 2**64 - 1])
    return length.to_bytes(8, "little") + text + raw[8 + size :]

"""All kinds of requests to several models, for hours."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import ggmodel
from ggmodel import Grammar
from tests.fuzz.fuzzer import Fuzzer, Note, Wrong
from tests.fuzz.parent import ROOT
from tests.fuzz.requests import Requests

_ASSETS = ROOT / "examples" / "assets"
_SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}}
_KINDS = (
    "schedule",
    "schedule",
    "schedule",
    "chat",
    "schema",
    "picture",
    "embed",
    "logits",
    "load",
)


class Mixed(Fuzzer):
    """All kinds of requests; the same one gives the same answer each time."""

    name = "soak"
    unit = "requests"
    patience = 120.0
    memory = 4 << 30
    legal = ()

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._requests = Requests(folder)

    def open(self) -> None:
        self._requests.open()
        options: dict[str, Any] = {"context_length": 128, "threads": 1, "parallel": 2}
        self._stories = ggmodel.load(_ASSETS / "stories.gguf", **options)
        self._shapes = ggmodel.load(_ASSETS / "shapes.gguf", **options)
        self._known: dict[Any, Any] = {}

    def make(self, random: Random) -> dict[str, Any]:
        kind = random.choice(_KINDS)
        number = random.randrange(6)
        schedule = self._requests.make(random) if kind == "schedule" else None
        return {"kind": kind, "number": number, "schedule": schedule}

    def run(self, case: dict[str, Any], note: Note) -> None:
        if case["kind"] == "schedule":
            self._requests.run(case["schedule"], note)
            self.counts.update(self._requests.counts)
            self._requests.counts.clear()
            return
        answer = getattr(self, f"_{case['kind']}")(case["number"])
        self.counts["requests"] += 1
        if self._known.setdefault((case["kind"], case["number"]), answer) != answer:
            raise Wrong("another answer than before", case)

    def _chat(self, number: int) -> str:
        messages = [{"role": "user", "content": f"Tell me story {number}."}]
        return str(self._stories.chat(messages, max_tokens=12, temperature=0))

    def _schema(self, number: int) -> str:
        grammar = Grammar.json_schema({**_SCHEMA, "title": f"t{number}"})
        return str(self._stories.generate("It is", grammar=grammar, max_tokens=8, temperature=0))

    def _picture(self, number: int) -> str:
        image = _ASSETS / "scene.png"
        asked = f"what is in the picture{'?' * number}"
        return str(self._shapes.generate(asked, images=[image], max_tokens=6, temperature=0))

    def _embed(self, number: int) -> list[float]:
        return self._stories.embed(["fox " * (number + 1), "owl"])[0, :4].round(3).tolist()

    def _logits(self, number: int) -> int:
        return int(np.argmax(self._stories.logits("the fox " * (number + 1))[-1]))

    def _load(self, number: int) -> str:
        with ggmodel.load(_ASSETS / "stories.gguf", context_length=32 + number, threads=1) as model:
            return str(model.generate("Once", max_tokens=3, temperature=0))

    def close(self) -> None:
        self._requests.close()
        self._stories.close()
        self._shapes.close()

"""JSON schemas, regular expressions and grammars of strangers: compiled, and followed."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import ggmodel
from ggmodel import Grammar
from tests.fuzz import jsons
from tests.fuzz.fuzzer import Fuzzer, Note, Wrong

_STORIES = Path(__file__).resolve().parents[2] / "examples" / "assets" / "stories.gguf"
_SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "number"}}},
    {"type": "string", "pattern": "^[a-z]{2,5}-[0-9]+$"},
    {"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}], "minItems": 2},
    {"allOf": [{"type": "string", "pattern": "a.*"}, {"pattern": ".*b"}, {"minLength": 4}]},
    {"oneOf": [{"type": "integer", "multipleOf": 7}, {"format": "date-time", "type": "string"}]},
    {"type": "object", "properties": {"next": {"$ref": "#"}, "key": {"type": ["string", "null"]}}},
]  # fmt: skip
_REGEXES = [r"[a-z]+@[a-z]+\.(com|org)", r"(a|b){3,30}", r"\d{4}-\d\d", r"((x+x+)+y){2}", r"\p{L}+"]
_LARKS = [
    'start: "a" (b | "c")* \n b: /[0-9]+/ "," start',
    'start: expr\nexpr: term ("+" term)*\nterm: /[0-9]{1,4}/ | "(" expr ")"\n%ignore / /',
    'start: %json {"type": "object", "properties": {"a": {"type": "integer"}}}',
]
_SYMBOLS = ["(", ")", "*", "+", "{9}", "{1,900}", "|", "[", "]", "\\", ".", "?", "^", "$", "a", '"']


class Schemas(Fuzzer):
    """A grammar, and an answer of a few tokens that has to obey it."""

    name = "schemas"
    unit = "followed"
    weight = 2.0
    patience = 20.0
    memory = 1 << 30

    def open(self) -> None:
        self._model = ggmodel.load(_STORIES, context_length=64, threads=1)

    def make(self, random: Random) -> dict[str, str]:
        kind = random.choice(["schema", "schema", "schema", "regex", "lark", "choice"])
        if kind == "schema":
            text = json.dumps(jsons.mutated(random, random.choice(_SCHEMAS), times=4))
        elif kind == "choice":
            words = ["yes", "no", "a" * random.randrange(300), "é", "\0", "", '"', "\\"]
            chosen = random.choices(words, k=random.choice([1, 3, 500]))
            text = json.dumps([w + "x" * random.randrange(4) for w in chosen])
        else:
            text = random.choice(_REGEXES if kind == "regex" else _LARKS)
            for _ in range(random.randint(0, 4)):
                at = random.randrange(len(text) + 1)
                cut = at + random.choice([0, 0, 1, 3])
                text = text[:at] + random.choice(_SYMBOLS) + text[cut:]
        return {"kind": kind, "text": text}

    def run(self, case: dict[str, str], note: Note) -> None:
        kind, text = case["kind"], case["text"]
        note(f"{kind} {text[:500]}")
        if kind == "schema":
            grammar = Grammar.json_schema(text)
        elif kind == "regex":
            grammar = Grammar.regex(text)
        elif kind == "lark":
            grammar = Grammar.lark(text)
        else:
            grammar = Grammar.choice(json.loads(text))
        answer = self._model.generate("It is", grammar=grammar, max_tokens=24, temperature=0)
        self.counts["followed"] += 1
        if answer.finish_reason == "stop" and kind == "schema":
            try:
                json.loads(str(answer))
            except ValueError:
                raise Wrong("an answer that is no JSON", text, str(answer)) from None
        if (
            answer.finish_reason == "stop"
            and kind == "choice"
            and str(answer) not in json.loads(text)
        ):
            raise Wrong("an answer that is none of the choices", text, str(answer))

    def close(self) -> None:
        self._model.close()


def _check(kind: str, text: str, answer: str) -> None:
    if kind == "schema":
        try:
            json.loads(answer)
        except ValueError:
            raise Wrong("an answer that is no JSON", text, answer) from None
    if kind == "choice" and answer not in json.loads(text):
        raise Wrong("an answer that is none of the choices", text, answer)

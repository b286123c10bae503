"""The chat templates that llama.cpp publishes: what transformers makes of them, and llama.cpp."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ggmodel.chat import ChatTemplate, sandbox
from ggmodel.errors import TemplateError

pytestmark = pytest.mark.timeout(1200)  # the first test downloads what it compares with

FIXTURES = Path(__file__).parents[1] / "fixtures"
REFERENCE = json.loads((FIXTURES / "chat-digests.json").read_text("utf-8"))
CASES: dict[str, dict[str, Any]] = REFERENCE["cases"]
DIGESTS: dict[str, dict[str, str | None]] = REFERENCE["digests"]

# Templates that fail, with transformers as well: why, and in which cases.
FAILING: dict[tuple[str, str], str] = {
    (name, case): why
    for names, cases, why in (
        ("google-gemma-2-2b-it", "system tools", "refuses these messages: System role not"),
        ("google-gemma-2-2b-it", "calls", "refuses these messages: Conversation roles must alter"),
        # Templates for tools only, which no conversation here would choose.
        (
            "CohereForAI-c4ai-command-r-plus-tool_use "
            "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use "
            "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
            "system plain reasoning history",
            "'NoneType' object is not iterable",
        ),
        # They change lists, print an iterator as JSON, and add a dict to a text.
        ("Kimi-K2-Instruct Kimi-K2-Thinking", "calls", "access to attribute 'append'"),
        ("llama-cpp-deepseek-r1", "tools calls", "is not JSON serializable"),
        ("meetkai-functionary-medium-v3.2", "calls", 'can only concatenate str (not "dict")'),
    )
    for name in names.split()
    for case in cases.split()
}


class Clock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.fromisoformat(REFERENCE["now"])


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "datetime", Clock)


def template(folder: Path, name: str) -> str:
    return (folder / "models" / "templates" / f"{name}.jinja").read_text("utf-8")


def test_every_published_template_is_compared(llama_cpp_dir: Path):
    published = (llama_cpp_dir / "models" / "templates").glob("*.jinja")
    assert sorted(path.stem for path in published) == sorted(DIGESTS)
    failing = {(n, case) for n, found in DIGESTS.items() for case in found if not found[case]}
    assert failing == set(FAILING)


@pytest.mark.parametrize("name", DIGESTS)
def test_texts_equal_those_of_transformers(llama_cpp_dir: Path, name: str):
    chat = ChatTemplate(template(llama_cpp_dir, name))
    for case, given in CASES.items():
        expected = DIGESTS[name][case]
        if expected is None:
            with pytest.raises(TemplateError, match=re.escape(FAILING[name, case])):
                chat.render(**given, **REFERENCE["variables"])
        else:
            text = chat.render(**given, **REFERENCE["variables"])
            assert hashlib.sha256(text.encode()).hexdigest() == expected, (case, text)


# In tests/test-chat-template.cpp: comments, raw strings, strings, names and what holds them.
TOKEN = re.compile(
    r'/\*.*?\*/|//[^\n]*|R"\((?P<raw>.*?)\)"|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<word>\w+)|(?P<mark>[{},])',
    re.DOTALL,
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}

# Templates that refuse system messages or leave them out: llama.cpp puts those into the user's.
WITHOUT_SYSTEM = {
    "mistralai/Mistral-7B-Instruct-v0.2 (NOTE: Old pre-v1 without a system prompt)",
    "google/gemma-7b-it",
    "OrionStarAI/Orion-14B-Chat",
    "Phi-3-mini",
    "Phi-3-medium",
    "yandex/YandexGPT-5-Lite-8B-instruct",
}


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text)


def literal(tokens: Iterator[re.Match[str]]) -> list[Any]:
    """Parses the text between braces: texts, words, and lists of these."""
    items: list[Any] = []
    current: Any = None
    for token in tokens:
        if token["mark"] == "{":
            current = literal(tokens)
        elif token["mark"]:
            if current is not None:
                items.append(current)
            current = None
            if token["mark"] == "}":
                break
        elif token["word"]:
            current = token["word"] if token["word"] in ("true", "false") else current
        elif token["text"] is not None or token["raw"] is not None:
            part = unescaped(token["text"]) if token["text"] is not None else token["raw"]
            current = (current or "") + part
    return items


def initializer(source: str, name: str) -> list[Any]:
    return literal(TOKEN.finditer(source, source.index(f"{name} {{") + len(name) + 2))


def messages(pairs: list[list[str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


def test_texts_equal_those_of_llama_cpp(llama_cpp_dir: Path):
    source = (llama_cpp_dir / "tests" / "test-chat-template.cpp").read_text("utf-8")
    system, user, *rest = messages(initializer(source, " conversation"))
    merged = {**user, "content": f"{system['content']}\n{user['content']}"}
    compared = 0
    for name, jinja, without_jinja, with_jinja, *more in initializer(source, " test_cases"):
        bos, eos, supported, extra = [*more, *["", "", "true", []][len(more) :]]
        if supported != "true":
            continue
        given = [merged] if name in WITHOUT_SYSTEM else [system, user]
        text = ChatTemplate(jinja).render(
            [*given, *rest, *messages(extra)], bos_token=bos, eos_token=eos
        )
        assert text == (with_jinja or without_jinja), name
        compared += 1
    assert compared == 35

"""Grammars by strangers: whatever they say, compiling them ends soon, and so does each token."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import ggmodel
from ggmodel.errors import GrammarError
from ggmodel.runner.requests import grammar_guards
from ggmodel.runner.requests.grammar import Grammar
from ggmodel.tokenizer import Tokenizer

DEADLINE = 30.0  # seconds; each of these took as long, gigabytes, or the process


def vocabulary(more: tuple[str, ...] = ()) -> Tokenizer:
    """The visible letters of ASCII, a space, and an end."""
    tokens = [*map(chr, range(33, 127)), "Ġ", *more, "<end>"]
    return Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        }
    )


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return vocabulary()


def pattern(n: int) -> str:
    return f"(a|b)*a(a|b){{{n}}}"


def texts(*patterns: str) -> list[dict]:
    return [{"type": "string", "pattern": pattern} for pattern in patterns]


MANY = texts(*map(pattern, range(1, 25)))
LATER = texts(*(f"^(a|x{pattern(n)})$" for n in range(1, 25)))  # costly once x has come
TOO_MANY = "too many patterns at once"
NESTED = "nested too deeply"

SCHEMAS: dict[str, tuple[dict, str]] = {
    "patterns": ({"allOf": MANY}, TOO_MANY),
    "patterns that show later": ({"allOf": LATER}, TOO_MANY),
    "patterns of a property": (
        {"allOf": [{"properties": {"a": part}} for part in MANY]},
        TOO_MANY,
    ),
    "patterns of other properties": (
        {"allOf": [{"additionalProperties": part} for part in MANY]},
        TOO_MANY,
    ),
    "patterns of properties by pattern": (
        {"allOf": [{"patternProperties": {f"^a{n}?": part}} for n, part in enumerate(MANY)]},
        TOO_MANY,
    ),
    "patterns of items": ({"allOf": [{"items": part} for part in MANY]}, TOO_MANY),
    "patterns of first items": (
        {"allOf": [{"prefixItems": [part]} for part in MANY]},
        TOO_MANY,
    ),
    "patterns by reference": (
        {"allOf": [{"$ref": f"#/$defs/{n}"} for n in range(24)]}
        | {"$defs": {str(n): part for n, part in enumerate(MANY)}},
        TOO_MANY,
    ),
    "patterns by name": (
        {
            "allOf": [{"$ref": f"#a{n}"} for n in range(24)],
            "$defs": {str(n): {"$anchor": f"a{n}", **part} for n, part in enumerate(MANY)},
        },
        TOO_MANY,
    ),
    "patterns in choices": ({"allOf": [{"anyOf": [part]} for part in LATER]}, TOO_MANY),
    "schemas that double": (
        {
            "$ref": "#/$defs/0",
            "$defs": {
                str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}, {"$ref": f"#/$defs/{n + 1}"}]}
                for n in range(40)
            },
        },
        "combines too many schemas|more than 2 seconds",
    ),
    "references in a row": (
        {
            "$ref": "#/$defs/0",
            "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(6000)}
            | {"6000": {"type": "null"}},
        },
        NESTED,
    ),
    "references in items": (
        {
            "$ref": "#/$defs/0",
            "$defs": {str(n): {"items": {"$ref": f"#/$defs/{n + 1}"}} for n in range(6000)}
            | {"6000": {"type": "null"}},
        },
        NESTED,
    ),
    "properties by pattern": (
        {"patternProperties": {f"^p{n}x[a-z]*$": {"type": "null"} for n in range(2000)}},
        "more than 2 seconds|limits.grammar_memory",
    ),
}
LARK = {
    "patterns": ("start: A\nA: " + " & ".join(f"/{pattern(n)}/" for n in range(1, 25)), TOO_MANY),
    "patterns by name": (
        "start: A24\nA0: /a/\n"
        + "\n".join(f"A{n}: A{n - 1} & /{pattern(n)}/" for n in range(1, 25)),
        TOO_MANY,
    ),
    "patterns in JSON": (f"start: %json {json.dumps({'allOf': MANY})}", TOO_MANY),
    "rules in a row": (
        "start: r0\n" + "\n".join(f'r{n}: r{n + 1} "a"' for n in range(12000)) + '\nr12000: "b"',
        NESTED,
    ),
    "terminals in a row": (
        "start: R0\n" + "\n".join(f'R{n}: R{n + 1} "a"' for n in range(12000)) + '\nR12000: "b"',
        NESTED,
    ),
    "rules in a row with a special token": (
        "start: <end> r0\n"
        + "\n".join(f'r{n}: r{n + 1} "a"' for n in range(12000))
        + '\nr12000: "b"',
        NESTED,
    ),
}


def refused(make: str, source: object, reason: str) -> None:
    before = time.monotonic()
    for _ in range(2):
        with pytest.raises(GrammarError, match=reason):
            getattr(Grammar, make)(source)
    assert time.monotonic() - before < DEADLINE


@pytest.mark.parametrize("name", SCHEMAS)
def test_costly_schemas_are_refused(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ggmodel.limits, "grammar_seconds", 2.0)
    schema, reason = SCHEMAS[name]
    refused("json_schema", schema, reason)


@pytest.mark.parametrize("name", LARK)
def test_costly_grammars_are_refused(name: str):
    refused("lark", *LARK[name])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[a-z@.]+$", "format": "email", "maxLength": 20},
        {"allOf": texts("^[a-z0-9]+$", "[a-f]", "^.{3,8}$")},
        {"anyOf": texts(*(f"^a{n}[a-z]*$" for n in range(50)))},
        {"properties": {str(n): part for n, part in enumerate(MANY)}},
        {"allOf": [{"properties": {str(n): part}} for n, part in enumerate(MANY)]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"pattern": "^a+$"}}},
        {
            "$id": "https://e.com/s",
            "properties": {f"p{n}": {"$ref": f"https://e.com/s#/$defs/{n}"} for n in range(24)},
            "$defs": {str(n): part for n, part in enumerate(MANY)},
        },
        {
            "properties": {"p": {"$ref": "#code"}},
            "$defs": {str(n): {"$anchor": f"code{n}", **part} for n, part in enumerate(MANY)}
            | {"code": {"$anchor": "code", "pattern": "^[a-z]+$"}},
        },
        {
            "$ref": "b",
            "$defs": {str(n): part for n, part in enumerate(MANY)}
            | {"b": {"$id": "b", "$ref": "#/$defs/c", "$defs": {"c": {"pattern": "^c+$"}}}},
        },
        *(
            {
                "type": "object",
                "oneOf": [
                    {
                        "properties": {"kind": {"const": f"k{n}"}, "id": {"pattern": f"^k{n}-"}},
                        "required": ["kind"],
                    }
                    for n in range(20)
                ],
                "anyOf": others,
            }
            for others in (
                [{"required": [name]} for name in "abcd"],
                [{"properties": {name: {"type": "string", "minLength": 1}}} for name in "abcd"],
            )
        ),
    ],
)
def test_ordinary_schemas_pass(tokenizer: Tokenizer, schema: dict):
    Grammar.json_schema(schema).begin(tokenizer)


@pytest.mark.slow
def test_time_and_memory_are_limits(monkeypatch: pytest.MonkeyPatch):
    grammar = "start: A\nA: " + " & ".join(f"/{pattern(n)}/" for n in range(1, 25))
    monkeypatch.setattr("ggmodel.runner.requests.grammar.check_lark", lambda text: None)
    monkeypatch.setattr(ggmodel.limits, "grammar_memory", 256 << 20)
    refused("lark", grammar, "limits.grammar_memory")
    monkeypatch.setattr(ggmodel.limits, "grammar_memory", 4 << 30)
    monkeypatch.setattr(ggmodel.limits, "grammar_seconds", 0.5)
    refused("lark", grammar, "limits.grammar_seconds")
    Grammar.lark('start: "a"')  # in a new process


def test_length_is_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ggmodel.limits, "grammar_characters", 100)
    for make, source in (
        ("json_schema", {"enum": ["a" * 100]}),
        ("json_schema", json.dumps({"enum": ["a" * 100]})),
        ("regex", "a" * 101),
        ("lark", 'start: "a"' + " " * 100),
        ("choice", ["a"] * 100),
    ):
        refused(make, source, "limits.grammar_characters")
    Grammar.json_schema({"enum": ["中" * 80]})  # characters count, whatever the escapes
    Grammar.choice(["中" * 90])


def test_a_failure_is_remembered(monkeypatch: pytest.MonkeyPatch):
    tried = []
    attempt = grammar_guards._Trials._try

    def noted(self: grammar_guards._Trials, *args: object) -> str:
        tried.append(args)
        return attempt(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(grammar_guards._Trials, "_try", noted)
    for _ in range(3):
        with pytest.raises(GrammarError, match="unclosed"):
            Grammar.regex("(remembered")
    assert len(tried) == 1


def test_a_grammar_that_the_vocabulary_cannot_spell_is_remembered(tokenizer: Tokenizer):
    grammar = Grammar.regex("é")
    messages = set()
    for _ in range(2):
        with pytest.raises(GrammarError) as caught:
            grammar.begin(tokenizer)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_without_a_process_small_grammars_work(monkeypatch: pytest.MonkeyPatch):
    def no_process(*args: object, **kwargs: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(grammar_guards._Trials, "_running", no_process)
    Grammar.regex("without a process")
    with pytest.raises(GrammarError, match="unclosed"):
        Grammar.regex("(without a process")


@pytest.mark.parametrize("kind", ["words", "prefixes"])
def test_a_choice_of_very_many_texts(tokenizer: Tokenizer, kind: str):
    words = [f"word{n}" for n in range(100_000)] if kind == "words" else None
    choices = words or ["a" * n for n in range(1, 3000)]
    before = time.monotonic()
    state = Grammar.choice(choices).begin(tokenizer)
    for letter in choices[1234]:
        token = tokenizer.id_of(letter)
        assert token is not None and state.allows(token) and state.mask(tokenizer.size)[token]
        state.accept(token)
    assert tokenizer.eos is not None and state.allows(tokenizer.eos)
    assert time.monotonic() - before < 60


@pytest.mark.parametrize("choices", [["", "a"], ["a", "ab", "abc"], ['"', "\\", "|", "/a/"]])
def test_choices_of_odd_texts(tokenizer: Tokenizer, choices: list[str]):
    grammar = Grammar.choice(choices)
    for text in choices:
        state = grammar.begin(tokenizer)
        for letter in text:
            token = tokenizer.id_of(letter)
            assert token is not None and state.allows(token)
            state.accept(token)
        assert state.finished or state.mask(tokenizer.size)[tokenizer.eos]


@pytest.mark.parametrize(
    ("make", "value"),
    [
        ("json_schema", None),
        ("json_schema", 5),
        ("json_schema", b"{}"),
        ("json_schema", ["a"]),
        ("regex", None),
        ("regex", b"a"),
        ("lark", {"start": "a"}),
        ("choice", None),
        ("choice", 5),
        ("choice", {"a": 1}),
        ("choice", [None]),
        ("choice", b"a"),
    ],
)
def test_values_of_other_types_are_refused(make: str, value: object):
    with pytest.raises(GrammarError):
        getattr(Grammar, make)(value)


@pytest.mark.parametrize("value", [None, 5, "a"])
def test_a_grammar_needs_a_tokenizer(value: object):
    with pytest.raises(ggmodel.errors.TokenizerError, match="needs a Tokenizer, not"):
        Grammar.choice(["a"]).begin(value)  # type: ignore[arg-type]


def test_a_grammar_too_complex_for_a_step_ends_one_request():
    stories = Path(__file__).parents[3] / "examples/assets/stories.gguf"
    complex = Grammar.regex("(b|[a-z ]((((a{1000}){1000}){1000}){1000}){1000})")
    with ggmodel.load(stories, threads=1, parallel=2) as model:
        other = model.stream("Once upon a time", max_tokens=20, seed=1)
        beginning = next(other)
        with pytest.raises(GrammarError, match="cannot go on"):
            model.generate("Once upon", grammar=complex, max_tokens=20, seed=1)
        rest = "".join(other)
        assert beginning + rest == model.generate("Once upon a time", max_tokens=20, seed=1)


def interruption(seconds: float) -> threading.Timer:
    """Ctrl-C, once it is started and the time is over."""
    return threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))


def test_ctrl_c_ends_a_trial(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ggmodel.runner.requests.grammar.check_lark", lambda text: None)
    Grammar.lark('start: "begin"')
    before = time.monotonic()
    timer = interruption(0.2)

    def compile_it() -> None:
        timer.start()
        Grammar.lark("start: A\nA: " + " & ".join(f"/c{pattern(n)}/" for n in range(1, 25)))

    with pytest.raises(KeyboardInterrupt):
        compile_it()
    timer.join()
    assert time.monotonic() - before < 5
    Grammar.lark('start: "end"')


def test_ctrl_c_is_never_lost(tokenizer: Tokenizer):
    # Each text is prescribed, so that llguidance asks the vocabulary, in Python, for its tokens.
    grammar = Grammar.choice(["abcdefghij" * 200])
    first = tokenizer.id_of("a")
    interrupted = 0
    for n in range(60):
        state = grammar.begin(tokenizer)
        timer = interruption(n % 20 * 0.0005)
        try:
            timer.start()
            for _ in range(100_000):
                assert state.mask(tokenizer.size)[first]
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        assert state.mask(tokenizer.size)[first]  # whole, and ready to go on
    assert interrupted == 60


def test_the_process_ends_with_its_parent():
    code = (
        "from ggmodel import Grammar; from ggmodel.runner.requests import grammar_guards as t;"
        "Grammar.regex('a+'); print(t._trials._process.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)

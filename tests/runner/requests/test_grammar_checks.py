"""Looking for joined patterns takes a time that grows with the grammar alone, and has an end."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import ggmodel
from ggmodel.errors import GrammarError
from ggmodel.runner.requests.grammar_guards import check_lark, check_schema

SECONDS = 5.0  # of the processor; each of these took longer, and takes tenths
PATTERNS = [{"pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(1, 25)]
TOO_MANY = "too many patterns at once"


def looked(check: Any, source: Any) -> str:
    """The reason against a grammar, found in time."""
    before, reason = time.thread_time(), ""
    try:
        check(source)
    except GrammarError as error:
        reason = str(error)
    assert time.thread_time() - before < SECONDS
    return reason


@pytest.fixture(autouse=True)
def without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the checks are quick by themselves."""
    monkeypatch.setattr(ggmodel.limits, "grammar_seconds", 600.0)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{n}": {"$ref": f"#x{n}"} for n in range(6000)}},
        {
            "allOf": [{"additionalProperties": {"pattern": "a" * 4_000_000}}],
            "properties": {f"p{n}": {"pattern": "a"} for n in range(300)},
        },
        {"allOf": [{"not": {}}] * 40_000},
    ],
    ids=["references to nowhere", "a long pattern", "many parts"],
)
def test_schemas_are_checked_in_time(schema: dict[str, Any]):
    assert not looked(check_schema, schema)


@pytest.mark.parametrize(
    "text",
    [
        'start: "' + '\\"' * 40_000,
        "start: /" + "\\/" * 40_000,
        "start: " + '"' * 400_000,
        "start: " + "</" * 100_000,
        "start: a\n" + "A" * 60_000,
        "%json [" * 100_000,
        "%json" + " " * 100_000,
    ],
    ids=["text", "pattern", "quotes", "token", "name", "schemas", "spaces"],
)
def test_grammars_are_checked_in_time(text: str):
    looked(check_lark, text)


@pytest.mark.parametrize(
    ("check", "source"),
    [
        (check_schema, {"properties": {f"p{n}": {"not": {}} for n in range(100_000)}}),
        (check_lark, "start: " + '"" ' * 100_000),
    ],
)
def test_a_check_has_a_limit(check: Any, source: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ggmodel.limits, "grammar_seconds", 0.02)
    assert "more than 0.02 seconds (limits.grammar_seconds)" in looked(check, source)


JOINED = {"allOf": [{"$ref": f"#/$defs/{n}"} for n in range(24)]}
DEFS = {"$defs": {str(n): part for n, part in enumerate(PATTERNS)}}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": f"https://e.com/s#/$defs/{n}"} for n in range(24)]}
        | {"$id": "https://e.com/s", **DEFS},
        {"$ref": "b", "$defs": {"b": {"$id": "b", **JOINED, **DEFS}, "0": {}}},
        {"allOf": [{"$ref": f"b{n}"} for n in range(24)]}
        | {"$defs": {str(n): {"$id": f"b{n}", **part} for n, part in enumerate(PATTERNS)}},
        {"$ref": "https://elsewhere.org/s", **DEFS},
        {"$ref": "#a", "examples": [{"$anchor": "a"}]}
        | {"$defs": {"a": {"$anchor": "a", **JOINED}, **DEFS["$defs"]}},
    ],
    ids=["whole names", "paths within a name", "names", "unknown names", "a name in an example"],
)
def test_patterns_are_found_by_reference(schema: dict[str, Any]):
    assert TOO_MANY in looked(check_schema, schema)


PARTS = " & ".join(f"/{part['pattern']}/" for part in PATTERNS)


@pytest.mark.parametrize(
    "text",
    [
        f'start: A </s>\nA: {PARTS} & /"/ // </s> "',
        f'start: <"> A <">\nA: {PARTS}',
        f'start: A\nA: /a\n"/ & {PARTS} & /"/',
        f"start: A %json {json.dumps('A & A')}\nA: {PARTS}",
        f'start: "%json [" %json {json.dumps({"allOf": PATTERNS})} "]"',
    ],
    ids=["a special token", "a quote in one", "two lines", "a JSON text", "a text like a schema"],
)
def test_joins_are_found_beside_literals(text: str):
    assert TOO_MANY in looked(check_lark, text)


def test_a_broken_schema_in_a_grammar_is_refused():
    assert "a schema in it is no JSON" in looked(check_lark, 'start: %json {"a" 1}')

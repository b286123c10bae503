"""Answers in a grammar: they obey it whatever the logits say, and end when it is complete."""

from __future__ import annotations

import gc
import json
import re
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel import LoadedModel, Sampler
from ggmodel.errors import Error, GrammarError, Unsupported
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.runner.requests.grammar import Grammar
from ggmodel.runner.sampling import Sampling
from ggmodel.tokenizer import Tokenizer

STORIES = Path(__file__).parents[3] / "examples/assets/stories.gguf"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colours": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}
PIECES = ["true", "false", '{"', '":', "ab", "ba", "12", ", ", "é", "日本"]


def byte_level() -> Tokenizer:
    """256 bytes, some longer pieces, two tokens that end, one that does not."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in visible]
    letters = {v: chr(v) for v in visible} | {v: chr(256 + i) for i, v in enumerate(hidden)}
    tokens = [letters[value] for value in range(256)]
    merges = []
    for piece in PIECES:
        spelled = [letters[value] for value in piece.encode()]
        for i in range(1, len(spelled)):
            if (joined := "".join(spelled[: i + 1])) not in tokens:
                merges.append(f"{''.join(spelled[:i])} {spelled[i]}")
                tokens.append(joined)
    special = ["<|end|>", "<|eot|>", "<|user|>"]
    return Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens + special,
            "tokenizer.ggml.token_type": [1] * len(tokens) + [3] * len(special),
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.eos_token_id": len(tokens),
            "tokenizer.ggml.eot_token_id": len(tokens) + 1,
        }
    )


def sentence_piece(byte_tokens: bool) -> Tokenizer:
    """Puts a space in front of every text; without byte tokens it knows few characters."""
    tokens, types = ["<unk>", "<s>", "</s>"], [2, 3, 3]
    if byte_tokens:
        tokens += [f"<0x{value:02X}>" for value in range(256)]
        types += [6] * 256
    pieces = ["▁", *'abcdefghijklmnopqrstuvwxy{}":,0123456789', "▁a", "ab", "▁ab", '":']
    return Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens + pieces,
            "tokenizer.ggml.token_type": types + [1] * len(pieces),
            "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens) + len(pieces))],
        }
    )


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level()


@pytest.fixture(scope="module")
def stories() -> Iterator[LoadedModel]:
    with ggmodel.load(STORIES, threads=1) as model:
        yield model


def written(
    grammar: Grammar, tokenizer: Tokenizer, rows: Iterator[np.ndarray], sampler: Sampler
) -> tuple[bytes, Sampling]:
    """The answer that a sampler draws from logits, at most 400 tokens."""
    sampling, answer = sampler.begin(constraint=grammar.begin(tokenizer)), b""
    for _ in range(400):
        if sampling.finished:
            break
        token = sampling.sample(next(rows))
        sampling.accept(token)
        if token in tokenizer.eog:
            break
        answer += tokenizer.token_bytes(token)
    return answer, sampling


def noise(seed: int, size: int, favourite: int | None = None) -> Iterator[np.ndarray]:
    random = np.random.default_rng(seed)
    while True:
        row = random.normal(0, 2, size).astype(np.float32)
        if favourite is not None:
            row[favourite] = 30
        yield row


def check_person(text: str) -> None:
    person = json.loads(text)
    assert list(person) == ["name", "age", "colours"]
    assert len(person["name"]) <= 12
    assert type(person["age"]) is int and 0 <= person["age"] <= 120
    assert len(person["colours"]) <= 2 and set(person["colours"]) <= {"red", "blue"}


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 1}, {"seed": 2, "top_k": 0}])
def test_a_model_writes_json(stories: LoadedModel, options: dict):
    assert stories.tokenizer is not None
    engine, prompt = stories.engine, stories.tokenize("Once upon a time")
    state = Grammar.json_schema(PERSON).begin(stories.tokenizer)
    sampling = Sampler(**options).begin(prompt, constraint=state)
    with Scoring(engine).sequence() as sequence:
        logits = Scoring(engine).extend(sequence, np.array(prompt, np.int32), 0)
        while not sampling.finished and len(sampling.history) < 250:
            token = sampling.sample(logits)
            assert token not in stories.tokenizer.eog
            sampling.accept(token)
            position = len(sampling.history) - 1
            logits = Scoring(engine).extend(sequence, np.array([token], np.int32), position)
    check_person(stories.detokenize(sampling.history[len(prompt) :]))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("temperature", [0, 1])
def test_noise_becomes_what_the_grammar_says(tokenizer, seed: int, temperature: float):
    sampler = Sampler(temperature, 0, 1.0, seed=seed)

    def text(grammar: Grammar) -> str:
        answer, sampling = written(grammar, tokenizer, noise(seed, tokenizer.size), sampler)
        assert sampling.finished or sampling.history[-1] in tokenizer.eog
        return answer.decode()

    check_person(text(Grammar.json_schema(PERSON)))
    check_person(text(Grammar.json_schema(json.dumps(PERSON))))
    assert re.fullmatch("(ab|12)+é?,", text(Grammar.regex("(ab|12)+é?,")))
    choice = ["yes", "no", "日本", 'a"\n\\', "😀"]
    assert text(Grammar.choice(choice)) in choice
    pairs = text(Grammar.lark('start: "(" start ")" | word\nword: /[ab]{2}/'))
    assert re.fullmatch(r"\(*[ab]{2}\)*", pairs) and pairs.count("(") == pairs.count(")")


GBNF = r"""
root   ::= object  # as llama.cpp's examples have it
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair   ::= string ":" ws ("true" | number | object)
string ::= "\"" [^"\\\x7F\x00-\x1F]{0,5} "\x22"
number ::= "-"? ([0-9] | [1-9] [0-9]{0,3}) ("." [0-9]{1,2})?
ws     ::= | " "
"""


@pytest.mark.parametrize("seed", range(6))
def test_noise_becomes_what_a_grammar_of_llama_cpp_says(tokenizer: Tokenizer, seed: int):
    def text(grammar: str) -> str:
        rows = noise(seed, tokenizer.size)
        return written(Grammar.gbnf(grammar), tokenizer, rows, Sampler(1.0, seed=seed))[0].decode()

    assert isinstance(json.loads(text(GBNF)), dict)
    assert re.fullmatch("[A-C]{2}é日.", text(r'root ::= [\u0041-C]{2} "\u00e9日" .'), re.DOTALL)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('root ::= word "x"\nword ::= [a-z]+', "abx"),
        ('root ::= as as\nas ::= "a"+', "aaa"),
        ('root ::= "true" | [a-z]+', "tree"),
        ('root ::= X x\nX ::= "u"\nx ::= "l"', "ul"),
        ('root ::= a-b a_b\na-b ::= "x"\na_b ::= "y"', "xy"),
        ('root ::= "a" start\nstart ::= "k"{2}', "akk"),
        ('root ::= 1st\n1st ::= "k"', "k"),
        ("root ::= [a&&b]{2} [~~]", "&b~"),
        ('root ::= "a\nb" "" "\\\\n"', "a\nb\\n"),
    ],
)
def test_texts_that_grammars_of_llama_cpp_have(tokenizer: Tokenizer, grammar: str, text: str):
    state = Grammar.gbnf(grammar).begin(tokenizer)
    for token in tokenizer.encode(text, add_special=False):
        assert state.allows(token)
        state.accept(token)
    assert any(map(state.allows, tokenizer.eog))


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ("root ::= other", "'other' not found"),
        ('other ::= "x"', "No 'root'"),
        ('root ::= "x', "Unexpected end"),
        (r'root ::= "\ud800"', "no character"),
        ("root ::= <think>", "Expected name"),
        (f"root ::= {'(' * 3000}'x'{')' * 3000}", "nested too deeply"),
        (3, "is a text"),
    ],
)
def test_grammars_of_llama_cpp_that_cannot_be_used(grammar: str, why: str):
    with pytest.raises(GrammarError, match=why):
        Grammar.gbnf(grammar)


@pytest.mark.parametrize("end", ["<|end|>", "<|eot|>"])
def test_generation_may_end_only_after_what_is_complete(tokenizer: Tokenizer, end: str):
    def answer(pattern: str) -> tuple[bytes, Sampling]:
        rows = noise(0, tokenizer.size, favourite=tokenizer.id_of(end))
        return written(Grammar.regex(pattern), tokenizer, rows, Sampler(0))

    digits, sampling = answer("[0-9]{3,}")
    assert re.fullmatch(rb"\d{3,4}", digits)
    assert sampling.history[-1] == tokenizer.id_of(end)
    nothing, sampling = answer("(ab)?")
    assert nothing == b"" and sampling.history == [tokenizer.id_of(end)]
    # Here the grammar itself is at its end.
    exact, sampling = answer("[0-9]{2}")
    assert re.fullmatch(rb"\d\d", exact) and sampling.finished
    assert sampling.sample(next(noise(1, tokenizer.size))) in tokenizer.eog


def test_special_tokens_are_no_text(tokenizer: Tokenizer):
    rows = noise(0, tokenizer.size, favourite=tokenizer.id_of("<|user|>"))
    answer, sampling = written(Grammar.regex("[a-z<>|]{5}"), tokenizer, rows, Sampler(0))
    assert len(answer) == 5 and tokenizer.id_of("<|user|>") not in sampling.history
    rows = noise(0, tokenizer.size)
    answer, _ = written(Grammar.lark('start: <|user|> "x"'), tokenizer, rows, Sampler(0))
    assert answer == b"<|user|>x"


@pytest.mark.parametrize("size", [200, 500])
def test_logits_of_another_size(tokenizer: Tokenizer, size: int):
    rows = noise(0, size, favourite=size - 1)
    answer, _ = written(Grammar.regex("[a-z]{4}"), tokenizer, rows, Sampler(seed=0))
    assert re.fullmatch(b"[a-z]{4}", answer)


def test_masks_and_single_questions_agree(tokenizer: Tokenizer):
    state = Grammar.json_schema(PERSON).begin(tokenizer)
    for token in tokenizer.encode('{"name": "a', add_special=False):
        assert state.allows(token)
        state.accept(token)
    mask = state.mask(tokenizer.size + 5)
    assert mask.tolist() == [state.allows(i) for i in range(tokenizer.size + 5)]
    with pytest.raises(GrammarError, match="cannot go on"):
        state.accept(tokenizer.encode("\n")[0])


def test_requests_do_not_disturb_each_other(tokenizer: Tokenizer):
    grammar = Grammar.regex("[ab]{4}")
    one, two = grammar.begin(tokenizer), grammar.begin(tokenizer)
    for token in tokenizer.encode("baba", add_special=False):
        one.accept(token)
    assert one.finished and not two.finished
    assert two.allows(tokenizer.encode("a")[0])


@pytest.mark.parametrize("byte_tokens", [True, False])
def test_a_vocabulary_that_puts_spaces_in_front(byte_tokens: bool):
    tokenizer = sentence_piece(byte_tokens)
    grammar = Grammar.json_schema({"const": {"ab": 12}})
    answer, sampling = written(grammar, tokenizer, noise(0, tokenizer.size), Sampler(0))
    assert json.loads(answer) == {"ab": 12}
    text = tokenizer.stream(after=1)
    assert "".join(text.push(i) for i in sampling.history) + text.flush() == answer.decode()


def test_a_vocabulary_that_cannot_spell_it():
    tokenizer = sentence_piece(byte_tokens=False)
    with pytest.raises(GrammarError, match="no text of this vocabulary"):
        Grammar.regex("[zZ]+").begin(tokenizer)
    with pytest.raises(GrammarError, match="cannot go on"):
        written(Grammar.regex("a[zZ]"), tokenizer, noise(0, tokenizer.size), Sampler(0))


def test_a_vocabulary_without_an_end():
    tokens = [*"abcdefghij", "Ġ"]
    tokenizer = Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": [],
        }
    )
    assert not tokenizer.eog
    answer, _ = written(Grammar.choice(["bad", "add"]), tokenizer, noise(0, 11), Sampler(0))
    assert answer in (b"bad", b"add")


@pytest.mark.parametrize(
    ("make", "argument", "reason"),
    [
        ("json_schema", "{x", "no JSON"),
        ("json_schema", {"enum": {1, 2}}, "no JSON"),
        ("json_schema", [1], "is an object"),
        ("json_schema", True, "is an object"),
        ("json_schema", {"type": "strng"}, "strng"),
        ("json_schema", {"$ref": "#/$defs/x"}, "does not exist"),
        ("json_schema", {"type": "string", "format": "unheard"}, "unheard"),
        ("json_schema", {"enum": []}, "Unsatisfiable"),
        ("json_schema", {"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
        ("json_schema", {"allOf": [{"type": "string"}, {"type": "null"}]}, "Unsatisfiable"),
        ("json_schema", {"type": "string", "pattern": "^a$", "minLength": 3}, "Unsatisfiable"),
        ("json_schema", "[" * 100_000, "no JSON"),
        *(
            ("json_schema", schema, "would be rounded")
            for schema in (
                {"type": "integer", "minimum": 10**19, "maximum": 10**19 + 5},
                {"type": "integer", "minimum": 10**300, "maximum": 10**301},
                {"type": "integer", "minimum": 1e19, "maximum": 2e19},
                {"type": ["integer", "null"], "exclusiveMaximum": -1e19},
                {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1},
                {"const": -(2**63)},
                {"enum": [1, 2**63]},
                {"properties": {"id": {"anyOf": [{"const": [2**53 + 1]}]}}},
                '{"type": "integer", "multipleOf": 9007199254740993}',
            )
        ),
        ("json_schema", '{"items":' * 300 + "{}" + "}" * 300, "recursion"),
        ("regex", "(ab", "unclosed group"),
        ("regex", "\ud800", "surrogates"),
        ("regex", None, "a text, not NoneType"),
        ("lark", "start: foo", "unknown name"),
        ("lark", "start: /a", "start: /a"),
        ("choice", [], "list of texts"),
        ("choice", "yes", "list of texts"),
        ("choice", [1], "list of texts"),
    ],
)
def test_what_is_refused(make: str, argument: object, reason: str):
    with pytest.raises(GrammarError, match=reason) as raised:
        getattr(Grammar, make)(argument)
    assert isinstance(raised.value, (Error, ValueError)) and "state>" not in str(raised.value)


@pytest.mark.parametrize("number", [2**53, 2**62, 2**63 - 1, -(2**53), 2**53 + 2])
def test_integers_that_are_exact_are_answered(tokenizer: Tokenizer, number: int):
    schemas = [{"const": number}, {"type": "integer", "minimum": number, "maximum": number}]
    for schema in schemas:
        state = Grammar.json_schema(schema).begin(tokenizer)
        for id in tokenizer.encode(str(number), add_special=False):
            assert state.allows(id)
            state.accept(id)
        assert state.finished or any(state.allows(end) for end in tokenizer.eog)


@pytest.mark.parametrize("grammar", [Grammar.regex(r"[^\s\S]"), Grammar.lark('start: start "a"')])
def test_what_nothing_satisfies(tokenizer: Tokenizer, grammar: Grammar):
    with pytest.raises(GrammarError, match="no text of this vocabulary"):
        grammar.begin(tokenizer)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(Unsupported, match=r"pip install 'llguidance<2,>="):
        Grammar.regex("a")


def test_unused_tokenizers_are_let_go():
    tokenizer, grammar = byte_level(), Grammar.regex("ab")
    state = grammar.begin(tokenizer)
    gone = weakref.ref(tokenizer)
    del tokenizer, state
    gc.collect()
    assert gone() is None

"""Texts and conversations that tokenizers and chat templates are compared on: always the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

SEED = 20260101
TEXTS, CONVERSATIONS = 5000, 200

# Texts on which tokenizers have differed: spaces and line ends, digits, apostrophes, marks that
# combine, scripts, emoji of several parts, code, and spellings of special tokens.
_HARD = (
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\t\n", " \n \n", "\r\n", "\u00a0",
    "\u3000", "Hello world", " Hello world", "Hello World", " Hello World!",
    "Hello,   world\n\n =", "I'm, you're, he'll, she'd, we've, it's; I'M, YOU'RE, HE'LL", "'s",
    "''s", "' era", "'\u00e9t\u00e9", *("3" * n for n in range(1, 10)), "1.234,56", "1e-5",
    "0x1F", "2026-01-01T00:00:00Z", "\u00bd \u00b2 \u2167", "\u0663\u0664\u0665", "\u1200\u1208",
    "\u10d0\u10d1\u10d2", "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u4f60\u597d\uff0c\u4e16\u754c",
    "\u3053\u3093\u306b\u3061\u306f", "\uc548\ub155\ud558\uc138\uc694",
    "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd",
    "\u041f\u0440\u0438\u0432\u0435\u0442", "\u0393\u03b5\u03b9\u03ac", "e\u0301", "\u00e9",
    "a\u0308\u0323", "\ufb01", "\u212b", "\u2126", "\u0130\u0131", "\u00df\u1e9e", "\u200b",
    "\u200d", "\ufeff", "\u2028", "\U0001f600", "\U0001f469\u200d\U0001f680",
    "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "\U0001d54f", "\u0000",
    "\u007f", "\ufffd", "def f(x):\n    return x ** 2  # two\n",
    "if (a != b) { c++; }\r\n\treturn;", "<a href='#'>&amp;</a>",
    '{"a": [1, 2.5, null], "b": "\\u00e9"}', "SELECT * FROM t WHERE x >= 1;",
    "http://a.b/c?d=e&f=g", "a" * 100, "ab" * 60, " " * 40, "\n" * 20, "!" * 30, "\u4f60" * 40,
    "=-" * 30, "__init__", "--", "...", "<s>", "</s>", "<unk>", "<|endoftext|>",
    "<|im_start|>user", "[INST]", "<0x0A>", "\u2581", "\u2581a", "\u0120a",
)  # fmt: skip
_WORDS = (
    "the of and a model token language attention layer gradient quick brown fox Paris 42 don't "
    "naïve façade über straße señor año Łódź ångström İstanbul kelimeler слово мир язык λόγος "
    "κόσμος שפה عربي भाषा ภาษา 言語 模型 语言 単語 언어 모델 🙂 🚀 x_1 fooBar HTTP2 np.float32 "
    "== != => :: \\n // /* */ (a) [b] {c} 3.14 1,000 100% $5 €7 #tag @me C++ .NET l'été"
).split()
_SPACES = (" ", " ", " ", " ", "  ", "\n", "\n\n", "\t", "", ", ", ". ", "\r\n", "\u00a0")
# (first, last) of ranges of characters.
_RANGES = (
    *((0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x370, 0x3FF), (0x400, 0x45F), (0x5D0, 0x5EA)),
    *((0x620, 0x64A), (0x900, 0x94D), (0xE01, 0xE3A), (0x3041, 0x30FF), (0x4E00, 0x9FFF)),
    *((0xAC00, 0xD7A3), (0x1F300, 0x1F64F), (0x300, 0x36F), (0x2000, 0x206F), (0x1D400, 0x1D7FF)),
)


def texts(pieces: Sequence[str] = (), count: int = TEXTS) -> Iterator[str]:
    """The texts: hard ones, the vocabulary's own pieces, words between spaces of all kinds, and
    characters of many scripts.

    Args:
        pieces: texts of the tokens of both vocabularies, special ones among them.
    """
    yield from _HARD
    random = Random(SEED)
    for i in range(len(_HARD), count):
        kind = i % 4
        if kind == 0 and pieces:
            own = [pieces[random.randrange(len(pieces))] for _ in range(random.randrange(1, 6))]
            yield "".join(own)
        elif kind == 1:
            first, last = _RANGES[random.randrange(len(_RANGES))]
            letters = (chr(random.randint(first, last)) for _ in range(random.randrange(1, 30)))
            yield "".join(letters)
        else:
            yield "".join(
                _WORDS[random.randrange(len(_WORDS))] + _SPACES[random.randrange(len(_SPACES))]
                for _ in range(random.randrange(1, 14))
            )


_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name."},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
}
_SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": 'Search for "texts" & more.',
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "most": {"type": "integer", "minimum": 1}},
            "required": ["query"],
        },
    },
}


def conversations(count: int = CONVERSATIONS) -> Iterator[dict[str, Any]]:
    """Arguments of `ChatTemplate.render`: with and without a system message, several turns, tools,
    calls and their results, thoughts, an answer that has begun."""
    random = Random(SEED)
    said = list(_WORDS)

    def say(least: int = 1) -> str:
        return " ".join(said[random.randrange(len(said))] for _ in range(random.randint(least, 9)))

    for i in range(count):
        messages: list[dict[str, Any]] = []
        options: dict[str, Any] = {"messages": messages}
        if i % 3:
            messages.append({"role": "system", "content": say()})
        messages.append({"role": "user", "content": say() if i % 11 else f"  {say()}\n"})
        for turn in range(i % 4):
            answer: dict[str, Any] = {"role": "assistant", "content": say()}
            if i % 5 == 1:
                answer["reasoning_content"] = say(3)
            if i % 5 == 2:
                answer["content"] = f"<think>\n{say(3)}\n</think>\n\n{say()}"
            if i % 2 and turn == 0:
                call = {"name": "get_weather", "arguments": {"city": say(), "unit": "C"}}
                answer["tool_calls"] = [{"id": "call00001", "type": "function", "function": call}]
                if i % 4 == 1:
                    answer["content"] = ""
                result = {"role": "tool", "name": "get_weather", "content": '{"degrees": 21}'}
                messages += [answer, {**result, "tool_call_id": "call00001"}]
                answer = {"role": "assistant", "content": say()}
            messages += [answer, {"role": "user", "content": say()}]
        if i % 2:
            options["tools"] = [_WEATHER] if i % 3 else [_WEATHER, _SEARCH]
        if i % 7 == 3:
            options["enable_thinking"] = bool(i % 2)
        if i % 9 == 4:
            options["add_generation_prompt"] = False
        yield options

"""Pre-tokenizers: the table that `tokenizer.ggml.pre` names, and cuts within long numbers.

A GGUF with a byte pair vocabulary gives only the name. This table adds the expressions that split a
text before merging, whether whole words skip the merges, and whether `bos` is added by default. The
expressions are those of the models' tokenizer.json where they are known (in Oniguruma syntax, as
the `tokenizers` package runs them). Each is applied to the pieces that the one before it left; text
between its matches stays a piece.

Texts are cut within long numbers for pre-tokenizers that group digits by threes from the right.
Their expressions look from each group to the end of the number, so that a number of 100,000 digits
takes minutes. A number may be cut between two groups beforehand, without another result.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_LONG = 999  # digits; a multiple of 3
_DIGITS = r"\d"  # the same characters for Python and for the `tokenizers` package
# By the expression that groups: the digits it knows, and whether a word may go on behind them.
_GROUPING = {
    r"\d{1,3}(?=(?:\d{3})*\b)": (False, False),
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))": (True, True),
    r"(?=(\d{3})+(?!\d))": (False, True),
}


def cut(text: str, splits: tuple[str, ...]) -> Iterator[str]:
    """The parts of a text, in which no number is long.

    Args:
        splits: the expressions of a pre-tokenizer.
    """
    grouping = next(filter(None, map(_GROUPING.get, splits)), None)
    done = 0
    if grouping is not None and len(text) > _LONG:
        all_numbers, within_words = grouping
        for number in _long_numbers(all_numbers).finditer(text):
            if within_words or not _goes_on(text, number.end()):
                first = len(number[0]) % _LONG or _LONG
            elif number.start() and unicodedata.category(text[number.start() - 1])[0] == "N":
                continue  # groups begin within the fraction or the like in front
            else:  # nothing groups from the right, and so groups begin on the left
                first = _LONG
            for at in range(number.start() + first, number.end(), _LONG):
                yield text[done:at]
                done = at
    yield text[done:]


def _goes_on(text: str, at: int) -> bool:
    """Whether a word goes on there, as the expressions see it."""
    return at < len(text) and _in_words(text[at])


@lru_cache(maxsize=1 << 12)
def _in_words(character: str) -> bool:
    """Whether there is no `\\b` between a digit and this character. The package's own table of
    words differs from Unicode's categories for a thousand characters."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    split = Split(Regex(r"1\b"), "isolated")
    return len(split.pre_tokenize_str(f"1{character}")) == 1


@lru_cache
def _long_numbers(all_numbers: bool) -> re.Pattern[str]:
    kinds = _numbers() if all_numbers else _DIGITS
    return re.compile(f"[{kinds}]{{{_LONG + 1},}}")


def _numbers() -> str:
    """All characters of numbers, for an expression."""
    codes = range(sys.maxunicode + 1)
    return "".join(c for c in map(chr, codes) if unicodedata.category(c)[0] == "N")


@dataclass(frozen=True)
class Pre:
    """One pre-tokenizer.

    Attributes:
        splits: expressions, in the order they are applied.
        ignore_merges: a piece that is itself a token is taken without merging.
        add_bos: default of `tokenizer.ggml.add_bos_token`.
        byte_level: pieces are spelled in the byte alphabet of GPT-2; otherwise in plain text with
            "▁" for a space and <0xXX> tokens for what the vocabulary lacks.
    """

    splits: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

# The cl100k family; its members differ in the number of digits in a piece.
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}"

# The o200k family: words end where the case changes from lower to upper.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_EDGE = r"[^\r\n\p{L}\p{N}]?"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_CASED = rf"{_EDGE}{_UPPER}*{_LOWER}+|{_EDGE}{_UPPER}+{_LOWER}*"
_CASED_CONTRACTED = (
    rf"{_EDGE}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_EDGE}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
)
_GPT4O = rf"{_CASED_CONTRACTED}|\p{{N}}{{1,3}}|{_SLASHED}|{_SPACES}"
_TEKKEN = rf"{_CASED}|\p{{N}}|{_SLASHED}|{_SPACES}"

# The same with Han characters in pieces of their own.
_KIMI_CASED = _CASED_CONTRACTED.replace(_UPPER, _UPPER[:-1] + r"&&[^\p{Han}]]").replace(
    _LOWER, _LOWER[:-1] + r"&&[^\p{Han}]]"
)
_KIMI = rf"\p{{Han}}+|{_KIMI_CASED}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"

# Digits in threes, counted from the right end of a number.
_THREES_FROM_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"

_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_ASCII_MARK_WORD = r'[!"#$%&' + r"'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_LETTERS = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = rf"{_ASCII_MARK_WORD}|{_LETTERS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_SPARK = rf"{_ASCII_MARK_WORD}|{_LETTERS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"
_DEEPSEEK_CJK = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_WORD = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-Ჺ"
    r"Ჽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝ"
    r"ℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀"
    r"-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_YOUTU_SCRIPTS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_AFMOE_SCRIPTS = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_LINES = r"[^\n]+|[\n]+"

_DIGIT_GPT2 = (r"\p{N}", _GPT2)
_DEEPSEEK3_SPLITS = (r"\p{N}{1,3}", _CJK, _DEEPSEEK3)

_KINDS: dict[str, Pre] = {
    "default": Pre((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe "
    "gigachat a.x-4.0 mellum modern-bert mpt olmo jais trillion granite-docling exaone4": Pre(
        (_GPT2,)
    ),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": Pre(_DIGIT_GPT2),
    "falcon": Pre((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": Pre(
        (_LLAMA3,), ignore_merges=True, add_bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe": Pre((_LLAMA3,)),
    "glm4 glm5": Pre((_LLAMA3,), ignore_merges=True),
    "jais-2": Pre(
        (
            rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|\s*[\r\n]+|"
            + "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))
            + r"|\s{1,2}(?!\S)|\s{1}",
        )
    ),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2": Pre(
        (_QWEN2,)
    ),
    "qwen35": Pre(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
            rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        )
    ),
    "ufakzeka": Pre((rf"{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}",)),
    "minicpm5": Pre(
        (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_MARKS}|{_SPACES}"),
        ignore_merges=True,
    ),
    "laguna": Pre((_LINES, _QWEN2)),
    "seed-coder": Pre(
        (rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
    ),
    "exaone-moe": Pre(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|"
            r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "bailingmoe bailingmoe2 llada-moe": Pre(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
            r"\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "gpt-4o llama4 kanana2 talkie minimax-m2": Pre((_GPT4O,)),
    "granite-embed-multi-97m": Pre((_GPT4O,), ignore_merges=True),
    "tiny_aya cohere2moe": Pre((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    "tekken": Pre((_TEKKEN,), ignore_merges=True, add_bos=True),
    # As tiktoken takes a piece that is a token, whether merges make it or not.
    "kimi-k2": Pre((_KIMI,), ignore_merges=True),
    "youtu": Pre(
        (_YOUTU_SCRIPTS, rf"{_CASED_CONTRACTED}|\p{{N}}|{_SLASHED}|{_SPACES}"),
        ignore_merges=True,
    ),
    "deepseek-llm": Pre(
        (
            r"[\r\n]",
            _DEEPSEEK_WORD,
            "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
            r"\s+$",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": Pre((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": Pre(_DEEPSEEK3_SPLITS),
    "spark2_5": Pre((r"\p{N}{1,3}", _CJK, _SPARK, r"\p{N}")),
    "afmoe": Pre((_THREES_FROM_RIGHT, _AFMOE_SCRIPTS, _DEEPSEEK3)),
    "poro-chat bloom gpt3-finnish": Pre((_BLOOM,)),
    "viking": Pre((_BLOOM, r"\p{N}")),
    "superbpe": Pre((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "chameleon": Pre(
        (
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    "gemma4 granite-embed-multi-311m": Pre((_LINES,), add_bos=True, byte_level=False),
    "sarvam-moe": Pre((_LINES,), byte_level=False),
}

PRE_TOKENIZERS: dict[str, Pre] = {
    name: pre for names, pre in _KINDS.items() for name in names.split()
}

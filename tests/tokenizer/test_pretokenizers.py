"""How each kind of pre-tokenizer cuts one text that shows what they differ in."""

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from ggmodel.tokenizer.pretokenizers import PRE_TOKENIZERS

# Contractions, digits, accents, changes of case, line ends, runs of spaces, Han, combining marks.
TEXT = "It'S 1234567 été; AbCd\n\n  日本語x!/\nka\u0301t"

PIECES = {
    "default": "It|'|S| |123|456|7| été|;| AbCd|\n\n | 日本語x|!/|\n|ka|\u0301|t",
    "gpt-2": "It|'|S| 1234567| été|;| AbCd|\n\n | 日本語x|!/|\n|ka|\u0301|t",
    "starcoder": "It|'|S| |1|2|3|4|5|6|7| été|;| AbCd|\n\n | 日本語x|!/|\n|ka|\u0301|t",
    "falcon": "It|'|S| |123|456|7| été|;| AbCd|\n\n | 日本語x|!/|\n|ka|\u0301|t",
    "llama-bpe": "It|'S| |123|456|7| été|;| AbCd|\n\n| | 日本語x|!/\n|ka|\u0301t",
    "dbrx": "It|'S| |123|456|7| été|;| AbCd|\n\n| | 日本語x|!/\n|ka|\u0301t",
    "glm4": "It|'S| |123|456|7| été|;| AbCd|\n\n| | 日本語x|!/\n|ka|\u0301t",
    "jais-2": "It|'S| |123|456|7| été|;| AbCd|\n\n| | 日本語x|!/\n|ka|\u0301t",
    "qwen2": "It|'S| |1|2|3|4|5|6|7| été|;| AbCd|\n\n| | 日本語x|!/\n|ka|\u0301t",
    "qwen35": "It|'S| |1|2|3|4|5|6|7| été|;| AbCd|\n\n| | 日本語x|!/\n|ka\u0301t",
    "ufakzeka": "It|'S| |1|2|3|4|5|6|7| été|;| AbCd|\n\n| | 日本語x|!/\n|ka|\u0301t",
    "minicpm5": "It|'S| |123|456|7| été|;| AbCd|\n\n| | 日本語x|!/\n|ka|\u0301t",
    "laguna": "It|'S| |1|2|3|4|5|6|7| été|;| AbCd|\n\n| | 日本語x|!/|\n|ka|\u0301t",
    "seed-coder": "It|'S| |1|2|3|4|5|6|7| été|;| AbCd|\n\n| | 日本語x|!/|\n|ka|\u0301t",
    "exaone-moe": "It|'S| |1|2|3|4|5|6|7| été|;| AbCd|\n\n| | 日本語x|!/\n|ka\u0301t",
    "bailingmoe": "It|'S| |1|2|3|4|5|6|7| été|;| AbCd|\n\n| | 日本語x|!/\n|ka|\u0301t",
    "gpt-4o": "It'S| |123|456|7| été|;| Ab|Cd|\n\n| | 日本語x|!/\n|ka\u0301t",
    "granite-embed-multi-97m": "It'S| |123|456|7| été|;| Ab|Cd|\n\n| | 日本語x|!/\n|ka\u0301t",
    "tiny_aya": "It'S| |1|234|567| été|;| Ab|Cd|\n\n| | 日本語x|!/\n|ka\u0301t",
    "tekken": "It|'S| |1|2|3|4|5|6|7| été|;| Ab|Cd|\n\n| | 日本語x|!/\n|ka\u0301t",
    "kimi-k2": "It'S| |123|456|7| été|;| Ab|Cd|\n\n| | |日本語|x|!/\n|ka\u0301t",
    "youtu": "It'S| |1|2|3|4|5|6|7| été|;| Ab|Cd|\n\n|  |日本語|x|!/\n|ka\u0301t",
    "deepseek-llm": "It|'|S| |1234567| é|t|é|;| AbCd|\n|\n|  |日本語|x|!/|\n|ka|\u0301|t",
    "deepseek-coder": "It|'|S| |1|2|3|4|5|6|7| été|;| AbCd|\n|\n| | |日本語|x|!/|\n|ka|\u0301|t",
    "deepseek-v3": "It|'S| |123|456|7| été|;| AbCd|\n\n|  |日本語|x|!/\n|ka\u0301t",
    "spark2_5": "It|'S| |1|2|3|4|5|6|7| été|;| AbCd|\n|\n|  |日本語|x|!/|\n|ka\u0301t",
    "afmoe": "It|'S| |1|234|567| été|;| AbCd|\n\n|  |日本語|x|!/\n|ka\u0301t",
    "poro-chat": "It'S| 1234567| été;| AbCd|\n\n | 日本語x|!|/|\n|ka\u0301t",
    "viking": "It'S| |1|2|3|4|5|6|7| été;| AbCd|\n\n | 日本語x|!|/|\n|ka\u0301t",
    "superbpe": "It'S |1|234|567| été; AbCd\n\n  日本語x!/\nka\u0301t",
    "chameleon": "It|'|S| |1|2|3|4|5|6|7| été|;| AbCd|\n|\n|  |日本語x|!|/|\n|ka|\u0301|t",
    "gemma4": "It'S 1234567 été; AbCd|\n\n|  日本語x!/|\n|ka\u0301t",
    "sarvam-moe": "It'S 1234567 été; AbCd|\n\n|  日本語x!/|\n|ka\u0301t",
}


@pytest.mark.parametrize("pre", PIECES)
def test_pieces(pre):
    splits = [Split(Regex(split), "isolated") for split in PRE_TOKENIZERS[pre].splits]
    pieces = [piece for piece, _ in Sequence(splits).pre_tokenize_str(TEXT)]
    assert "|".join(pieces) == PIECES[pre]


def test_every_kind_is_shown():
    shown = {PRE_TOKENIZERS[pre] for pre in PIECES}
    assert shown == set(PRE_TOKENIZERS.values())


@pytest.mark.parametrize(
    ("fact", "names"),
    [
        (
            "add_bos",
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano "
            "tekken chameleon gemma4 granite-embed-multi-311m",
        ),
        (
            "ignore_merges",
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano "
            "glm4 glm5 minicpm5 granite-embed-multi-97m tekken youtu kimi-k2",
        ),
    ],
)
def test_facts_that_a_name_implies(fact: str, names: str):
    assert {n for n, pre in PRE_TOKENIZERS.items() if getattr(pre, fact)} == set(names.split())
    plain = {name for name, pre in PRE_TOKENIZERS.items() if not pre.byte_level}
    assert plain == {"gemma4", "granite-embed-multi-311m", "sarvam-moe"}

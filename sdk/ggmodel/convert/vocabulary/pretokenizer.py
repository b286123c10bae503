"""The name of a pre-tokenizer, found by its behaviour.

A tokenizer.json describes how it cuts a text; a GGUF names one of llama.cpp's pre-tokenizers. As
the same cuts can be described in many forms, the known ones are tried: the one that cuts a probe
into the same pieces is taken. The vocabulary does not matter.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from ...errors import TokenizerError
from ...tokenizer.pretokenizers import PRE_TOKENIZERS, Pre
from .probe import PART, lines_probe, probe
from .tokenizer_json import TokenizerJson

# Family → the name in its files, among several that cut alike. Without an entry it is the first of
# the table that also agrees on taking whole words without merging.
_BY_FAMILY = {
    "bailing_moe": "bailingmoe",
    "bloom": "bloom",
    "codeshell": "codeshell",
    "cohere": "command-r",
    "cohere2": "command-r",
    "exaone": "exaone",
    "exaone4": "exaone4",
    "falcon_h1": "falcon-h1",
    "glm4": "glm4",
    "gpt_oss": "gpt-4o",
    "gpt_refact": "refact",
    "granite": "refact",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2",
    "llama": "smollm",
    "llama4": "llama4",
    "minimax_m2": "minimax-m2",
    "modernbert": "modern-bert",
    "mpt": "olmo",
    "olmo": "olmo",
    "phi": "phi-2",
    "roberta": "roberta-bpe",
    "smollm3": "smollm",
    "stablelm": "stablelm2",
}
# Normalizers that a GGUF cannot carry and that rarely change texts: llama.cpp leaves them out.
_LEFT_OUT = ("NFC", "NFKC", "NFD", "NFKD")


def pre_of(source: TokenizerJson, families: Collection[str]) -> str:
    """The name for `tokenizer.ggml.pre`.

    Args:
        families: kinds of the model, which choose among names that cut alike.

    Raises:
        TokenizerError: no known pre-tokenizer cuts alike.
    """
    # SentencePiece's spelling, with "▁" for a space and none put in front.
    if source.normalized("a b ") == "a▁b▁":
        found = ["gemma4"] if _keeps_lines(source) else []
    elif _normalizers(source.content.get("normalizer")) <= {*_LEFT_OUT}:
        found = _same_pieces(source)
    else:
        found = []
    if not found:
        raise TokenizerError(
            f"{source.source} cuts texts as no known pre-tokenizer does; if you know one "
            "that serves, name it (--pre NAME, or pre= in Python), one of: "
            + ", ".join(sorted(PRE_TOKENIZERS))
        )
    ignores = bool(source.model.get("ignore_merges"))
    exact = [name for name in found if PRE_TOKENIZERS[name].ignore_merges == ignores]
    wanted = [_BY_FAMILY[family] for family in sorted(families) if family in _BY_FAMILY]
    return next((name for name in wanted if name in found), (exact or found)[0])


def _same_pieces(source: TokenizerJson) -> list[str]:
    found = [n for n, pre in PRE_TOKENIZERS.items() if pre.byte_level and n != "default"]
    # A part of the probe excludes most.
    for length in (PART, len(probe())):
        if found:
            pieces = source.cut(probe()[:length])
            found = [name for name in found if _pieces(PRE_TOKENIZERS[name], length) == pieces]
    return found


@cache
def _pieces(pre: Pre, length: int) -> list[str]:
    from tokenizers import pre_tokenizers

    steps = pre_tokenizers.Sequence(_steps(pre))
    return [piece for piece, _ in steps.pre_tokenize_str(probe()[:length])]


def _steps(pre: Pre) -> list[Any]:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Split

    splits = [Split(Regex(split), "isolated") for split in pre.splits]
    if pre is not PRE_TOKENIZERS["falcon"]:
        return [*splits, ByteLevel(add_prefix_space=False, use_regex=False)]
    # Falcon looks for digits in the spelling of bytes: it cuts more, where its tokens never merge.
    first = [Punctuation("contiguous"), ByteLevel(add_prefix_space=False)]
    return [*first, Digits(individual_digits=False), splits[-1]]


def _normalizers(normalizer: object) -> set[str]:
    """The kinds of all normalizers in a sequence."""
    if not isinstance(normalizer, dict):
        return set()
    if normalizer.get("type") == "Sequence":
        return {k for step in normalizer.get("normalizers") or [] for k in _normalizers(step)}
    return {str(normalizer.get("type"))}


def _keeps_lines(source: TokenizerJson) -> bool:
    """Whether it cuts at the ends of lines and nowhere else."""
    from tokenizers import Regex, pre_tokenizers

    text = lines_probe()
    pieces = source.cut(text)
    if pieces == [text]:  # whole texts are merged, so it does if no merge goes beyond a line
        merged = (left + right for left, right in source.merges())
        return not any("\n" in text and text.strip("\n") for text in merged)
    lines = pre_tokenizers.Split(Regex(PRE_TOKENIZERS["gemma4"].splits[0]), "isolated")
    return pieces == [piece for piece, _ in lines.pre_tokenize_str(text)]

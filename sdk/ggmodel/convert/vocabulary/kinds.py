"""Kinds of vocabularies (byte pairs, SentencePiece, WordPiece), and their pre-tokenizers.

A tokenizer.json describes how it cuts a text; a GGUF names one of llama.cpp's pre-tokenizers.
As the same cuts can be described in many forms, the known ones are tried: the one that cuts a
probe into the same pieces is taken. The vocabulary does not matter.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection
from functools import cache
from typing import Any

import numpy as np

from ...errors import TokenizerError
from ...tokenizer.pretokenizers import PRE_TOKENIZERS, Pre
from ...tokenizer.vocabulary import (
    BYTE_NAMES,
    LONGEST,
    PREFIX,
    SPACE,
    TokenType,
    longest_plain,
    pairs_making,
)
from .files import BPE, UNIGRAM, Files, SentencePieceModel, read_sentencepiece, special_tokens
from .tokenizer_json import PART, TokenizerJson, lines_probe, looks_special, probe

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
    "granitemoe": "refact",
    "granitemoeshared": "refact",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2",
    "llama": "smollm",
    "llama4": "llama4",
    "minimax_m2": "minimax-m2",
    "modernbert": "modern-bert",
    "mpt": "olmo",
    "muse_glimmer": "llama4",
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
        names = ["gemma4"] if _keeps_lines(source) else []
    elif _normalizers(source.content.get("normalizer")) <= {*_LEFT_OUT}:
        names = _same_pieces(source)
    else:
        names = []
    if not names:
        raise TokenizerError(
            f"{source.source} cuts texts as no known pre-tokenizer does; if you know one "
            "that serves, name it (--pre NAME, or pre= in Python), one of: "
            + ", ".join(sorted(PRE_TOKENIZERS))
        )
    ignores = bool(source.model.get("ignore_merges"))
    exact = [name for name in names if PRE_TOKENIZERS[name].ignore_merges == ignores]
    usual = [_BY_FAMILY[family] for family in sorted(families) if family in _BY_FAMILY]
    return next((name for name in usual if name in names), (exact or names)[0])


def _same_pieces(source: TokenizerJson) -> list[str]:
    names = [n for n, pre in PRE_TOKENIZERS.items() if pre.byte_level and n != "default"]
    # A part of the probe excludes most.
    for length in (PART, len(probe())):
        if names:
            pieces = source.cut(probe()[:length])
            names = [
                name for name in names if _probe_pieces(PRE_TOKENIZERS[name], length) == pieces
            ]
    return names


@cache
def _probe_pieces(pre: Pre, length: int) -> list[str]:
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


# Families whose `add_space_prefix` follows tokenizer_config.json.
_LLAMA = {*"arcee granite granitemoe granitemoeshared llama mistral mixtral smollm3".split()}
_ADDED_SCORE = -1000.0
_NO_SCORE = -10000.0


def byte_pairs(files: Files, source: TokenizerJson, pre: str | None) -> dict[str, Any]:
    """Merges in order of rank, of bytes in GPT-2's alphabet or of characters."""
    tokens, types = source.tokens()
    # A space within a piece would look like the separator.
    merges = [f"{a.replace(' ', 'Ġ')} {b.replace(' ', 'Ġ')}" for a, b in source.merges()]
    keys = keys_of("gpt2", pre or pre_of(source, files.families), tokens, types)
    if merges:
        keys[PREFIX + "merges"] = merges
    elif longest := longest_plain(tokens, types):
        raise TokenizerError(
            f"tokenizer.json has no merges, but tokens of several characters, such as "
            f"{longest!r:.80}, which nothing makes; get the file again"
        )
    if "roberta" in files.families:
        keys[PREFIX + "token_type_count"] = _token_types(files)
    return {**_space_prefix(files), **keys, **_special(files, tokens)}


def ranked_pairs(files: Files, source: TokenizerJson) -> dict[str, Any]:
    """A SentencePiece model known only by its tokenizer.json: the ranks of merges are its scores.

    Raises:
        TokenizerError: the merges do not come from scores.
    """
    tokens, types = source.tokens()
    types = [_spelled(text, kind) for text, kind in zip(tokens, types, strict=True)]
    scores = _scores(source, types)
    keys = keys_of("llama", "default", tokens, types, scores)
    puts_space_first = source.cut_normalized("a")[0].startswith(SPACE)
    prefix = {} if puts_space_first else {PREFIX + "add_space_prefix": False}
    return {**keys, **prefix, **_space_prefix(files), **_special(files, tokens)}


def _spelled(text: str, kind: int) -> int:
    is_byte = text.startswith("<0x") and text in BYTE_NAMES
    return int(TokenType.BYTE) if is_byte and kind == TokenType.NORMAL else kind


def _scores(source: TokenizerJson, types: list[int]) -> list[float]:
    """SentencePiece joins any two pieces whose union is one; so must the merges."""
    scores = [_ADDED_SCORE] * len(types)
    merges = source.merges()
    normal = {text for text, id in source.ids.items() if types[id] == TokenType.NORMAL}
    for rank, (left, right) in reversed(list(enumerate(merges))):
        id = source.ids.get(left + right)
        if id is None:
            raise source.wrong(f"merge {rank} gives {left + right!r:.80}, which is no token")
        scores[id] = -float(rank)
    merged = set(merges)
    for text in normal:
        for pair in pairs_making(text, normal) if len(text) <= LONGEST else ():
            if pair not in merged:
                raise TokenizerError(
                    f"tokenizer.json has <0xXX> tokens as a SentencePiece model does, but its "
                    f"merges are not those of one: {pair} do not join though {text!r} is a token; "
                    f"add the tokenizer.model it was made from"
                )
    return scores


def sentencepiece(files: Files, name: str) -> dict[str, Any]:
    """A SentencePiece model of byte pairs (llama) or of unigrams (t5)."""
    model = read_sentencepiece(files.bytes(name) or b"", str(files.folder / name))
    if model.kind not in (BPE, UNIGRAM):
        raise TokenizerError(f"{files.folder / name} is of words or characters, not of pieces")
    unigram = model.kind == UNIGRAM
    tokens, scores, types = _pieces(files, model, unigram)
    if unigram and name == "sentencepiece.bpe.model":
        tokens, scores, types = _fairseq(tokens, scores, types, len(model.pieces))
    keys = keys_of("t5" if unigram else "llama", "default", tokens, types, scores)
    if unigram:
        keys[PREFIX + "add_space_prefix"] = model.add_dummy_prefix
        keys[PREFIX + "remove_extra_whitespaces"] = model.remove_extra_whitespaces
        keys |= charsmap_of(model.charsmap)
        if name == "sentencepiece.bpe.model":
            keys[PREFIX + "token_type_count"] = _token_types(files)
    elif not model.add_dummy_prefix:
        keys[PREFIX + "add_space_prefix"] = False
    keys |= {**_space_prefix(files), **_special(files, tokens)}
    if "gemma" in files.families:
        keys[PREFIX + "eot_token_id"] = 107
    if any(family.startswith("gemma") for family in files.families):
        keys[PREFIX + "add_space_prefix"] = False
    return keys


_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")


def _fairseq(
    tokens: list[str], scores: list[float], types: list[int], pieces: int
) -> tuple[list[str], list[float], list[int]]:
    """The ids of XLM-RoBERTa, whose model has its first three pieces in another order: four special
    tokens, the other pieces, and the mask, if there is a row for it."""
    first = [int(TokenType.CONTROL)] * 3 + [int(TokenType.UNKNOWN)]
    tokens, scores = [*_FAIRSEQ, *tokens[3:-1]], [0.0] * 4 + scores[3:-1]
    types = first + types[3:-1]
    if pieces + 1 < len(tokens):
        tokens[pieces + 1], scores[pieces + 1] = "<mask>", 0.0
        types[pieces + 1] = int(TokenType.CONTROL)
    return tokens, scores, types


def charsmap_of(data: bytes) -> dict[str, Any]:
    """The key of a normalization of characters; none for an empty one."""
    return {PREFIX + "precompiled_charsmap": np.frombuffer(data, np.uint8)} if data else {}


# Steps of a tokenizer.json that a GGUF with unigrams says by its keys.
_UNIGRAM_STEPS = {"Precompiled", "Replace", "Strip", "WhitespaceSplit", "Metaspace"}


def unigram(files: Files, source: TokenizerJson) -> dict[str, Any]:
    """A tokenizer.json of unigrams.

    Raises:
        TokenizerError: it normalizes or cuts texts in other ways than SentencePiece.
        FormatError: its normalization of characters is damaged.
    """
    steps = [
        step
        for section in ("normalizer", "pre_tokenizer")
        for step in _steps_of(source.content.get(section))
    ]
    kinds = {str(step.get("type")): step for step in steps}
    replaces = [str(s.get("pattern")) for s in steps if s.get("type") == "Replace"]
    other = sorted(kinds.keys() - _UNIGRAM_STEPS) or [r for r in replaces if "{2,}" not in r]
    if other or "Metaspace" not in kinds:
        raise TokenizerError(
            f"{source.source} prepares texts by {other[0] if other else 'no Metaspace'}, and a "
            "file of unigrams cannot say that; get the SentencePiece model it was made from"
        )
    try:
        charsmap = b64decode(
            kinds.get("Precompiled", {}).get("precompiled_charsmap") or "", validate=True
        )
    except (ValueError, TypeError):
        raise source.wrong("precompiled_charsmap is no base64") from None
    tokens, types = source.tokens()
    unknown = source.model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(tokens):
        raise source.wrong(f"model.unk_id is {unknown!r:.40}, no id of a token")
    types[unknown] = int(TokenType.UNKNOWN)
    if source.model.get("byte_fallback"):
        types = [_spelled(text, kind) for text, kind in zip(tokens, types, strict=True)]
    scores = [*source.scores, *[_NO_SCORE] * len(tokens)][: len(tokens)]
    keys = keys_of("t5", "default", tokens, types, scores)
    words = kinds["Metaspace"]
    prefix = words.get(
        "prepend_scheme", "always" if words.get("add_prefix_space", True) else "never"
    )
    keys[PREFIX + "add_space_prefix"] = prefix != "never"
    keys[PREFIX + "remove_extra_whitespaces"] = "WhitespaceSplit" in kinds or bool(replaces)
    if "type_vocab_size" in files.config:
        keys[PREFIX + "token_type_count"] = _token_types(files)
    return {**keys, **charsmap_of(charsmap), **_special(files, tokens)}


def _steps_of(section: object) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, those of sequences in their place."""
    if not isinstance(section, dict):
        return []
    inner = section.get("normalizers") or section.get("pretokenizers")
    if section.get("type") == "Sequence" and isinstance(inner, list):
        return [step for one in inner for step in _steps_of(one)]
    return [section]


def _pieces(
    files: Files, model: SentencePieceModel, unigram: bool
) -> tuple[list[str], list[float], list[int]]:
    """The model's pieces up to the rows of the embedding, then the added tokens over them."""
    added = _added(files, unigram)
    size = files.size_for(max((id for id, _, _ in added), default=0), len(model.pieces))
    missing = range(min(len(model.pieces), size), size)
    tokens = model.pieces[:size] + [f"[PAD{id}]" for id in missing]
    scores = model.scores[:size] + [_NO_SCORE] * len(missing)
    user = int(TokenType.USER_DEFINED)
    # User-defined pieces of the model are normal in the format, unless they are added tokens, too.
    types = [int(TokenType.NORMAL) if kind == user else kind for kind in model.types[:size]]
    types += [int(TokenType.UNUSED)] * len(missing)
    for id, text, kind in added:
        if 0 <= id < size:
            tokens[id], scores[id], types[id] = text, _ADDED_SCORE, int(kind)
    return tokens, scores, types


def _added(files: Files, unigram: bool) -> list[tuple[int, str, TokenType]]:
    """Added tokens, those of later files over those of earlier ones."""
    tokens = []
    for text, id in (files.json("added_tokens.json") or {}).items():
        if type(id) is not int:
            raise files.damaged("added_tokens.json", f"{text!r:.80} has the id {id!r:.80}")
        tokens.append((id, text, TokenType.USER_DEFINED))
    if unigram:
        return tokens
    phi = "phi3" in files.families
    decoder = (files.settings or {}).get("added_tokens_decoder") or {}
    listed = (files.tokenizer or {}).get("added_tokens") or [] if phi else []
    if not isinstance(decoder, dict) or not isinstance(listed, list):
        raise files.damaged("tokenizer_config.json", "added_tokens_decoder is no table")
    own = ((item.get("id") if isinstance(item, dict) else None, item) for item in listed)
    for id, item in [*decoder.items(), *own]:
        text = item.get("content") if isinstance(item, dict) else None
        if not isinstance(text, str) or not str(id).isdecimal():
            raise files.damaged("tokenizer_config.json", f"an added token is {item!r:.80}")
        kind = TokenType.CONTROL
        if not item.get("special") and (phi or not looks_special(text)):
            text, kind = text if phi else text.replace(SPACE, " "), TokenType.USER_DEFINED
        tokens.append((int(str(id)[:20]), text, kind))
    return tokens


def wordpiece(files: Files, source: TokenizerJson) -> dict[str, Any]:
    """In a GGUF "▁" marks a word's first piece; WordPiece marks the others, with "##"."""
    tokens, types = source.tokens()
    tokens = [
        text if kind == TokenType.CONTROL else text[2:] if text.startswith("##") else SPACE + text
        for text, kind in zip(tokens, types, strict=True)
    ]
    # All of them are cut alike; the name is that of most files.
    keys = keys_of("bert", "jina-v2-en", tokens, types)
    keys[PREFIX + "token_type_count"] = _token_types(files)
    return {**keys, **_special(files, tokens)}


def keys_of(
    model: str, pre: str, tokens: list[str], types: list[int], scores: list[float] | None = None
) -> dict[str, Any]:
    """The keys of a vocabulary of this kind, with this pre-tokenizer."""
    keys: dict[str, Any] = {
        PREFIX + "model": model,
        PREFIX + "pre": pre,
        PREFIX + "tokens": tokens,
        PREFIX + "token_type": np.array(types, np.int32),
    }
    if scores is not None:
        keys[PREFIX + "scores"] = np.array(scores, np.float32)
    return keys


def _special(files: Files, tokens: list[str]) -> dict[str, Any]:
    keys = special_tokens(files, tokens)
    size = files.vocab_size
    if "llama" in files.families and size == 32016:  # CodeLlama
        keys[PREFIX + "eot_token_id"] = 32010
    if "muse_glimmer" in files.families and "<|eot|>" in tokens:
        keys[PREFIX + "eot_token_id"] = tokens.index("<|eot|>")
    if files.families & _LLAMA and size == 49152:  # Granite and SmolLM
        keys[PREFIX + "add_bos_token"] = False
    return keys


def _space_prefix(files: Files) -> dict[str, Any]:
    adds = (files.settings or {}).get("add_prefix_space")
    counts = isinstance(adds, bool) and files.families & _LLAMA
    return {PREFIX + "add_space_prefix": adds} if counts else {}


def _token_types(files: Files) -> int:
    count = files.config.get("type_vocab_size", 1)
    return count if isinstance(count, int) and count > 0 else 1

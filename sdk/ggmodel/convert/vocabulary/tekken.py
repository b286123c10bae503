"""tekken.json: Mistral's vocabulary of byte pairs, whose ranks are those of tiktoken.

The special tokens have the first ids; the byte pairs follow in order of rank, as many as
`default_vocab_size` leaves room for. The file lists no merges: two neighbours join if their union
is a token, the one of the lowest rank first.
"""

from __future__ import annotations

import base64
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import FormatError
from ...tokenizer.encoder import bytes_in_alphabet
from ...tokenizer.vocabulary import LONGEST, PREFIX, Merge, check_count, check_letters, pairs_making
from .files import Files
from .kinds import byte_pairs
from .tokenizer_json import TokenizerJson

_NAME = "tekken.json"
# Files of these versions may name no special tokens: they have the same ones.
_UNNAMED = ("v1", "v2", "v3", "v7")
_SAME = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] "
    "[SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()
_ROLES = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_BYTES = 256
# The rest of tokenizer_config.json speaks of another vocabulary.
_KEPT = ("chat_template", "response_template")


def tekken(files: Files, pre: str | None) -> dict[str, Any] | None:
    """The metadata of a folder's tekken.json, None without one.

    Raises:
        FormatError: the file is damaged.
        TokenizerError: it exceeds a limit of vocabularies, or its pre-tokenizer is unknown.
    """
    content = files.json(_NAME)
    if content is None:
        return None
    files.tokenizer, files.source = Tekken(files, content).as_tokenizer_json(), _NAME
    settings = files.settings or {}
    kept = {name: settings[name] for name in _KEPT if name in settings}
    roles = {f"{role}_token": text for role, text in _ROLES.items()}
    files.settings = {**kept, **roles, "add_bos_token": True, "add_eos_token": False}
    made = byte_pairs(files, TokenizerJson(files), pre)
    # Nothing reads the scores, but other programs' files have them.
    return {**made, PREFIX + "scores": np.zeros(len(made[PREFIX + "tokens"]), np.float32)}


class Tekken:
    """The content of a tekken.json, checked where it is read."""

    def __init__(self, files: Files, content: dict[str, Any]):
        self._files, self._content = files, content
        self._name = str(files.folder / _NAME)
        self._config = content.get("config")

    def as_tokenizer_json(self) -> dict[str, Any]:
        """The content of the equivalent tokenizer.json."""
        if not isinstance(self._config, dict) or not isinstance(self._config.get("pattern"), str):
            raise self._damaged("config.pattern, which says where texts are cut, is missing")
        pattern = {"Regex": self._config["pattern"]}
        cut = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        spell = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        texts = [*self._special, *self._ranked]
        ids = {text: id for id, text in enumerate(texts)}
        if len(ids) < len(texts):
            twice = next(text for id, text in enumerate(texts) if ids[text] != id)
            raise self._damaged(f"it has the token {twice!r:.80} twice")
        return {
            "added_tokens": [
                {"id": id, "content": text, "special": True, "normalized": True}
                for id, text in enumerate(self._special)
            ],
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [cut, {**spell, "use_regex": False}],
            },
            "model": {
                "type": "BPE",
                "ignore_merges": True,
                "vocab": ids,
                "merges": self._merges(),
            },
        }

    def _damaged(self, what: str) -> FormatError:
        return self._files.damaged(_NAME, what)

    def _count(self, name: str) -> int:
        assert self._config is not None
        count = self._config.get(name)
        if type(count) is not int or count < 1:
            raise self._damaged(f"config.{name} should be a number, but is {count!r:.80}")
        check_count(f"{self._name}: config.{name}", count)
        return count

    @cached_property
    def _special(self) -> list[str]:
        """The special tokens by id; those without a text are called <SPECIAL_n>."""
        assert self._config is not None
        count = self._count("default_num_special_tokens")
        listed = self._content.get("special_tokens")
        if listed is None and self._config.get("version") in _UNNAMED:
            texts = _SAME
        elif not isinstance(listed, list):
            raise self._damaged(f"special_tokens should be a list, but is {listed!r:.80}")
        else:
            texts = [self._special_text(item, id) for id, item in enumerate(listed)]
        if len(texts) > count:
            raise self._damaged(
                f"it names {len(texts)} special tokens, but config.default_num_special_tokens is "
                f"{count}"
            )
        for text in (_ROLES["bos"], _ROLES["eos"]):
            if text not in texts:
                raise self._damaged(f"its special tokens lack {text}")
        return [*texts, *(f"<SPECIAL_{id}>" for id in range(len(texts), count))]

    def _special_text(self, item: Any, id: int) -> str:
        text = item.get("token_str") if isinstance(item, dict) else None
        if not isinstance(text, str) or not text or item.get("rank") != id:
            raise self._damaged(
                f"special_tokens[{id}] should have rank {id} and a token_str, but is {item!r:.80}"
            )
        return text

    @cached_property
    def _ranked(self) -> list[str]:
        """The byte pairs by rank, spelled in the alphabet of byte-level vocabularies."""
        size, special = self._count("default_vocab_size"), len(self._special)
        vocab = self._content.get("vocab")
        if not isinstance(vocab, list):
            raise self._damaged(f"vocab should be a list, but is {vocab!r:.80}")
        if not _BYTES <= size - special <= len(vocab):
            raise self._damaged(
                f"config.default_vocab_size = {size} with {special} special tokens leaves "
                f"{size - special} others, which should be {_BYTES} to {len(vocab)}, those of vocab"
            )
        tokens = [self._bytes(item, rank) for rank, item in enumerate(vocab[: size - special])]
        if tokens[:_BYTES] != [bytes([value]) for value in range(_BYTES)]:
            raise self._damaged(f"the first {_BYTES} tokens of vocab should be the single bytes")
        texts = [bytes_in_alphabet(token) for token in tokens]
        check_letters(f"{self._name}: vocab", texts)
        return texts

    def _bytes(self, item: Any, rank: int) -> bytes:
        try:
            token = base64.b64decode(item["token_bytes"], validate=True)
            fits = item["rank"] == rank and 0 < len(token) <= LONGEST
        except (KeyError, TypeError, ValueError):
            token, fits = b"", False
        if not fits:
            raise self._damaged(
                f"vocab[{rank}] should have rank {rank} and 1 to {LONGEST} token_bytes in base64, "
                f"but is {item!r:.80}"
            )
        return token

    def _merges(self) -> list[Merge]:
        """All pairs by the rank of their union, then of their parts."""
        ranks = {text: rank for rank, text in enumerate(self._ranked)}
        name, merges = f"{self._name}: its merges", []
        for text in self._ranked[_BYTES:]:
            pairs = [(ranks[left], ranks[right]) for left, right in pairs_making(text, ranks)]
            if not pairs:
                raise self._damaged(
                    f"vocab[{ranks[text]}], {text!r:.80}, is not made of two other tokens"
                )
            merges += [(self._ranked[left], self._ranked[right]) for left, right in sorted(pairs)]
            check_count(name, len(merges), "vocabulary_merges")
        return merges

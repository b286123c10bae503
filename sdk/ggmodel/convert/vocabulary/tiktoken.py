"""Files of tiktoken: each line has a token in base64 and its rank, which is its id.

They list no merges. tiktoken takes a piece of text that is a token as it is; in others it joins the
two neighbours whose union has the lowest rank, until no union is a token. Within a token that ends
with one pair, its merge, and none but this pair makes it in a text either: what joins inside of it
before joins in the same order. So ids are tiktoken's, whatever the order of ranks.

The expression that cuts texts, and names of special tokens, are in the program of the tokenizer's
class (tokenization_kimi.py, tokenization_qwen.py); a folder's tokenizer_config.json names the class
and some of the tokens.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from ...errors import FormatError, TokenizerError
from ...tokenizer.encoder import bytes_in_alphabet
from ...tokenizer.pretokenizers import PRE_TOKENIZERS
from ...tokenizer.vocabulary import LONGEST, Merge, check_count, check_letters, pairs_making
from .files import Files
from .kinds import byte_pairs
from .tokenizer_json import TokenizerJson

_NAME, _SUFFIX = "tiktoken.model", ".tiktoken"
# GLM-4 and Llama 3 call it as a SentencePiece model is called, which begins with a line's end.
_SHARED_NAME = "tokenizer.model"
_FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\s")
_SETTINGS = "tokenizer_config.json"


class _Class(NamedTuple):
    """A class of tokenizers.

    Attributes:
        pre: name of the pre-tokenizer.
        names: the special tokens that follow the ranks, from the first one's id.
    """

    pre: str
    names: Callable[[int], list[str]]


_QWEN = "<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{n}|>" for n in range(205))
_CLASSES = {
    "TikTokenTokenizer": _Class(  # Kimi, Moonlight
        "kimi-k2", lambda first: [f"<|reserved_token_{first + n}|>" for n in range(256)]
    ),
    "QWenTokenizer": _Class("qwen2", lambda first: [*_QWEN]),
}


def tiktoken(files: Files, pre: str | None) -> dict[str, Any] | None:
    """The metadata of a folder's tiktoken.model, NAME.tiktoken or tokenizer.model, None if it has
    no file of tiktoken.

    Raises:
        FormatError: a file is damaged.
        TokenizerError: it exceeds a limit of vocabularies, there are several, or the class of the
            tokenizer is unknown and `pre` None.
    """
    name = _name(files)
    if name is None:
        return None
    kind = (files.settings or {}).get("tokenizer_class")
    of_class = _CLASSES.get(kind) if isinstance(kind, str) else None
    pre = pre or (of_class.pre if of_class else None)
    if pre is None:
        raise TokenizerError(
            f"{files.folder / name} does not say where texts are cut, and {_SETTINGS} names no "
            f"class of tokenizers that does, but {kind!r:.80}; known are "
            f"{' and '.join(_CLASSES)}. If you know a pre-tokenizer that serves, name it (--pre "
            f"NAME, or pre= in Python), one of: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    ranks = _Ranks(files, name)
    files.tokenizer = {
        "added_tokens": _special(files, ranks, of_class.names(len(ranks.ids)) if of_class else []),
        "model": {"type": "BPE", "vocab": ranks.ids, "merges": ranks.merges()},
    }
    files.source = name
    return byte_pairs(files, TokenizerJson(files), pre)


def _name(files: Files) -> str | None:
    if files.path(_NAME):
        return _NAME
    names = sorted(path.name for path in files.folder.glob(f"*{_SUFFIX}"))
    if len(names) > 1:
        raise TokenizerError(
            f"{files.folder} has {len(names)} vocabularies, {', '.join(names):.200}; leave the one "
            f"that belongs to the model"
        )
    if not names and _FIRST_LINE.match(files.bytes(_SHARED_NAME) or b""):
        return _SHARED_NAME
    return names[0] if names else None


class _Ranks:
    """The content of a file.

    Attributes:
        ids: rank of each token, in their order; tokens are spelled in the alphabet of byte-level
            vocabularies.
    """

    def __init__(self, files: Files, name: str):
        self._path = str(files.folder / name)
        lines = (files.bytes(name) or b"").splitlines()
        check_count(self._path, len(lines))
        self.ids: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            if line:
                self._read(number, line)
        check_letters(self._path, self.ids)
        for value in range(256):
            if bytes_in_alphabet(bytes([value])) not in self.ids:
                raise self._damaged(f"no line has the byte 0x{value:02X} as a token")

    def _damaged(self, what: str) -> FormatError:
        return FormatError(f"{self._path}: {what}; get the file again")

    def _read(self, number: int, line: bytes) -> None:
        token, _, rank = line.partition(b" ")
        try:
            data = base64.b64decode(token, validate=True)
        except ValueError:
            data = b""
        if not 0 < len(data) <= LONGEST:
            raise self._damaged(
                f"line {number} should begin with 1 to {LONGEST} bytes in base64, but is "
                f"{line!r:.80}"
            )
        if rank.strip() != str(len(self.ids)).encode():
            raise self._damaged(
                f"line {number} should have rank {len(self.ids)}, as ranks rise by one from 0, but "
                f"is {line!r:.80}"
            )
        text = bytes_in_alphabet(data)
        if text in self.ids:
            raise self._damaged(
                f"line {number} has the token of rank {self.ids[text]} again, {line!r:.80}"
            )
        self.ids[text] = len(self.ids)

    def merges(self) -> list[Merge]:
        """The last pair of each token, by its rank."""
        name, count, merges = f"{self._path}: its pairs", 0, list[Merge]()
        for text in self.ids:
            pairs = list(pairs_making(text, self.ids))
            count += len(pairs)
            check_count(name, count, "vocabulary_merges")
            merges += pairs if len(pairs) < 2 else _last_pair(text, self.ids)
        return merges


def _last_pair(text: str, ids: Mapping[str, int]) -> list[Merge]:
    """The pair that tiktoken joins last to make a token; nothing if it gets stuck before."""
    never = len(ids)

    def unions(parts: list[str]) -> list[int]:
        return [ids.get(left + right, never) for left, right in pairwise(parts)]

    parts = [*text]
    ranks = unions(parts)
    while len(parts) > 2:
        if (lowest := min(ranks)) == never:
            return []
        at = ranks.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        before = max(at - 1, 0)
        ranks[before : at + 2] = unions(parts[before : at + 2])
    return [(parts[0], parts[1])]


def _special(files: Files, ranks: _Ranks, names: list[str]) -> list[dict[str, Any]]:
    """The added tokens: those of the class that have a row, over them those of the settings."""
    decoder = (files.settings or {}).get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise files.damaged(_SETTINGS, "added_tokens_decoder is no table")
    first = len(ranks.ids)
    size = files.vocab_size or first + len(names)
    added = {first + n: (text, True) for n, text in enumerate(names) if first + n < size}
    for id, item in decoder.items():
        text = item.get("content") if isinstance(item, dict) else None
        if not isinstance(text, str) or not text or not id.isdecimal() or len(id) > 20:
            raise files.damaged(_SETTINGS, f"the added token {id:.40} is {item!r:.80}")
        if text in ranks.ids:
            raise files.damaged(_SETTINGS, f"the added token {text!r:.80} is one of the ranks, too")
        added[int(id)] = text, bool(item.get("special"))
    if len({text for text, _ in added.values()}) < len(added):
        raise files.damaged(_SETTINGS, "two added tokens have one text")
    return [
        {"id": id, "content": text, "special": special, "normalized": True}
        for id, (text, special) in added.items()
    ]

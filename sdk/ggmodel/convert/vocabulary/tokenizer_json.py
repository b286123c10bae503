"""tokenizer.json: the tokens and merges of a vocabulary, and the steps of a text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import FormatError
from ...tokenizer.vocabulary import SPACE, TokenType, check_count, check_letters
from .files import Files
from .probe import NORMALIZED, probes
from .special_tokens import NAMES
from .steps import Steps


@dataclass
class Added:
    """A token that is cut from the text before all others.

    Attributes:
        special: it is for the model rather than for readers.
        normalized: it is compared with the text after the normalizer.
    """

    special: bool
    normalized: bool


class TokenizerJson:
    """A checked tokenizer.json, with what tokenizer_config.json adds to it.

    Attributes:
        source: name of the file, or of the one that stands for it.
        kind: kind of model, such as "BPE".
        model: the section on the model.
        ids: id of each token of the model and of the added ones.
        added: the added tokens by text.
    """

    def __init__(self, files: Files):
        self._files = files
        content = files.tokenizer
        if content is None:
            raise FileNotFoundError(files.folder / files.source)
        self.source = files.source
        self.content: dict[str, Any] = content
        self.model = self._section("model")
        self.kind = self.model.get("type") or ("BPE" if "merges" in self.model else None)
        self.ids = self._vocab()
        self.added = self._added()

    def wrong(self, what: str) -> FormatError:
        return self._files.damaged(self.source, what)

    def _section(self, name: str) -> dict[str, Any]:
        section = self.content.get(name) or {}
        if not isinstance(section, dict):
            raise self.wrong(f"{name} should be an object, but is {section!r:.80}")
        return section

    def _vocab(self) -> dict[str, int]:
        vocab = self.model.get("vocab")
        if not isinstance(vocab, dict) or not set(map(type, vocab.values())) <= {int}:
            raise self.wrong(f"model.vocab of a {self.kind} should give an id for each token")
        check_count(f"{self.source}: model.vocab", len(vocab))
        check_letters(f"{self.source}: model.vocab", vocab)
        return dict(vocab)

    def _added(self) -> dict[str, Added]:
        """The added tokens; ids of those that the model lacks go into `ids`."""
        added: dict[str, Added] = {}
        known = set(self.ids.values())
        for item in self._listed():
            text, id = item["content"], item["id"]
            if text not in self.ids:  # else the model's own id counts
                if id in known:
                    raise self.wrong(f"the added token {text!r:.80} has the id of another, {id}")
                self.ids[text] = id
                known.add(id)
            special = bool(item.get("special"))
            added[text] = Added(special, bool(item.get("normalized", not special)))
        settings = self._files.settings or {}
        more = settings.get("additional_special_tokens") or []
        # Special if named there, even if tokenizer.json does not say so.
        id = max(self.ids.values(), default=-1)
        named = [settings.get(f"{name}_token") for name in NAMES]
        for token in [*named, *(more if isinstance(more, list) else [])]:
            text = token.get("content") if isinstance(token, dict) else token
            if not isinstance(text, str):
                continue
            if text not in self.ids:  # transformers gives it the next id, if there is room
                if id + 1 >= (self._files.vocab_size or 0):
                    continue
                self.ids[text] = id = id + 1
            added.setdefault(text, Added(True, False)).special = True
        return added

    def _listed(self) -> list[dict[str, Any]]:
        """The added tokens of tokenizer.json, and those only in tokenizer_config.json."""
        listed = self.content.get("added_tokens") or []
        decoder = (self._files.settings or {}).get("added_tokens_decoder") or {}
        if not isinstance(listed, list) or not isinstance(decoder, dict):
            raise self.wrong(f"added_tokens should be a list, but is {listed!r:.80}")
        check_count(f"{self.source}: added_tokens", len(listed) + len(decoder))
        self._check(listed)
        texts = {item["content"] for item in listed}
        more = [
            {**item, "id": int(id[:20])}
            for id, item in decoder.items()
            if isinstance(item, dict) and id.isdecimal()
        ]
        self._check(more)
        return listed + [item for item in more if item["content"] not in texts]

    def _check(self, listed: list[Any]) -> None:
        for item in listed:
            fits = isinstance(item, dict) and isinstance(item.get("content"), str)
            if not fits or type(item.get("id")) is not int:
                raise self.wrong(f"an added token has no text or no id: {item!r:.80}")

    def tokens(self) -> tuple[list[str], list[int]]:
        """Texts and types of all ids up to the number of tokens.

        Unused ids become [PADn]. An added token is spelled as in a text, unless it is compared
        after the normalizer.

        Raises:
            FormatError: an id lies outside the embedding.
        """
        by_id = {id: text for text, id in self.ids.items()}
        if len(by_id) != len(self.ids) or not by_id:
            raise self.wrong("model.vocab has no tokens, or one id for two of them")
        first, last, rows = min(by_id), max(by_id), self._files.rows
        size = self._files.size_for(last, len(by_id))
        if first < 0 or last >= size:
            limit = "vocab_size in config.json" if rows is None else "rows of its embedding"
            raise self.wrong(
                f"the ids of its tokens go from {first} to {last}, but the model has "
                f"{rows or size} ({limit}); it may belong to another model"
            )
        tokens, types = [], []
        for id in range(size):
            text = by_id.get(id)
            added = None if text is None else self.added.get(text)
            kind = TokenType.NORMAL
            if text is None:
                text, kind = f"[PAD{id}]", TokenType.UNUSED
            elif added is not None:
                text = text if added.normalized else self._steps.result("decode", text)
                kind = TokenType.CONTROL
                if not added.special and not looks_special(text):
                    text, kind = text.replace(SPACE, " "), TokenType.USER_DEFINED
            tokens.append(text)
            types.append(int(kind))
        return tokens, types

    def normalized(self, text: str) -> str:
        """The normalizer's result for a text of `NORMALIZED`.

        Raises:
            TokenizerError: as `Steps.result`; `cut` and `cut_normalized` too.
        """
        return self._steps.result("normalize", text)

    def cut(self, text: str) -> list[str]:
        """The pre-tokenizer's pieces of a normalized text of `probes()`."""
        return self._steps.result("cut", text)

    def cut_normalized(self, text: str) -> list[str]:
        """The pieces of what the normalizer makes of a text of `NORMALIZED`."""
        return self._steps.result("cut_normalized", text)

    def merges(self) -> list[tuple[str, str]]:
        """Pairs in order of rank.

        Raises:
            FormatError: they are no pairs.
        """
        merges = self.model.get("merges") or []
        if not isinstance(merges, list):
            raise self.wrong(f"merges should be a list, but are {merges!r:.80}")
        check_count(f"{self.source}: merges", len(merges), "vocabulary_merges")
        pairs = [tuple(m.split(" ", 1)) if isinstance(m, str) else m for m in merges]
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise self.wrong(f"a merge should be a pair, but is {pair!r:.80}")
            if not isinstance(pair[0], str) or not isinstance(pair[1], str):
                raise self.wrong(f"a merge should be a pair of texts, but is {pair!r:.80}")
        return [(left, right) for left, right in pairs]

    @cached_property
    def _steps(self) -> Steps:
        """The steps, and all that may be asked about them."""
        asked = {
            "normalize": NORMALIZED,
            "cut": probes(),
            "cut_normalized": NORMALIZED,
            "decode": [text for text, added in self.added.items() if not added.normalized],
        }
        return Steps(str(self._files.folder / self.source), self.content, asked)


def looks_special(text: str) -> bool:
    """Whether a token looks like one for the model; some publishers do not mark them."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<｜") and text.endswith("｜>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )

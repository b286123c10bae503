"""The names by which users of transformers know a tokenizer's methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Encoding(dict[str, list[Any]]):
    """Token ids as transformers returns them: a dict whose keys are attributes, too."""

    def __getattr__(self, name: str) -> list[Any]:
        if name in self:
            return self[name]
        raise AttributeError(name)


class TransformersNames:
    """Transformers' names for what a `Tokenizer` has under its own."""

    size: int
    bos: int | None
    eos: int | None
    encode: Callable[..., list[int]]

    @property
    def vocab_size(self) -> int:
        """`size`."""
        return self.size

    @property
    def bos_token_id(self) -> int | None:
        """`bos`."""
        return self.bos

    @property
    def eos_token_id(self) -> int | None:
        """`eos`."""
        return self.eos

    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True) -> Encoding:
        """`encode` as transformers spells it: `tokenizer(text).input_ids`, or `["input_ids"]`.

        Args:
            text: a text, or several: then there is a list of ids for each.
            add_special_tokens: see `encode`'s `add_special`.

        Returns:
            "input_ids", and an "attention_mask" of as many ones.

        Raises:
            TokenizerError: as for `encode`.
        """
        if not isinstance(text, str) and isinstance(text, Sequence):
            ids = [self.encode(one, add_special=add_special_tokens) for one in text]
            return Encoding(input_ids=ids, attention_mask=[[1] * len(one) for one in ids])
        ids = self.encode(text, add_special=add_special_tokens)
        return Encoding(input_ids=ids, attention_mask=[1] * len(ids))

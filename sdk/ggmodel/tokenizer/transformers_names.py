"""The names by which users of transformers know a tokenizer's methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


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
    _templates: dict[str, Any]  # chat templates by their keys

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

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> list[int] | str:
        """The prompt of messages by the file's chat template, as transformers spells it; see
        `ggmodel.chat.ChatTemplate`.

        Args:
            chat_template: Jinja text to use instead, or the name of another template of the file.
            tokenize: give token ids rather than text.

        Raises:
            TemplateError, PromptError: as for `ChatTemplate.render`.
        """
        from ..chat import ChatTemplate

        vocabulary = cast("Tokenizer", self)
        template = ChatTemplate.from_metadata(self._templates, vocabulary, chat_template)
        render = template.encode if tokenize else template.render
        return render(
            conversation, tools=tools, add_generation_prompt=add_generation_prompt, **variables
        )

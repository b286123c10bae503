"""Prompts: from texts, messages, token ids, images and other items to inputs as the engine numbers
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...chat.messages import LISTS, item_of, mismatch, split_at, take_items
from ...chat.template import ChatTemplate
from ...errors import ConfigError, PromptError, PromptTooLong, TokenizerError
from ...gguf_file import TensorSource
from ...model import Input, MultimodalEmbedding
from ..engine.engine import Engine
from ..engine.probes import Probe
from .prompt_parts import PromptItem, PromptText, joined, kind_of

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer

# Items are all that `ggmodel.image.open_image` takes and its kin, except strings: these are text.
Prompt = str | Sequence[int] | Sequence[Any]

# Arguments of `ChatTemplate.render` that no variable of a template can have the name of.
_OWN = frozenset({"self", "messages", "markers", "image_marker", "continues"})


class Prompts:
    """Reads prompts for a model.

    Args:
        tokenizer: None without a vocabulary.
        source: the file, which holds the chat template.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None, source: TensorSource):
        self.engine, self.tokenizer, self._source = engine, tokenizer, source
        self._inputs = engine.inputs

    def vocabulary(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            TokenizerError: there is none.
        """
        if self.tokenizer is None:
            raise TokenizerError(
                f"{self._source.name} holds no vocabulary (tokenizer.ggml.*): give token ids"
            )
        return self.tokenizer

    def read(
        self,
        prompt: Prompt,
        truncate: bool | None = False,
        keep: int = 0,
        room: int = 0,
        probe: Probe | None = None,
    ) -> np.ndarray:
        """A prompt as numbers int32 [n], see `InputTable`. Numbers of images stay valid as long as
        this array lives, or a slot has them.

        Args:
            truncate: shorten a prompt that leaves less than `room` positions to the first `keep`
                inputs and the last ones. A text far beyond the context is shortened before it is
                encoded. None: do not, and let the error tell of this choice.
            probe: the request's captures and patches.

        Raises:
            PromptError: it is no prompt, or empty, or has an id out of range.
            PromptTooLong: it has more tokens than the context.
            ImageError: an image cannot be read.
        """
        most = self.engine.context_length
        prompt = self._bounded(prompt, most, keep if truncate else None)
        numbers = self.numbers(prompt, keep if truncate else None, probe)
        if not len(numbers):
            raise PromptError("the prompt is empty; give at least one token")
        array = self._checked(numbers)
        if truncate and len(array) > most - room:
            array = self._truncated(array.tolist(), keep, most - room)
            array = self.engine.keep(array) if (array < 0).any() else array
        if len(array) > most:
            choice = "; truncate=True leaves out its middle, or the oldest turns of a conversation"
            raise PromptTooLong(
                f"the prompt has {len(array)} tokens, the context {most}; load the model with a "
                f"larger context_length, or shorten the prompt{choice if truncate is None else ''}",
                len(array),
                most,
            )
        return array

    def ids(self, prompt: str | Sequence[int]) -> list[int]:
        """The token ids of a text, or those given: what a model goes on with, or its encoder reads.
        Raises as `read`."""
        if not self.engine.model.prompt_item:
            return self.read(prompt).tolist()
        ids = self.vocabulary().encode(prompt) if isinstance(prompt, str) else [*prompt]
        return self._checked(ids).tolist()

    def _bounded(self, prompt: Prompt, most: int, kept: int | None) -> Prompt:
        """The prompt, whose texts may fit into `most` positions by their lengths, before any of
        them is encoded.

        Args:
            kept: leave out the middle of a text that is too long, but for as many tokens at its
                beginning.

        Raises:
            PromptTooLong: the texts are too long.
        """
        parts = [prompt] if isinstance(prompt, str) or not _is_list(prompt) else prompt
        texts = [part for part in parts if isinstance(part, (str, PromptText))]
        size = sum(len(part if isinstance(part, str) else part.text) for part in texts)
        if kept is None or len(parts) != 1 or not size:
            self.check_length(size, most)
            return prompt
        text = texts[0] if isinstance(texts[0], str) else texts[0].text
        first, last = self.longest_text(kept), self.longest_text(most)
        if size <= first + last:
            return prompt
        text = text[:first] + text[-last:]
        return text if isinstance(texts[0], str) else [replace(texts[0], text=text)]

    def longest_text(self, most: int) -> int:
        """The characters that a text of `most` tokens has at most."""
        return most * self.vocabulary().longest

    def check_length(self, size: int, most: int) -> None:
        """Raises PromptTooLong if texts of so many characters have more than `most` tokens, however
        they are encoded."""
        if size and size > self.longest_text(most):
            raise PromptTooLong(
                f"the prompt has {size:,} characters, more than {most:,} tokens of this vocabulary "
                f"can hold ({self.longest_text(most):,}); shorten it, or load the model with a "
                "larger context_length",
                -(-size // self.vocabulary().longest),
                most,
            )

    def _checked(self, numbers: list[int] | np.ndarray) -> np.ndarray:
        """The numbers as an array, negative ones only if `number` made them."""
        numbered = isinstance(numbers, np.ndarray)
        for n in dict.fromkeys(numbers.tolist() if numbered else numbers):
            token: int | None = n
            if numbered and n < 0:
                place = self._inputs[n]
                laid = place.embedding is not None and not place.whole
                token = None if laid else place.token  # a placeholder may be any
            if token is not None and not 0 <= token < self.engine.vocabulary:
                raise PromptError(
                    f"token id {token} is not in the vocabulary of {self.engine.vocabulary}"
                )
        return np.asarray(numbers, np.int32)

    def _truncated(self, numbers: list[int], keep: int, most: int) -> np.ndarray:
        """The first `keep` inputs and as many of the last as make `most`; groups and
        images stay whole."""
        kept = self._inputs.before_image(numbers, min(keep, most))
        tail = self._inputs.after_image(numbers, len(numbers) - most + kept)
        if tail >= len(numbers):
            raise PromptError(
                f"nothing is left of the prompt's end: {kept} of {most} positions are kept for its "
                "beginning; give a smaller num_keep or a larger context_length"
            )
        return np.array(numbers[:kept] + numbers[tail:], np.int32)

    def numbers(
        self, prompt: Prompt, keep: int | None = None, probe: Probe | None = None
    ) -> list[int] | np.ndarray:
        """The inputs of a prompt, not checked; a plain list if all of them are token ids.

        Args:
            keep: shorten the text for an encoder to so many of its first tokens and the last ones;
                None: do not.
            probe: the request's captures and patches.

        Raises:
            PromptError: it is no prompt.
            PromptTooLong: the text for an encoder has more tokens than the context.
            ImageError: an image cannot be read.
        """
        if isinstance(prompt, str):
            return self._of_ids(self.vocabulary().encode(prompt), keep, probe)
        if not _is_list(prompt):
            raise PromptError(
                f"a prompt is text, or a list of texts, token ids and images, not "
                f"{type(prompt).__name__}; put an image into a list, or give it with images="
            )
        if len(prompt) > 1 and all(isinstance(part, str) for part in prompt):
            raise PromptError(
                f"these are {len(prompt)} texts, and a prompt is one: join them, or give them to "
                "batch(prompts), which answers each"
            )
        pieces: list[Any] = []
        for i, part in enumerate(prompt):
            if isinstance(part, str):
                encode = partial(self.vocabulary().encode, add_special=i == 0)
                pieces.append(PromptText(part, encode))
            elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
                pieces.append(int(part))
            elif isinstance(part, (Input, PromptText)):
                pieces.append(part)
            else:
                plain = not self.engine.model.prompt_item
                if i == 0 and plain and self.tokenizer is not None:  # special tokens before a text
                    pieces.append(PromptText("", self.tokenizer.encode))
                pieces.append(self._item(part, probe))
        return self._numbered(pieces, keep, probe)

    def _of_ids(
        self, ids: list[int], keep: int | None, probe: Probe | None
    ) -> list[int] | np.ndarray:
        """The inputs of a prompt of token ids: these, or what they become for an encoder."""
        kind, most = self.engine.model.prompt_item, self.engine.context_length
        if not (kind and ids):
            return ids
        if len(ids) > most and keep is not None:
            keep = min(keep, most)
            ids = ids[:keep] + ids[len(ids) - most + keep :]
        if len(ids) > most:
            raise PromptTooLong(
                f"the prompt has {len(ids)} tokens, and the encoder reads {most}; load the model "
                "with a larger context_length, or shorten the prompt",
                len(ids),
                most,
            )
        tokens = self._checked(ids).astype(np.float32)
        inputs = self.engine.images.expand([self._item(PromptItem(kind, tokens), probe)])
        return self.engine.number([one for one in inputs if isinstance(one, Input)])

    def _numbered(
        self, pieces: Sequence[Any], keep: int | None, probe: Probe | None
    ) -> list[int] | np.ndarray:
        """Numbers of texts, ids, inputs, and items as their embeddings."""
        each = [one.ids() if isinstance(one, PromptText) else one for one in pieces]
        if all(
            isinstance(one, int) or isinstance(piece, PromptText)
            for piece, one in zip(pieces, each, strict=True)
        ):
            ids = [id for one in each for id in (one if isinstance(one, list) else [one])]
            return self._of_ids(ids, keep, probe)
        inputs: list[Any] = []
        texts: list[tuple[PromptText, list[Input]]] = []
        for piece, one in zip(pieces, each, strict=True):
            if isinstance(piece, PromptText):
                texts.append((piece, [Input(token) for token in one]))
                inputs += texts[-1][1]
            else:
                inputs.append(Input(one) if isinstance(one, int) else one)
        if any(isinstance(one, list) for one in inputs):
            inputs = joined(self.engine.images.expand(inputs), texts, self._in_the_middle)
        return self.engine.number(inputs)

    def _at_the_beginning(self, text: str) -> list[int]:
        return self.vocabulary().encode(text)

    def _in_the_middle(self, text: str) -> list[int]:
        tokenizer = self.tokenizer or self.engine.model.tokenizer or self.vocabulary()
        return tokenizer.encode(text, add_special=False)

    def _item(self, part: Any, probe: Probe | None) -> list[MultimodalEmbedding]:
        """The embeddings of an item in a prompt, not computed yet."""
        images, kind = self.engine.images, None
        if isinstance(part, PromptItem):
            kind, part = part.kind, part.item
        embeddings = part
        if not _are_embeddings(part):
            if kind is None:
                kind, part = item_of(part) or (kind_of(part, self.engine.model.modalities()), part)
            embeddings = images.encode_media(kind, part, probe=probe)
        if probe is not None:
            probe.elsewhere |= images.calls(embeddings, probe)
        return embeddings

    def marker(self, kind: str) -> str:
        """The marker of an item in a text.

        Raises:
            Unsupported: the model takes no such items.
        """
        return self.engine.images.modality(kind).marker

    def template(self, template: str | None = None) -> ChatTemplate:
        """The file's chat template, or another one; see `ChatTemplate.from_metadata`."""
        if template is None:
            return self._default_template
        return ChatTemplate.from_metadata(self._source.metadata, self.tokenizer, template)

    @cached_property
    def _default_template(self) -> ChatTemplate:
        return ChatTemplate.from_metadata(self._source.metadata, self.tokenizer)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> PromptText:
        """The text that a chat template makes of messages, and the items whose places it marks.

        Raises:
            TemplateError: there is no template, it refuses the messages, or it fails.
            PromptError: the messages are malformed.
            ConfigError: a variable has a name that `ChatTemplate.render` takes.
        """
        _check_variables(variables)
        self.vocabulary()
        chosen = self.template(template)
        messages, items = take_items(messages)
        markers = {kind: self.marker(kind) for kind, _ in items}
        options = {"tools": tools, **(variables or {}), "continues": continues}
        text = chosen.render(messages, markers=markers, **options)
        return PromptText(text, chosen.tokenize, markers, items)

    def chat(self, text: PromptText) -> list[Any]:
        """The prompt of a text, not encoded yet: texts, and its items in the places of their
        markers, of which the text has as many."""
        if not text.items:
            return [text]
        texts, occurring = split_at(text.text, text.markers.values())
        queues: dict[str, list[tuple[str, Any]]] = {marker: [] for marker in occurring}
        for kind, item in text.items:
            queues[text.markers[kind]].append((kind, item))
        pieces: list[Any] = [PromptText(texts[0], text.encode)]
        for marker, after in zip(occurring, texts[1:], strict=True):
            item = PromptItem(*queues[marker].pop(0))
            pieces += [item, PromptText(after, self._in_the_middle)]
        return pieces

    def encoded(self, pieces: Sequence[Any]) -> list[Any]:
        """A prompt with the embeddings of its items, not computed yet, in place of these."""
        return [self._item(one, None) if isinstance(one, PromptItem) else one for one in pieces]

    def ending(self, template: str | None, variables: Mapping[str, Any] | None) -> str:
        """The end of a chat's prompt, which may have begun the answer."""
        _check_variables(variables)
        chosen = self.template(template)
        return chosen.render([{"role": "user", "content": "?"}], **(variables or {}))

    def with_items(self, prompt: Prompt, lists: Mapping[str, Iterable[Any]]) -> Prompt:
        """A text with images and other items in the places of their markers, or before it.

        Args:
            lists: option → its items: "images", "audio", "videos".

        Raises:
            PromptError: markers do not match, or the prompt is no text.
        """
        items: list[tuple[str, Any]] = []
        for option, some in lists.items():
            if isinstance(some, (str, bytes)) or not isinstance(some, Iterable):
                called = option if option != "audio" else "sounds"
                raise PromptError(
                    f"{option} is a list of {called}, not {type(some).__name__}: "
                    f"give {option}=[ITEM]"
                )
            items += [(LISTS[option], item) for item in some]
        if not items:
            return prompt
        if not isinstance(prompt, str):
            option = next(name for name, some in lists.items() if some)
            raise PromptError(
                f"{option}= goes with a text; put them into the list where they belong"
            )
        markers = {kind: self.marker(kind) for kind, _ in items}
        occurring = split_at(prompt, markers.values())[1]
        before = [(kind, item) for kind, item in items if markers[kind] not in occurring]
        within = [(kind, item) for kind, item in items if markers[kind] in occurring]
        if wrong := mismatch(occurring, [kind for kind, _ in within], markers):
            raise PromptError(f"the prompt holds {wrong}")
        first = [PromptItem(kind, item) for kind, item in before]
        if not within:
            return [*first, prompt]
        markers = {kind: markers[kind] for kind, _ in within}
        begin = self._in_the_middle if first else self._at_the_beginning
        return [*first, *self.chat(PromptText(prompt, begin, markers, within))]


def _are_embeddings(item: object) -> bool:
    return (
        isinstance(item, list)
        and bool(item)
        and all(isinstance(one, MultimodalEmbedding) for one in item)
    )


def _is_list(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _check_variables(variables: Mapping[str, Any] | None) -> None:
    """Checks names of variables of a template.

    Raises:
        ConfigError: they are no texts, or one is an argument of `ChatTemplate.render`.
    """
    if variables is None:
        return
    if not isinstance(variables, Mapping) or not all(isinstance(n, str) for n in variables):
        raise ConfigError(f"variables is {variables!r:.200}; it must be a dict of names and values")
    for name in sorted(_OWN & {*variables}):
        raise ConfigError(f"variables has {name!r}, which ggmodel gives itself; leave it out")

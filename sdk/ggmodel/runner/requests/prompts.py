"""Prompts: from texts, messages, token ids and images to inputs as the engine numbers them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import PromptError, TokenizerError
from ...model import Input, MultimodalEmbedding
from ..engine.engine import Engine

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer

# Images are all that `ggmodel.image.open_image` takes, except strings: these are text.
Prompt = str | Sequence[int] | Sequence[Any]

_NO_PART = (bool, float, complex, list, tuple, Mapping, set, type(None))


class Prompts:
    """Reads prompts for a model.

    Args:
        tokenizer: None without a vocabulary.
        name: of the file, for messages.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer | None, name: str):
        self.engine, self.tokenizer, self.name = engine, tokenizer, name
        self._inputs = engine.inputs

    def vocabulary(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            TokenizerError: there is none.
        """
        if self.tokenizer is None:
            raise TokenizerError(
                f"{self.name} holds no vocabulary (tokenizer.ggml.*): give token ids"
            )
        return self.tokenizer

    def read(
        self, prompt: Prompt, truncate: bool | None = None, keep: int = 0, room: int = 0
    ) -> np.ndarray:
        """A prompt as numbers int32 [n], see `InputTable`. Numbers of images stay valid as long as
        this array lives, or a slot has them.

        Args:
            truncate: shorten a prompt that leaves less than `room` positions to the first `keep`
                inputs and the last ones; None: the caller has no such choice.

        Raises:
            PromptError: it is no prompt, or empty, or has an id out of range, or is too long.
            ImageError: an image cannot be read.
        """
        numbers = self.numbers(prompt)
        if not len(numbers):
            raise PromptError("the prompt is empty; give at least one token")
        array = self._checked(numbers)
        most = self.engine.context_length
        if truncate and len(array) > most - room:
            array = self._truncated(array.tolist(), keep, most - room)
            array = self.engine.keep(array) if (array < 0).any() else array
        if len(array) > most:
            raise PromptError(
                f"the prompt has {len(array)} tokens, the context {most}; load the model with a "
                "larger context_length, or shorten the prompt"
                + ("" if truncate is None else "; truncate=True leaves out its middle")
            )
        return array

    def _checked(self, numbers: list[int] | np.ndarray) -> np.ndarray:
        """The numbers as an array, negative ones only if `number` made them."""
        known = isinstance(numbers, np.ndarray)
        for n in dict.fromkeys(numbers.tolist() if known else numbers):
            token: int | None = n
            if known and n < 0:
                place = self._inputs[n]
                laid = place.embedding is not None and not place.whole
                token = None if laid else place.token  # a placeholder may be any
            if token is not None and not 0 <= token < self.engine.vocabulary:
                raise PromptError(
                    f"token id {token} is not in the vocabulary of {self.engine.vocabulary}"
                )
        return np.asarray(numbers, np.int32)

    def _truncated(self, numbers: list[int], keep: int, most: int) -> np.ndarray:
        """The first `keep` inputs and as many of the last as make `most`; groups stay whole."""
        kept = self._inputs.before(numbers, min(keep, most))
        tail = self._inputs.after(numbers, len(numbers) - most + kept)
        if tail >= len(numbers):
            raise PromptError(
                f"nothing is left of the prompt's end: {kept} of {most} positions are kept for its "
                "beginning; give a smaller num_keep or a larger context_length"
            )
        return np.array(numbers[:kept] + numbers[tail:], np.int32)

    def numbers(self, prompt: Prompt) -> list[int] | np.ndarray:
        """The inputs of a prompt, not checked; a plain list if all of them are token ids.

        Raises:
            PromptError: it is no prompt.
            ImageError: an image cannot be read.
        """
        if isinstance(prompt, str):
            return self.vocabulary().encode(prompt)
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
        inputs: list[Any] = []
        for i, part in enumerate(prompt):
            if isinstance(part, str):
                inputs += self.vocabulary().encode(part, add_special=i == 0)
            elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
                inputs.append(int(part))
            elif isinstance(part, Input):
                inputs.append(part)
            else:
                if i == 0 and self.tokenizer is not None:
                    inputs += self.tokenizer.encode("")  # special tokens before a text
                inputs.append(self.image(part))
        if all(isinstance(one, int) for one in inputs):
            return inputs
        inputs = [Input(one) if isinstance(one, int) else one for one in inputs]
        if any(isinstance(one, list) for one in inputs):
            inputs = self.engine.images.expand(inputs)
        return self.engine.number(inputs)

    def image(self, part: Any) -> list[MultimodalEmbedding]:
        """The embeddings of an image in a prompt, not computed yet."""
        if (
            isinstance(part, list)
            and part
            and all(isinstance(e, MultimodalEmbedding) for e in part)
        ):
            return part
        if isinstance(part, _NO_PART):
            raise PromptError(
                "a prompt is text, or a list of texts, token ids and images, not of "
                f"{type(part).__name__}; batch(prompts) takes several prompts"
            )
        return self.engine.images.encode(part)

    def marker(self) -> str:
        """The marker of an image in a text.

        Raises:
            Unsupported: the model takes no images.
        """
        self.engine.images.need_sight()
        return self.engine.model.image_marker

    def chat(
        self,
        metadata: Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The prompt of messages by a chat template: token ids, and images between them.

        Args:
            metadata: of the file, which holds the template.

        Raises:
            TemplateError: there is no template, it refuses the messages, or it fails.
            PromptError: the messages are malformed.
        """
        from ...chat import ChatTemplate, take_images

        chosen = ChatTemplate.from_metadata(metadata, self.vocabulary(), template)
        messages, images = take_images(messages)
        marker = self.marker() if images else ""
        given = {"tools": tools, **(variables or {})}
        return self.between(chosen.encode_parts(messages, image_marker=marker, **given), images)

    def with_images(self, prompt: Prompt, images: Iterable[Any]) -> Prompt:
        """A text with images in the places of the markers, or before it."""
        if isinstance(images, str) or not isinstance(images, Iterable):
            raise PromptError(f"images is a list of images, not {type(images).__name__}")
        found = [self._given(image) for image in images]
        if not found:
            return prompt
        if not isinstance(prompt, str):
            raise PromptError("images= goes with a text; put them into the list where they belong")
        marker = self.marker()
        texts = prompt.split(marker) if marker else [prompt]
        if len(texts) == 1:
            return [*found, prompt]
        if len(texts) != len(found) + 1:
            raise PromptError(
                f"the prompt holds {marker!r} {len(texts) - 1} times for {len(found)} images"
            )
        return self.between([[text] for text in texts], found)

    def between(self, parts: Sequence[Sequence[Any]], images: Sequence[Any]) -> list[Any]:
        """A prompt of these parts with an image between each two of them."""
        prompt: list[Any] = list(parts[0])
        for image, part in zip(images, parts[1:], strict=True):
            prompt += [self._given(image), *part]
        return prompt

    def _given(self, image: Any) -> list[MultimodalEmbedding]:
        """An image given as such: strings are paths and data URLs."""
        return self.engine.images.encode(image) if isinstance(image, str) else self.image(image)


def _is_list(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))

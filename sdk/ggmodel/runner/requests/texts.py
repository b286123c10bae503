"""Texts of a prompt: what a model adds to them is tokenised as one string with what stands beside
it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...model import Input

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Text:
    """A text of a prompt.

    Attributes:
        encode: gives token ids; that of the first text adds the special tokens that begin a prompt.
    """

    text: str
    encode: Encode

    def ids(self) -> list[int]:
        """Its tokens."""
        return self.encode(self.text)


def joined(
    made: Sequence[Input | str], texts: Sequence[tuple[Text, list[Input]]], encode: Encode
) -> list[Input]:
    """The inputs of a prompt, the texts that a model put among them tokenised. Texts without
    another input between them are one string.

    Args:
        made: result of `Model.post_tokenize`.
        texts: those of the prompt, with their inputs. A text whose inputs stand in `made` as they
            were is joined with the model's texts beside it.
        encode: token ids of a text in the middle of a prompt.
    """
    begins = {id(inputs[0]): (text, inputs) for text, inputs in texts if inputs}
    result: list[Input] = []
    run: list[tuple[Text, list[Input]] | str] = []

    def finish() -> None:
        if any(isinstance(one, str) for one in run):
            string = "".join(one if isinstance(one, str) else one[0].text for one in run)
            first = encode if isinstance(run[0], str) else run[0][0].encode
            result.extend(map(Input, first(string)))
        else:
            result.extend(token for one in run for token in one[1] if isinstance(token, Input))
        run.clear()

    i = 0
    while i < len(made):
        one = made[i]
        text = None if isinstance(one, str) else begins.get(id(one))
        if isinstance(one, str):
            run.append(one)
            i += 1
        elif text is not None and _same(made[i : i + len(text[1])], text[1]):
            run.append(text)
            i += len(text[1])
        else:
            finish()
            result.append(one)
            i += 1
    finish()
    return result


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))

"""Evaluation on a file of tasks: choices by log-likelihood, and answers by exact match.

Each line of the file is a JSON object:

    {"prompt": TEXT, "choices": [TEXT, …], "answer": NUMBER or TEXT}
    {"prompt": TEXT, "answer": TEXT or [TEXT, …], "stop": [TEXT, …], "max_tokens": N}

A choice is the likeliest if the sum of its tokens' log-probabilities behind the prompt is the
largest; `acc_norm` divides these sums by the choices' lengths in characters. Other answers are
generated, the likeliest token each time, and compared without white space around them. Definitions
are those of lm-eval.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, PromptError
from ..reading import parse_json, read_file
from ..runner import LoadedModel
from ..runner.engine.continuations import Continuations
from .text_statistics import tokenizer_of

_MAX_TOKENS = 256  # of an answer
_STOP = ("\n",)


@dataclass(frozen=True)
class Document:
    """A line of a file of tasks.

    Attributes:
        line: its number in the file, from 1.
        digest: of the line, by which an earlier result is known.
        choices: texts that may follow the prompt; none for an answer that is generated.
        right: number of the right choice.
        answers: texts that count as the right answer.
        stop, max_tokens: ends of an answer.
    """

    line: int
    digest: str
    prompt: str
    choices: tuple[str, ...] = ()
    right: int = 0
    answers: tuple[str, ...] = ()
    stop: tuple[str, ...] = _STOP
    max_tokens: int = _MAX_TOKENS


@dataclass(frozen=True)
class Result:
    """The outcome of a document.

    Attributes:
        line, digest: those of the document.
        right: the model took the right choice, or gave a right answer.
        right_by_length: the right choice has the largest log-likelihood by character; None for
            answers.
        log_likelihoods: of the choices, in nats.
        text: the answer that was generated.
    """

    line: int
    digest: str
    right: bool
    right_by_length: bool | None = None
    log_likelihoods: tuple[float, ...] = ()
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def read(cls, line: bytes, name: str) -> Result:
        """A result as `as_dict` gives it.

        Raises:
            FormatError: it is none.
        """
        row = parse_json(line, name)
        try:
            row["log_likelihoods"] = tuple(row.get("log_likelihoods", ()))
            return cls(**row)
        except TypeError:
            raise FormatError(f"{name} is no result of `ggmodel eval`; give another file") from None


def read_documents(path: str | Path) -> list[Document]:
    """The documents of a file of tasks.

    Raises:
        FormatError: there is no such file, it has no documents, or a line is none; says which.
    """
    lines = read_file(path, "input_bytes").splitlines()
    documents = [
        _document(number, line, f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not documents:
        raise FormatError(f"{path} has no documents; give a line of JSON for each")
    return documents


def _document(number: int, line: bytes, name: str) -> Document:
    row: dict[str, Any] = parse_json(line, name)
    prompt, answer, choices = row.get("prompt"), row.get("answer"), row.get("choices")
    digest = hashlib.sha256(line).hexdigest()[:16]
    if not isinstance(prompt, str):
        raise FormatError(f'{name}: "prompt" must be a text')
    if choices is None:
        answers: Any = [answer] if isinstance(answer, str) else answer
        stop, most = row.get("stop", list(_STOP)), row.get("max_tokens", _MAX_TOKENS)
        if not _texts(answers):
            raise FormatError(f'{name}: "answer" must be a text, or a list of texts')
        if not isinstance(most, int) or most < 1 or not (_texts(stop) or stop == []):
            raise FormatError(f'{name}: "stop" must be texts, "max_tokens" a number above 0')
        return Document(
            *(number, digest, prompt), answers=tuple(answers), stop=tuple(stop), max_tokens=most
        )
    if not _texts(choices) or "" in choices:
        raise FormatError(f'{name}: "choices" must be a list of texts, none of them empty')
    right = choices.index(answer) if answer in choices else answer
    if not isinstance(right, int) or isinstance(right, bool) or not 0 <= right < len(choices):
        raise FormatError(f'{name}: "answer" must be one of the choices, or its number from 0')
    return Document(number, digest, prompt, tuple(choices), right)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)


def log_likelihoods(
    model: LoadedModel, continuations: Continuations, prompt: str, texts: Sequence[str]
) -> list[tuple[float, bool]]:
    """For each text the sum of its tokens' log-probabilities behind the prompt, in nats, and
    whether each of them is the likeliest.

    Spaces at the end of the prompt count to the texts. Prompt and text are tokenised together.

    Raises:
        PromptError: they are longer than the context, or a text adds no token.
    """
    return [continuations.score(*_pair(model, prompt, text)) for text in texts]


def _pair(model: LoadedModel, prompt: str, text: str) -> tuple[list[int], list[int]]:
    stripped = prompt.rstrip()
    tokenizer = tokenizer_of(model)
    begin = [tokenizer.bos] if tokenizer.bos is not None else []
    before = tokenizer.encode(stripped, add_special=False)
    ids = tokenizer.encode(prompt + text, add_special=False)
    if tokenizer.add_bos or not before:
        before, ids = begin + before, begin + ids
    if not before or len(ids) <= len(before):
        raise PromptError(f"{text!r:.80} adds no token to the prompt {prompt!r:.80}")
    if len(ids) > model.context_length:
        raise PromptError(
            f"a prompt with its choice has {len(ids)} tokens, and the model is loaded with a "
            f"context of {model.context_length}"
        )
    return ids[: len(before)], ids[len(before) :]


def evaluate(
    model: LoadedModel, documents: Iterable[Document], results: Iterable[Result] = ()
) -> Iterator[Result]:
    """The result of each document, in order; documents whose result is known are not computed.

    Args:
        results: earlier ones of this model.

    Raises:
        PromptError: a document is longer than the context, or a choice adds no token; says which.
    """
    known = {(r.line, r.digest): r for r in results}
    with Continuations(model.engine) as continuations:
        for document in documents:
            result = known.get((document.line, document.digest))
            try:
                yield result or _evaluated(model, continuations, document)
            except PromptError as error:
                raise PromptError(f"line {document.line}: {error}") from None


def _evaluated(model: LoadedModel, continuations: Continuations, document: Document) -> Result:
    if not document.choices:
        options: Any = {"max_tokens": document.max_tokens, "temperature": 0}
        text = model.generate(document.prompt, stop=list(document.stop), **options).text
        right = text.strip() in [a.strip() for a in document.answers]
        return Result(document.line, document.digest, right, text=text)
    scores = log_likelihoods(model, continuations, document.prompt, document.choices)
    sums = [value for value, _ in scores]
    by_length = [s / len(c) for s, c in zip(sums, document.choices, strict=True)]
    best, best_by_length = int(np.argmax(sums)), int(np.argmax(by_length))
    right, fair = best == document.right, best_by_length == document.right
    return Result(document.line, document.digest, right, fair, tuple(sums))


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Shares of right results, each with its standard error, by lm-eval's names: `acc` and
    `acc_norm` of choices, `exact_match` of answers."""
    choices = [r for r in results if r.right_by_length is not None]
    answers = [r for r in results if r.right_by_length is None]
    shares: dict[str, Any] = {"documents": len(results)}
    if choices:
        shares["acc"] = _share([r.right for r in choices])
        shares["acc_norm"] = _share([bool(r.right_by_length) for r in choices])
    if answers:
        shares["exact_match"] = _share([r.right for r in answers])
    return shares


def _share(right: Sequence[bool]) -> dict[str, float]:
    n = len(right)
    mean = sum(right) / n
    return {"value": mean, "error": math.sqrt(mean * (1 - mean) / max(1, n - 1))}

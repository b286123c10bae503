"""The steps of a tokenizer.json: its normalizer, pre_tokenizer and decoder.

A few bytes of them can ask for all memory (eight replacements of a letter by a thousand), for hours
(an expression that backtracks), or for the end of the process (`tokenizers` aborts where memory
lacks). So they are only ever applied in another process, whose memory and time have limits. The
tokenizer of a loaded model has none of them: it takes ggmodel's own table of pre-tokenizers.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ... import interpreter
from ...bounds import limits
from ...errors import TokenizerError
from ...platforms.processes import OUT_OF_TIME

SECTIONS = ("normalizer", "pre_tokenizer", "decoder")

_PROGRAM = Path(__file__).with_name("steps_child.py")
# Seconds by the clock for each of the processor: a busy machine has other work.
_PATIENCE = 6
_AGAIN = "get the file again"
_HOST = "convert the model with the command ggmodel, and load the GGUF file"


class Steps:
    """Applies the steps; one process answers all questions.

    Args:
        name: the file's, for messages.
        content: of the tokenizer.json.
        questions: kind, as `steps_child` knows it → the texts that may be asked about.
    """

    def __init__(
        self, name: str, content: Mapping[str, Any], questions: Mapping[str, Iterable[str]]
    ):
        self._name = name
        self._asked = {kind: list(dict.fromkeys(texts)) for kind, texts in questions.items()}
        self._sections = {section: content.get(section) for section in SECTIONS}

    def result(self, kind: str, text: str) -> Any:
        """The text after the normalizer or the decoder, or the pieces that a text is cut into.

        Raises:
            TokenizerError: the package does not know the steps, or they need more memory or time
                than the limits `tokenizer_bytes` and `tokenizer_seconds`.
        """
        found = self._answers[kind][text]
        if isinstance(found, str):
            raise TokenizerError(
                f"{self._name}: the installed tokenizers package does not know its normalizer, "
                f"pre_tokenizer or decoder, or cannot use it: {found:.300}; get the file again, or "
                f"a newer version of the package"
            )
        return found[0]

    @cached_property
    def _answers(self) -> dict[str, dict[str, Any]]:
        request = json.dumps({"steps": self._sections, **self._asked})
        try:
            given = _answered(request, limits.tokenizer_bytes, limits.tokenizer_seconds)
        except _Failed as failed:
            raise TokenizerError(
                f"{self._name}: its normalizer, pre_tokenizer or decoder {failed}"
            ) from None
        return {kind: dict(zip(self._asked[kind], given[kind], strict=True)) for kind in given}


class _Failed(Exception):
    """The process gave no answer; the message says why, and what to do."""


@lru_cache(maxsize=8)
def _answered(request: str, memory: int, seconds: float) -> dict[str, list[Any]]:
    """Starts the process, which takes 0.1 s, and reads its answers."""
    try:
        status, output = _run(request.encode(), memory, seconds)
    except subprocess.TimeoutExpired:
        raise _Failed(_too_slow()) from None
    except OSError as error:
        raise _Failed(
            f"need a Python process of their own, which cannot start: {error}; {_HOST}"
        ) from None
    if status == 0:
        with suppress(ValueError):
            answers = json.loads(output)
            if isinstance(answers, dict):
                return answers
        raise _Failed(f"got no answer from {sys.executable} (sys.executable); {_HOST}")
    if status in OUT_OF_TIME:
        raise _Failed(_too_slow())
    raise _Failed(
        f"break the tokenizers package (status {status}), or need more than "
        f"{memory:,} bytes (the limit tokenizer_bytes); {_AGAIN}"
    )


def _run(request: bytes, memory: int, seconds: float) -> tuple[int, bytes]:
    """The status and the output of the process."""
    with interpreter.start(
        [str(_PROGRAM), str(memory), str(math.ceil(seconds))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            output, _ = process.communicate(request, timeout=_PATIENCE * seconds)
        except BaseException:
            process.kill()
            raise
    return process.returncode, output


def _too_slow() -> str:
    seconds = f"{limits.tokenizer_seconds:g} s"
    return f"take more than {seconds} (the limit tokenizer_seconds); {_AGAIN}"

"""The program that applies the steps of an untrusted tokenizer.json: it may be killed at any time.

It imports nothing of ggmodel, so that it starts fast, and it reads one request: `steps`, the three
sections of the file, and for each of `normalize`, `cut`, `cut_normalized` and `decode` a list of
texts. The answer has a list for each, of `[result]`, or of the message of an error.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

LONGEST = 8_000_000  # letters of all results; the texts asked about have 100,000


def main(memory: int, seconds: int) -> None:
    """Answers the request on standard input, within limits: bytes and seconds."""
    request = json.loads(sys.stdin.buffer.read())
    empty = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}
    try:
        from tokenizers import Tokenizer

        bound(memory, seconds)
        steps = Tokenizer.from_str(json.dumps(empty | request.pop("steps")))
    except BaseException as error:  # the package panics with one that is no Exception
        answer = {kind: [str(error)] * len(texts) for kind, texts in request.items() if texts}
    else:
        answer = Answers(steps).all(request)
    sys.stdout.write(json.dumps(answer))


def bound(memory: int, seconds: int) -> None:
    """Limits this process to so many bytes of memory and seconds of processor time."""
    if sys.platform == "win32":
        from ggmodel.platforms import processes

        processes.enter_job(memory, seconds)
        return
    import resource

    bounds = {resource.RLIMIT_AS: memory, resource.RLIMIT_CPU: seconds, resource.RLIMIT_CORE: 0}
    for kind, limit in bounds.items():
        most = resource.getrlimit(kind)[1]
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        with contextlib.suppress(ValueError, OSError):  # macOS takes no limit of memory
            resource.setrlimit(kind, (limit, most))


class Answers:
    """Results of a tokenizer's steps, within a limit on their letters."""

    def __init__(self, steps: Any):
        self.steps = steps
        self.room = LONGEST

    def all(self, request: dict[str, list[str]]) -> dict[str, list[Any]]:
        return {kind: [self.one(kind, text) for text in texts] for kind, texts in request.items()}

    def one(self, kind: str, text: str) -> Any:
        try:
            result = self.applied(kind, text)
        except BaseException as error:
            return str(error)
        self.room -= len(result) if isinstance(result, str) else sum(map(len, result))
        return [result] if self.room >= 0 else f"they make too much of {len(text)} letters"

    def applied(self, kind: str, text: str) -> str | list[str]:
        steps = self.steps
        if kind == "decode":
            return text if steps.decoder is None else steps.decoder.decode([text])
        if kind != "cut" and steps.normalizer is not None:
            text = steps.normalizer.normalize_str(text)
        if kind == "normalize":
            return text
        cut = steps.pre_tokenizer
        return [text] if cut is None else [piece for piece, _ in cut.pre_tokenize_str(text)]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

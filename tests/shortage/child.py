"""Loads a model and asks it, with little memory from some moment on; then again with enough.

`python child.py MOMENT BYTES` prints one line: "ok", or the error while memory was short. It fails
if that was none of ggmodel's, or if the second time ends in an error.
"""

from __future__ import annotations

import resource
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

MOMENTS = ("start", "import", "load")  # the limit holds from before it, but after the one before
_MODEL = Path(__file__).parents[2] / "examples" / "assets" / "stories.gguf"
_PROMPT = "Once upon a time there was a bear "
_UNLIMITED = resource.RLIM_INFINITY


def limit(nbytes: int) -> None:
    """Bounds the address space: to so many bytes more than now, or in all if they are negative."""
    if nbytes >= 0:
        nbytes += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (abs(nbytes), hard))


def unlimit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_UNLIMITED, _UNLIMITED))


def load(undo: ExitStack) -> Any:
    import ggmodel

    return undo.enter_context(ggmodel.load(_MODEL, context_length=512, parallel=2))


def ask(model: Any) -> str:
    text = model.generate(_PROMPT, max_tokens=8, temperature=0)
    model.logits(_PROMPT * 3)
    model.generate(_PROMPT * 5, max_tokens=4, seed=1)
    list(model.stream(_PROMPT * 2, max_tokens=8, temperature=0, logprobs=True))
    return str(text)


def main(moment: str, nbytes: int) -> None:
    if moment == "start":
        limit(-nbytes)
    from ggmodel.errors import Error

    if moment == "import":
        with ExitStack() as undo:
            load(undo)  # imports all that loading needs
        limit(nbytes)
    with ExitStack() as undo:
        model, outcome = None, "ok"
        try:
            model = load(undo)
            if moment == "load":
                limit(nbytes)
            ask(model)
        except Error as error:
            outcome = f"{type(error).__name__}: {error}"
        unlimit()
        text = ask(model or load(undo))
        assert text == ask(load(undo)), text
    print(outcome)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

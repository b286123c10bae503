"""The functions of the SDK that run for one token of a stream.

    python benchmarks/token_path.py [FILE.gguf] [--json]

The model, stories.gguf without a file, has computed its prompt and some tokens: no graph is
recorded any more. All threads are profiled while 32 more come. The functions are printed in the
order of their first call, with the calls per token. A function that runs for less than every second
token, such as one that wakes another thread now and then, is printed and not counted.

Functions are those of files of the SDK: neither what `dataclass` generates nor comprehensions,
which newer versions of Python inline.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

STORIES = Path(__file__).resolve().parents[1] / "examples" / "assets" / "stories.gguf"
WARM, TOKENS = 12, 32
_INLINED = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


@dataclass
class Called:
    """A function on the path.

    Attributes:
        file: below the folder of the SDK. line: of its definition. calls: per token.
    """

    file: str
    name: str
    line: int
    thread: str
    calls: float

    @property
    def counts(self) -> bool:
        """Whether it runs for every second token at least."""
        return self.calls >= 0.5


class Recorder:
    """Counts calls by their code, in all threads that begin while it is installed, and in this one.

    Args:
        folder: functions below it are counted.
    """

    def __init__(self, folder: Path):
        self._folder = f"{folder}/"
        self._calls: dict[Any, tuple[str, int]] = {}
        self.running = False

    def __enter__(self) -> Recorder:
        self._before = sys.getprofile(), threading.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self.running = False
        own, of_threads = self._before
        sys.setprofile(own)
        threading.setprofile(of_threads)  # type: ignore[arg-type]

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if self.running and event == "call":
            thread, calls = self._calls.get(frame.f_code, (threading.current_thread().name, 0))
            self._calls[frame.f_code] = thread, calls + 1

    def called(self, times: int) -> list[Called]:
        """The functions in the order of their first call.

        Args:
            times: that the path was taken.
        """
        return [
            Called(
                code.co_filename.removeprefix(self._folder),
                getattr(code, "co_qualname", code.co_name),  # since Python 3.11
                code.co_firstlineno,
                thread,
                calls / times,
            )
            for code, (thread, calls) in self._calls.items()
            if code.co_filename.startswith(self._folder) and code.co_name not in _INLINED
        ]


def token_path(file: Path = STORIES) -> list[Called]:
    """The functions that run for a token, in the order of their first call."""
    import ggmodel

    # The engine's thread begins with the first request.
    with Recorder(Path(ggmodel.__file__).parent) as recorder:
        with ggmodel.load(file, threads=1) as model:
            most = WARM + TOKENS + 1
            with model.stream("Once upon a time", max_tokens=most, temperature=0) as pieces:
                warm = sum(1 for _ in islice(pieces, WARM))
                recorder.running = True
                tokens = sum(1 for _ in islice(pieces, TOKENS))
                recorder.running = False
        if warm + tokens < WARM + TOKENS:
            raise SystemExit(f"{file} ends its answer after {warm + tokens} tokens: name another")
        return recorder.called(TOKENS)


def main() -> None:
    """Prints the functions, or JSON with their number and that of their files."""
    parser = argparse.ArgumentParser(description="The functions that run for one token.")
    parser.add_argument("file", type=Path, nargs="?", default=STORIES)
    parser.add_argument("--json", action="store_true", help="print the numbers alone, as JSON")
    options = parser.parse_args()
    called = token_path(options.file)
    path = [one for one in called if one.counts]
    numbers = {"files": len({one.file for one in path}), "functions": len(path)}
    if options.json:
        print(json.dumps(numbers))
        return
    for one in called:
        times = f"{one.calls:.1f}" if one.counts else f"({one.calls:.1f})"
        print(f"{times:>6}  {one.thread:14}  {one.file}:{one.line} {one.name}")
    print(f"{numbers['functions']} functions in {numbers['files']} files")


if __name__ == "__main__":
    main()

"""The classes of the SDK that are constructed for a chat between the HTTP handler and the batch.

    python benchmarks/request_classes.py [FILE.gguf] [--json]

A server and its runner process, of stories.gguf without a file, answer some streamed chats. Classes
are printed in the order of their first object, with the process: from the object that the handler
is called with, which is not counted, to the batch that is computed, which is. A class counts if
every second chat constructs one: that leaves out what is kept from an earlier chat, and what
threads do at the same time by chance.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.constructions import Construction, constructions, environment

ROOT = Path(__file__).resolve().parents[1]
STORIES = ROOT / "examples" / "assets" / "stories.gguf"
CHATS = 8
# The argument of the handler, and the inputs of the model.
HANDLED, BATCH = "ggmodel.serve.endpoint.Call", "ggmodel.model.batch.Step"


@contextmanager
def serving(file: Path, notes: Path) -> Iterator[str]:
    """The URL of a server with this model whose objects, and those of its runner, are noted."""
    import_path = os.pathsep.join((str(ROOT / "sdk"), *filter(None, sys.path)))
    server = subprocess.Popen(
        [sys.executable, "-m", "ggmodel", "serve", "--only", "--port", "0", str(file)],
        env=environment(notes, import_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        started = re.match(r"serving at (\S+)", server.stdout.readline())
        if started is None:
            raise SystemExit(f"the server of {file} did not start")
        yield started[1]
    finally:
        server.terminate()
        server.wait()


def chat(url: str, text: str) -> None:
    """Asks for a streamed answer, and reads all of it."""
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 2,
        "temperature": 0,
        "stream": True,
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def between(noted: list[Construction]) -> list[Construction]:
    """The first object of each class after the handler's argument, up to the batch.

    Raises:
        SystemExit: one of the two is not there.
    """
    names = [one.name for one in noted]
    if HANDLED not in names or BATCH not in names[names.index(HANDLED) :]:
        raise SystemExit(f"no chat constructs {HANDLED}, then {BATCH}: correct these names")
    begin = names.index(HANDLED)
    end = names.index(BATCH, begin)
    first: dict[str, Construction] = {}
    for one in noted[begin + 1 : end + 1]:
        first.setdefault(one.name, one)
    return list(first.values())


def request_classes(file: Path = STORIES) -> list[tuple[str, bool]]:
    """The classes in the order of their first object, and whether that is the server's."""
    with tempfile.TemporaryDirectory() as name, serving(file, Path(name)) as url:
        chat(url, "Begin.")  # loads the model
        chats = list[list[Construction]]()
        for index in range(CHATS):
            begin = len(constructions(Path(name)))
            chat(url, f"Tell me story number {index}.")
            chats.append(between(constructions(Path(name))[begin:]))
    times = Counter(one.name for noted in chats for one in noted)
    order = {one.name: one for noted in chats for one in noted}
    server = chats[0][0].process
    return [(n, one.process == server) for n, one in order.items() if times[n] * 2 >= CHATS]


def main() -> None:
    """Prints the classes, or JSON with their names."""
    parser = argparse.ArgumentParser(description="The classes that a chat request constructs.")
    parser.add_argument("file", type=Path, nargs="?", default=STORIES)
    parser.add_argument("--json", action="store_true", help="print the names alone, as JSON")
    options = parser.parse_args()
    classes = request_classes(options.file)
    if options.json:
        print(json.dumps([name for name, _ in classes]))
        return
    for name, in_server in classes:
        print(f"{'server' if in_server else 'runner'}  {name}")
    print(f"{len(classes)} classes")


if __name__ == "__main__":
    main()

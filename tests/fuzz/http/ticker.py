"""Prints how long something takes, again and again: `python -m tests.fuzz.http.ticker KIND PORT`.

Each line is a name, the time of the monotonic clock at which it began, and seconds. `quick` asks
what needs no computing; `chat` has a chat streamed, and measures from one token to the next;
`control` asks nobody, and computes: what makes it slow is the machine.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable

WORK = 0.01  # seconds of the processor that `control` measures
_PAUSE = 0.05  # seconds between two requests
_HEADERS = {"content-type": "application/json"}
_CHAT = {
    "model": "stories",
    "messages": [{"role": "user", "content": "A story, please."}],
    "max_tokens": 12,
    "temperature": 0,
    "stream": True,
}
_TEXT = {"model": "stories", "content": "a fox"}
_PATHS = ("/health", "/v1/models", "/health", "/tokenize")


def tell(name: str, begin: float, seconds: float) -> None:
    print(f"{name} {begin:.4f} {seconds:.4f}", flush=True)


def quick(port: int) -> None:
    for number in range(sys.maxsize):
        path = _PATHS[number % len(_PATHS)]
        method, body = ("POST", json.dumps(_TEXT)) if path == "/tokenize" else ("GET", None)
        server = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        begin = time.monotonic()
        server.request(method, path, body, _HEADERS)
        answer = server.getresponse()
        answer.read()
        tell(path if answer.status == 200 else f"{path}:{answer.status}", begin, _since(begin))
        server.close()
        time.sleep(_PAUSE)


def chat(port: int) -> None:
    while True:
        server = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        begin = last = time.monotonic()
        server.request("POST", "/v1/chat/completions", json.dumps(_CHAT), _HEADERS)
        answer = server.getresponse()
        texts = 0
        while line := answer.readline():
            now = time.monotonic()
            if texts:
                tell("token", last, now - last)
            texts += b'"content":"' in line
            last = now
        whole = answer.status == 200 and texts > 0
        tell("chat" if whole else f"chat:{answer.status}", begin, _since(begin))
        server.close()
        time.sleep(_PAUSE)


def control(_: int) -> None:
    while True:
        begin, cpu = time.monotonic(), time.thread_time()
        while time.thread_time() - cpu < WORK:
            pass
        tell("control", begin, _since(begin))
        time.sleep(_PAUSE)


def _since(begin: float) -> float:
    return time.monotonic() - begin


KINDS: dict[str, Callable[[int], None]] = {"quick": quick, "chat": chat, "control": control}


if __name__ == "__main__":
    KINDS[sys.argv[1]](int(sys.argv[2]))

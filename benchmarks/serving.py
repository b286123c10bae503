"""Chats of many clients at a time: `ggmodel serve` and llama-server on the same file, in turns.

    python benchmarks/serving.py --peer FOLDER [FILE.gguf] [--clients 1 8 64] [--slots 8]
        [--requests 4] [--conversations] [--pairs 3] [--threads N]

FOLDER has llama-server. Without a file, on a llama of 135 million random parameters in Q8_0. All
chats begin with the same instruction; questions and answers differ in length, and one client in
eight hangs up in the middle of each answer. With `--conversations` each request continues what its
client has asked and was answered before, with short answers, as an agent's. Both servers have the
model in memory. The median over the pairs counts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

HOST = "127.0.0.1"
SYSTEM = "You help people who write letters. " * 6
WORDS = "the fox saw a small house beside the river and asked who lived there".split()
LENGTHS = (16, 48, 96)  # tokens of answers
CALLS = (8, 16, 32)  # of those of an agent
PATIENCE = 6  # pieces after which a client hangs up
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass
class Load:
    """Answers to some clients.

    Attributes:
        tokens: in complete answers and in those given up. seconds: from first to last byte.
        first: seconds to the first token of each answer.
    """

    tokens: int = 0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


Requests = list[tuple[dict[str, Any], bool]]


def bodies(clients: int, requests: int, seed: int, lengths: Sequence[int]) -> list[Requests]:
    """The requests of each client, and whether it hangs up."""
    draw = random.Random(seed)

    def one(client: int) -> tuple[dict[str, Any], bool]:
        question = " ".join(draw.choices(WORDS, k=draw.choice((4, 12, 24))))
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        body = {
            "messages": messages,
            "max_tokens": draw.choice(lengths),
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body, clients >= 8 and client % 8 == 7

    return [[one(client) for _ in range(requests)] for client in range(clients)]


async def pieces(port: int, body: bytes) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a streamed chat."""
    reader, writer = await asyncio.open_connection(HOST, port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    try:
        writer.write(head.encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"{status.decode().strip()}: {(await reader.read())[-400:]!r}")
        async for line in reader:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def ask(port: int, body: dict[str, Any], hangs_up: bool, load: Load) -> str:
    """The text of an answer."""
    began, count, usage, text = time.perf_counter(), 0, 0, ""
    answer = pieces(port, json.dumps(body).encode())
    async with contextlib.aclosing(answer):
        async for event in answer:
            if event.get("usage"):
                usage = event["usage"]["completion_tokens"]
            piece = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if piece:
                if not count:
                    load.first.append(time.perf_counter() - began)
                count, text = count + 1, text + piece
            if hangs_up and count == PATIENCE:
                break
    load.tokens += usage or count
    return text


async def run(port: int, asked: list[Requests], conversations: bool = False) -> Load:
    """All clients at once, each with one request after the other."""
    load = Load()

    async def client(requests: Requests) -> None:
        before: list[dict[str, str]] = []
        for body, hangs_up in requests:
            instruction, question = body["messages"]
            messages = [instruction, *before, question]
            text = await ask(port, {**body, "messages": messages}, hangs_up, load)
            if conversations:
                before += [question, {"role": "assistant", "content": text}]

    began = time.perf_counter()
    await asyncio.gather(*map(client, asked))
    load.seconds = time.perf_counter() - began
    return load


@contextmanager
def server(command: list[str], port: int, log: Path) -> Iterator[int]:
    """The port of a server that answers."""
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    body = bodies(1, 1, 0, LENGTHS)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError, SystemExit):
                asyncio.run(run(port, body))
                break
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended: {log.read_text()[-600:]}")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def commands(args: argparse.Namespace, file: str, ports: list[int]) -> list[list[str]]:
    """How both are started: the same sequences, context, threads and lengths of batches."""
    each, threads = args.context, str(args.threads)
    ours = [sys.executable, "-m", "ggmodel", "serve", file, "--only", "--any-name", "--keep-alive"]
    ours += ["-1", "--port", str(ports[0]), "--parallel", str(args.slots), "--gpu-layers", "0"]
    ours += ["--context-length", str(each), "--threads", threads]
    theirs = [str(args.peer / "llama-server"), "--model", file, "--port", str(ports[1]), "--host"]
    theirs += [HOST, "--parallel", str(args.slots), "--ctx-size", str(each * args.slots)]
    theirs += ["--threads", threads, "--threads-batch", threads, "--batch-size", "512"]
    theirs += ["--gpu-layers", "0", "--jinja", "--no-ui"]
    return [ours, theirs]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return taken.getsockname()[1]


def told(loads: list[Load]) -> tuple[float, float, float]:
    """Tokens a second, and seconds to the first token: the median and the 99th of 100."""
    first = sorted(second for load in loads for second in load.first)
    late = quantiles(first, n=100)[98] if len(first) > 1 else first[0]
    return median(load.rate for load in loads), median(first), late


def compare(args: argparse.Namespace, file: str, folder: Path) -> None:
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        for i, command in enumerate(commands(args, file, ports)):
            stack.enter_context(server(command, ports[i], folder / f"{i}.log"))
        print("clients  server          tokens/s   first token: median    p99 ms  ratio")
        for clients in args.clients:
            loads: list[list[Load]] = [[], []]
            for turn in range(args.pairs):
                for side in (0, 1) if turn % 2 else (1, 0):
                    lengths = CALLS if args.conversations else LENGTHS
                    asked = bodies(clients, args.requests, turn, lengths)
                    load = asyncio.run(run(ports[side], asked, args.conversations))
                    loads[side].append(load)
            ratio = median(a.rate / b.rate for a, b in zip(*loads, strict=True))
            for name, side in zip(("ggmodel", "llama-server"), loads, strict=True):
                rate, first, late = told(side)
                end = f"{ratio:.2f}" if name == "ggmodel" else ""
                print(
                    f"{clients:7}  {name:12} {rate:11,.1f} {first * 1e3:22,.1f} "
                    f"{late * 1e3:9,.1f}  {end}",
                    flush=True,
                )


def with_template(folder: Path) -> str:
    """A model of 135 million random parameters that can chat."""
    from make_model import SHAPES, make

    from ggmodel.convert.write import write_gguf
    from ggmodel.gguf_file import open_gguf

    made, file = folder / "made.gguf", folder / "smollm-135m-q8_0.gguf"
    make(made, "smollm-135m", SHAPES["smollm-135m"], "q8_0")
    with open_gguf(made) as source:
        metadata = {**source.metadata, "tokenizer.chat_template": TEMPLATE}
        tensors = list(source.tensors.values())
        write_gguf(file, metadata, tensors, lambda t: source.data(t.name), source.release)
    made.unlink()
    return str(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", help="a model with a chat template")
    parser.add_argument("--peer", type=Path, required=True, help="the folder of llama-server")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--slots", type=int, default=8, help="sequences computed together")
    parser.add_argument("--context", type=int, default=1024, help="tokens of each")
    parser.add_argument("--requests", type=int, default=4, help="of each client")
    parser.add_argument("--conversations", action="store_true", help="requests continue")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(args, args.file or with_template(Path(folder)), Path(folder))


if __name__ == "__main__":
    main()

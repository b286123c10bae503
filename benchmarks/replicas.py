"""The cost of a token through Ray: `ggmodel serve --ray 1` and `ggmodel serve`, in turns.

    python benchmarks/replicas.py FILE.gguf [--clients 1 8] [--tokens 128] [--pairs 3] [--threads N]

Clients stream as many answers at a time. Besides tokens a second and the time to the first token,
the processor time that a token costs outside of the model's own process counts: in the server, and
in the replica. It does not change with what else the machine does. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import openai

SIDES = {"plain": (), "ray": ("--ray", "1")}


class Measured(NamedTuple):
    """Tokens a second, milliseconds to the first token, and microseconds of processor a token."""

    rate: float
    first: float
    cost: float


@contextmanager
def serving(file: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """The URL and the process id of a server of the model."""
    command = [sys.executable, "-m", "ggmodel", "serve", "--port", "0", f"model={file}"]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[2], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def relaying(server: int) -> list[int]:
    """The processes between client and model: the server and, below it, the replica."""
    found, parents = [server], dict[int, int]()
    replicas = list[int]()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parents[int(folder.name)] = int(_stat(int(folder.name))[1])
                if b"ServeReplica" in (folder / "cmdline").read_bytes():
                    replicas.append(int(folder.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    for replica in replicas:
        at = replica
        while at in parents and at != server:
            at = parents[at]
        found += [replica] * (at == server)
    return found


def _stat(process: int) -> list[str]:
    """Fields of /proc/N/stat behind the name: state, parent, …"""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def spent(processes: list[int]) -> float:
    """Seconds of processor."""
    ticks = sum(int(_stat(one)[11]) + int(_stat(one)[12]) for one in processes)
    return ticks / os.sysconf("SC_CLK_TCK")


async def measure(url: str, processes: list[int], clients: int, tokens: int) -> Measured:
    """Three rounds of answers, one for each client at a time."""
    count, firsts = 0, list[float]()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600) as client:

        async def stream(number: int) -> None:
            nonlocal count
            began, first = time.monotonic(), True
            async for chunk in await client.completions.create(
                model="model",
                prompt=f"The story number {number} begins",
                stream=True,
                max_tokens=tokens,
                temperature=0.8,
                seed=number,
                stream_options={"include_usage": True},
            ):
                if first:
                    firsts.append(time.monotonic() - began)
                    first = False
                if chunk.usage:
                    count += chunk.usage.completion_tokens

        await stream(0)
        count, _ = 0, firsts.clear()
        began, before = time.monotonic(), spent(processes)
        for turn in range(3):
            await asyncio.gather(*(stream(turn * clients + i) for i in range(clients)))
        cost, seconds = spent(processes) - before, time.monotonic() - began
    return Measured(count / seconds, median(firsts) * 1e3, cost / count * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description="the cost of a token through Ray")
    parser.add_argument("file")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    found: dict[tuple[str, int], list[Measured]] = {}
    options = ("--threads", str(given.threads), "--parallel", str(max(given.clients)))
    for _ in range(given.pairs):
        for side, arguments in SIDES.items():
            with serving(given.file, *options, *arguments) as (url, process):
                asyncio.run(measure(url, [process], 1, 8))  # loads the model
                for clients in given.clients:
                    one = asyncio.run(measure(url, relaying(process), clients, given.tokens))
                    found.setdefault((side, clients), []).append(one)
                    print(side, clients, *(f"{value:.1f}" for value in one), flush=True)
    print("| server | clients | tokens/s | first token, ms | processor a token, µs |")
    print("|---|---|---|---|---|")
    for (side, clients), all_of in sorted(found.items(), key=lambda item: item[0][1]):
        middle = [median(values) for values in zip(*all_of, strict=True)]
        print(f"| {side} | {clients} | " + " | ".join(f"{value:.0f}" for value in middle) + " |")


if __name__ == "__main__":
    main()

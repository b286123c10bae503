"""Times the reader on a vocabulary of 262,144 tokens: `python tests/gguf_file/time_open.py`.

Prints seconds (best of 5) and the growth of resident memory in MB (Linux). No test asserts them.
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ggmodel.gguf_file import GGUF

N = 262_144


def vocabulary() -> bytes:
    """A GGUF file with tokens, scores, types and 1,000 small tensors."""

    def key(name: str, item: int, items: bytes) -> bytes:
        return struct.pack(f"<Q{len(name)}sIIQ", len(name), name.encode(), 9, item, N) + items

    tokens = (f"token {i}".encode() for i in range(N))
    body = key("tokens", 8, b"".join(struct.pack("<Q", len(t)) + t for t in tokens))
    body += key("scores", 6, struct.pack(f"<{N}f", *range(N)))
    body += key("types", 5, struct.pack(f"<{N}i", *([1] * N)))
    for i in range(1000):
        name = f"blk.{i // 10}.attn_{i % 10}.weight".encode()
        body += struct.pack(f"<Q{len(name)}sIQQIQ", len(name), name, 2, 32, 32, 0, i * 4096)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1000, 3) + body
    return head + bytes(-len(head) % 32 + 1000 * 4096)


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def measure(what: str, run: Callable[[], object]) -> None:
    times, before = [], resident()
    for i in range(5):
        start = time.perf_counter()
        kept = run()
        times.append(time.perf_counter() - start)
        if i == 0:
            grown = resident() - before
            print(f"{what:28} first {times[0]:.3f} s, {grown:6.1f} MB", end="")
        del kept
    print(f", best {min(times):.3f} s")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        path.write_bytes(vocabulary())
        measure("open", lambda: GGUF(path))
        source = GGUF(path)
        measure("tokens as text", lambda: GGUF(path).metadata["tokens"].tolist())
        measure("tokens as bytes", lambda: GGUF(path).metadata["tokens"].raw())
        measure("one token", lambda: GGUF(path).metadata["tokens"][N - 1])
        measure("scores as numpy", lambda: source.metadata["scores"].numpy())
        measure("scores as list", lambda: source.metadata["scores"].tolist())


if __name__ == "__main__":
    main()

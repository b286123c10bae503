"""Decoding of a model of experts with less memory than its file, beside llama.cpp.

    python benchmarks/experts.py --peer FOLDER FILE.gguf [--share 0.4] [--tokens 64]

FOLDER has llama-bench. Both sides run in a control group (of Linux, version 1 or 2; as root) whose
memory is a share of the file's size; the file is in no cache before. Tokens are random, as
llama-bench's. Ours are in deterministic mode. llama.cpp's weights stay as they lie in the file:
copies that are rearranged would be killed for want of memory. Much depends on the disk's
read_ahead_kb in /sys/block/…/queue.

    read     GiB from the disk while tokens are decoded; llama.cpp's with what it reads at its start
    waited   MiB read for each second more than with memory for all, beside the speed of the disk
             alone, of reads of 1 MiB, four at a time
    equal    the same tokens as with memory for all of it
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIB, GIB = 1 << 20, 1 << 30
GROUPS = Path("/sys/fs/cgroup")
NAME = "ggmodel-experts"
DEADLINE = 1800  # seconds of a run
OPTIONS: dict[str, Any] = {"context_length": 1024, "gpu_layers": 0, "deterministic": True}


@contextmanager
def group_with(memory: int) -> Iterator[Path]:
    """A control group with so many bytes of memory; ends with what is in it."""
    version_2 = (GROUPS / "cgroup.controllers").exists()
    folder = (GROUPS if version_2 else GROUPS / "memory") / NAME
    limit = "memory.max" if version_2 else "memory.limit_in_bytes"
    try:
        folder.mkdir(exist_ok=True)
        (folder / limit).write_text(str(memory))
    except OSError as error:
        raise SystemExit(f"no control group can be made here: {error}") from None
    try:
        yield folder
    finally:
        folder.rmdir()


def run(command: Sequence[str], group: Path | None) -> tuple[str, int]:
    """Its output, and bytes read of the disk.

    Raises:
        SystemExit: it failed, or was killed for want of memory.
    """

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    before = _children_read()
    done = subprocess.run(
        command, preexec_fn=enter, capture_output=True, text=True, timeout=DEADLINE
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout, _children_read() - before


def _children_read() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock * 512


def forget(file: Path) -> None:
    """Empties the system's cache of a file."""
    with file.open("rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_speed(file: Path, most: int = 2 * GIB) -> float:
    """Bytes a second, past the cache."""
    pieces = range(0, min(file.stat().st_size // MIB * MIB, most), MIB)

    def read(start: int) -> int:
        import mmap

        with mmap.mmap(-1, MIB) as page:  # aligned, as O_DIRECT asks for
            return os.preadv(descriptor, [page], start)

    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        began = time.perf_counter()
        with ThreadPoolExecutor(4) as pool:
            total = sum(pool.map(read, pieces))
        return total / (time.perf_counter() - began)
    finally:
        os.close(descriptor)


def child(file: str, tokens: int, ahead: bool) -> dict[str, Any]:
    """Our run in this process.

    Args:
        ahead: experts are read ahead of their products, as always.
    """
    import ggmodel
    from ggmodel.ml.ggml.experts import ExpertsAhead

    if not ahead:
        ExpertsAhead.follow = lambda self, product, operands: operands  # type: ignore[method-assign]

    def read() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return next(int(x.split()[1]) for x in lines if x.startswith("read_bytes"))

    with ggmodel.load(file, **OPTIONS) as model:
        options: dict[str, Any] = {"temperature": 1e6, "top_k": 1000, "seed": 1}
        begun, began = read(), time.perf_counter()
        answer = model.generate([1], max_tokens=tokens, ignore_eos=True, **options)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "read": read() - begun, "ids": list(answer.tokens)}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "ahead")))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--peer", type=Path, required=True, help="the folder of llama-bench")
    parser.add_argument("--share", type=float, default=0.4, help="of the file's size in memory")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    file, tokens = str(options.file), str(options.tokens)
    ours = [sys.executable, __file__, "--child", file, tokens]
    whole = json.loads(run([*ours, "ahead"], None)[0].splitlines()[-1])
    theirs = [str(options.peer / "llama-bench"), "-m", file, "-p", "0", "-n", tokens]
    theirs += ["-r", "1", "-o", "json", "--repack", "0"]
    size = options.file.stat().st_size
    forget(options.file)
    disk = disk_speed(options.file)
    print(f"{size / GIB:.2f} GiB, memory for {options.share:.0%}; disk {disk / MIB:,.0f} MiB/s")
    print("| | tokens/s | read | waited | equal |\n|---|---|---|---|---|")
    print(f"| ggmodel, memory for all | {options.tokens / whole['seconds']:.2f} | | | |")
    with group_with(int(size * options.share)) as group:
        for name, ahead in (("ggmodel", "ahead"), ("ggmodel, nothing read ahead", "as needed")):
            forget(options.file)
            result = json.loads(run([*ours, ahead], group)[0].splitlines()[-1])
            waited = result["read"] / MIB / max(1e-9, result["seconds"] - whole["seconds"])
            equal = "yes" if result["ids"] == whole["ids"] else "no"
            speed, read = options.tokens / result["seconds"], result["read"] / GIB
            print(f"| {name} | {speed:.2f} | {read:.2f} | {waited:,.0f} | {equal} |", flush=True)
        forget(options.file)
        output, total = run(theirs, group)
        speed = json.loads(output)[0]["avg_ts"]
        print(f"| llama.cpp | {speed:.2f} | {total / GIB:.2f} | | |")


if __name__ == "__main__":
    main()

"""A profile as a timeline, in the event format of chrome://tracing and Perfetto.

Ops follow one another, each as long as it took. A profiled step is a process with a row for each
depth of modules and a last row for the ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from .modules import parts_of
from .profile import Profile, TimedOp


def chrome_trace(profiles: Iterable[Profile]) -> dict[str, Any]:
    """The JSON object; times are in microseconds."""
    events = [event for pid, p in enumerate(profiles, 1) for event in _events(pid, p)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(pid: int, profile: Profile) -> Iterator[dict[str, Any]]:
    depth = max((len(parts_of(op.module)) for op in profile.ops), default=0)
    rows = [profile.work.name, *(f"modules, depth {n + 1}" for n in range(depth)), "ops"]
    yield _about(pid, 0, "process_name", profile.work.name)
    for tid, name in enumerate(rows):
        yield _about(pid, tid, "thread_name", name)
        yield {**_about(pid, tid, "thread_sort_index", ""), "args": {"sort_index": tid}}
    starts, now = [], 0.0
    for op in profile.ops:
        starts.append(now)
        now += op.seconds * 1e6
    placed = list(zip(profile.ops, starts, [*starts[1:], now], strict=True))
    yield _complete(pid, 0, profile.work.name, 0.0, now)
    for level in range(1, depth + 1):
        paths = (parts_of(op.module)[:level] for op in profile.ops)
        for path, run in groupby(zip(paths, placed, strict=True), itemgetter(0)):
            if len(path) == level:
                ops = [one for _, one in run]
                yield _complete(pid, level, ".".join(path), ops[0][1], ops[-1][2])
    for op, start, end in placed:
        if op.seconds:
            yield {**_complete(pid, depth + 1, op.kind, start, end), "args": _arguments(op)}


def _about(pid: int, tid: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _complete(pid: int, tid: int, name: str, start: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start, "dur": end - start}


def _arguments(op: TimedOp) -> dict[str, Any]:
    return {
        "tensor": op.name,
        "result": f"{op.dtype} {list(op.shape)}",
        "weight": op.weight,
        "bytes of weights": op.traffic.weights,
        "bytes of activations": op.traffic.activations,
        "GB/s": round(op.nbytes / op.seconds / 1e9, 3),
        "GFLOP/s": round(op.traffic.flops / op.seconds / 1e9, 3),
    }

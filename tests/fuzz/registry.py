"""All fuzzers."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.chats import Chats
from tests.fuzz.folders import Folders
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.gguf.fuzzer import Files, Loads
from tests.fuzz.http.fuzzer import Http
from tests.fuzz.images import Images
from tests.fuzz.ops.fuzzer import Ops
from tests.fuzz.ops.pairs import Pairs, Threads
from tests.fuzz.protocol import Answers, Questions
from tests.fuzz.requests import Requests
from tests.fuzz.schemas import Schemas
from tests.fuzz.sounds import Sounds
from tests.fuzz.workers import Workers

FUZZERS: tuple[type[Fuzzer], ...] = (
    Files, Loads, Folders, Images, Sounds, Chats, Schemas, Ops, Pairs, Threads, Requests,
    Answers, Questions, Workers, Http,
)  # fmt: skip


def named(names: list[str], without: Sequence[str] = ()) -> list[type[Fuzzer]]:
    """The fuzzers of these names, all for none, except those named in `without`.

    Raises:
        LookupError: there is none of a name; lists them.
    """
    by_name = {fuzzer.name: fuzzer for fuzzer in FUZZERS}
    for name in (*names, *without):
        if name not in by_name:
            raise LookupError(f"there is no fuzzer {name!r}; there are {', '.join(by_name)}")
    return [by_name[name] for name in names or by_name if name not in without]


def shares(fuzzers: list[type[Fuzzer]], seconds: float) -> list[float]:
    """The time of each."""
    whole = sum(fuzzer.weight for fuzzer in fuzzers)
    return [seconds * fuzzer.weight / whole for fuzzer in fuzzers]

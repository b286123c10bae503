"""Prefixes on disk: what sequences held, for later processes and for others beside this one.

The engine's thread copies each block of a sequence when it is full, the last one of a prompt and
that of an answer. One thread writes the copies; others read what a waiting request begins with.
So a token waits for a copy in memory, a hundredth of the block's computation, never for a disk.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain

from ...model.cache import Saved
from ...resources import Closing
from .prefix_files import PrefixFiles
from .prefix_path import PrefixPath, start_of
from .prefix_writer import Block, Origin, PrefixWriter
from .saved import SavedPrefix
from .sequences import Request, Sequences, variant_of
from .sequences import Sequence as OneSequence

BLOCK = 128  # inputs: the most that two prompts lose of what they have in common
_TRIES = 4
_FILES = min(4, os.cpu_count() or 1)  # of a prefix, read and checked at once

# Gives the first position that each part of `Saved` needs to go on at a length.
NeedsFrom = Callable[[int], Sequence[int]]


class PrefixStore(Closing):
    """The prefixes of one engine, on disk.

    Args:
        wake: called when a waiting request may begin.
        least: tokens; prefixes with fewer and without embeddings are neither written nor read.

    Attributes:
        files: on disk.
        writer: of the blocks.
        block: inputs of a block.
        found: requests of which a part was read.
    """

    def __init__(
        self,
        files: PrefixFiles,
        sequences: Sequences,
        origin: Origin,
        wake: Callable[[], object],
        least: int = 64,
        block: int = BLOCK,
    ):
        self.files, self.writer, self.least = files, PrefixWriter(files, origin), least
        self.block, self.found = block, 0
        self._sequences, self._wake = sequences, wake
        self._fetches: dict[Request, Future[SavedPrefix | None] | None] = {}
        self._reader = ThreadPoolExecutor(1, "ggmodel-prefix-reader")
        self._files = ThreadPoolExecutor(_FILES, "ggmodel-prefix-file")
        weakref.finalize(self, self.writer.close).atexit = False

    # what is computed is copied

    def computed(self, sequence: OneSequence, start: int) -> None:
        """Copies the blocks that a step has filled, and the last one of a prompt.

        Args:
            start: inputs that the sequence held before the step.
        """
        size, end, prompt = self.block, len(sequence.tokens), sequence.prompted - 1
        stops = [*range((start // size + 1) * size, end + 1, size)]
        if start < prompt <= end:  # one must be left to compute
            stops.append(prompt)
        if stops:
            self._copy(sequence, stops)

    def ended(self, sequence: OneSequence) -> None:
        """Copies what of a sequence is not written yet; its request has ended."""
        length = len(sequence.tokens)
        self._copy(sequence, [*range(self.block, length, self.block), length])

    def _copy(self, sequence: OneSequence, stops: Sequence[int]) -> None:
        stops = [stop for stop in sorted(stops) if stop <= sequence.exact]
        start = start_of(sequence.variant)
        if self.writer.closed or not stops or start is None:
            return
        if stops[-1] < self._worth(sequence.tokens):
            return
        path = PrefixPath(start, sequence.tokens[: stops[-1]], self._sequences.inputs, self.block)
        for stop in stops:
            full, key = stop % self.block == 0, path.key(stop)
            if self.writer.knows(key) or not (full or path.may_end(stop)):
                continue
            if self.writer.full:
                return
            begin = (stop - 1) // self.block * self.block
            with self._sequences.change() as cache:
                saved = cache.save(sequence.number, begin, stop)
            if saved is None:
                return
            if full or saved.complete:
                before = () if full else path.keys[: begin // self.block]
                self.writer.add(Block(key, saved.parts, before))

    def _worth(self, inputs: Sequence[int], held: int = 0) -> int:
        """The least length of a prefix that is worth a file, if so many inputs are in memory:
        further `least` ones, or one with an embedding, which took an encoder."""
        most = held + self.least
        return next((i + 1 for i in range(held, min(most, len(inputs))) if inputs[i] < 0), most)

    # what requests begin with is read

    def prepare(self, request: Request) -> None:
        """Has the prefix of a waiting request read, if a part of it is not in memory."""
        if request in self._fetches:
            return
        self._fetches[request] = None
        reusable = request.prompt[:-1].tolist()
        captures = request.probe is not None and request.probe.captures
        variant = variant_of(request.probe, request.adapters)
        start = start_of(variant)
        if self.writer.root is None or start is None or captures:
            return
        if self._worth(reusable) > len(reusable):
            return
        least = self._worth(reusable, self._sequences.longest(reusable, variant))
        if least > len(reusable):
            return
        path = PrefixPath(start, reusable, self._sequences.inputs, self.block)
        needs_from = self._sequences.cache.needs_from
        with suppress(RuntimeError):  # at the end of the process
            future = self._reader.submit(self._read, path, reusable, least, variant, needs_from)
            future.add_done_callback(lambda _: self._wake())
            self._fetches[request] = future

    def ready(self, request: Request) -> bool:
        """Whether a request that was prepared may begin."""
        future = self._fetches.get(request)
        return request in self._fetches and (future is None or future.done())

    def taken(self, request: Request) -> SavedPrefix | None:
        """The prefix that was read for a request, once."""
        future = self._fetches.pop(request, None)
        if future is None or future.cancel() or not future.done() or future.exception():
            return None
        return future.result()

    # in the reader's thread

    def _read(
        self,
        path: PrefixPath,
        tokens: list[int],
        least: int,
        variant: Hashable,
        needs_from: NeedsFrom,
    ) -> SavedPrefix | None:
        for _ in range(_TRIES):
            found = self._longest(path, least, needs_from)
            if found is None:
                return None
            length, names = found
            reads = [[self._files.submit(self.files.read, name) for name in part] for part in names]
            pieces = [[read.result() for read in part] for part in reads]
            whole = [[one for one in part if one is not None] for part in pieces]
            if [len(part) for part in whole] == [len(part) for part in pieces]:
                self.files.touch(chain.from_iterable(reversed(part) for part in names))
                self.found += 1
                return SavedPrefix(tokens[:length], Saved.of(length, whole), None, length, variant)
        return None  # others remove files faster than they are read

    def _longest(
        self, path: PrefixPath, least: int, needs_from: NeedsFrom
    ) -> tuple[int, list[list[str]]] | None:
        """The length of the longest prefix that is on the disk, and the names of its files, part by
        part; None if none has the least length."""
        parts = range(len(needs_from(1)))
        # The first block of the unbroken run of each part that ends before a block.
        runs, there = [[0] for _ in parts], list[set[int]]()
        for block, key in enumerate(path.keys):
            there.append({part for part in parts if self._has(key, part)})
            for part in parts:
                runs[part].append(runs[part][block] if part in there[-1] else block + 1)
            self.writer.check(key, there[-1])

        def first_blocks(block: int, length: int) -> list[int]:
            return [min(first // self.block, block) for first in needs_from(length)]

        def reaches(block: int, length: int) -> bool:
            first = first_blocks(block, length)
            return all(run[block] <= needed for run, needed in zip(runs, first, strict=True))

        for block in path.blocks():
            if (block + 1) * self.block < least:
                return None
            if not reaches(block, (block + 1) * self.block):
                continue
            for length, key in path.ends(block):
                if length < least:
                    break
                if reaches(block, length) and all(self._has(key, part) for part in parts):
                    keys = [*path.keys[:block], key]
                    for one, held in zip(keys, there[:block], strict=False):
                        self.writer.note(one, held)
                    needed = enumerate(first_blocks(block, length))
                    return length, [
                        [self.writer.name(one, part) for one in keys[first:]]
                        for part, first in needed
                    ]
        return None

    def _has(self, key: str, part: int) -> bool:
        return self.files.has(self.writer.name(key, part))

    # the end

    def close(self) -> None:
        """Writes what waits to be, and ends the threads; idempotent."""
        self.writer.close()
        for threads in (self._reader, self._files):
            threads.shutdown(wait=False, cancel_futures=True)

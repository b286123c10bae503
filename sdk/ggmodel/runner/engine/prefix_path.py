"""Names of a prompt's prefixes: digests that are the same in every process.

A prefix is cut into blocks of equally many inputs. The key of a block is a digest of the key before
it and of its own inputs, so it stands for all that precedes. The last one may be shorter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from .adapters import Adapter
from .inputs import InputTable

_KEY = 20  # bytes


def start_of(variant: Hashable) -> bytes | None:
    """The key before the first block of sequences of a variant, see `variant_of`; None for one that
    means something in this process alone, such as a function of Python."""
    text = _lasting(variant)
    return None if text is None else hashlib.blake2b(text.encode(), digest_size=_KEY).digest()


def _lasting(value: Hashable) -> str | None:
    """A text that is equal for equal values in all processes; None if there is none."""
    if isinstance(value, Adapter):
        return f"adapter {value.digest}"
    if isinstance(value, tuple):
        parts = [_lasting(one) for one in value]
        whole = [part for part in parts if part is not None]
        return f"({','.join(whole)})" if len(whole) == len(parts) else None
    if value is None or isinstance(value, (str, bytes, int, float)):
        return repr(value)
    return None


class PrefixPath:
    """The prefixes of some inputs.

    Args:
        start: see `start_of`.
        numbers: the inputs.
        table: knows them; not needed later.
        block: inputs of a block.

    Attributes:
        keys: of the blocks that are full, in order; hexadecimal.
    """

    def __init__(self, start: bytes, numbers: Sequence[int], table: InputTable, block: int):
        ids = np.array(numbers, "<i4")
        self._start, self._length, self._block = start, len(ids), block
        self._within = set[int]()  # places between inputs of one group
        if (ids < 0).any():
            pieces = [_encoded(number, table) for number in numbers]
            self._data = b"".join(pieces)
            self._ends = np.cumsum([0, *(len(piece) for piece in pieces)]).tolist()
            self._within = {i for i, n in enumerate(numbers) if n < 0 and table[n].index > 0}
        else:
            self._data = ids.tobytes()
            self._ends = range(0, 4 * len(ids) + 4, 4)
        self.keys, key = list[str](), start
        for begin in range(0, self._length - block + 1, block):
            key = self._digest(key, begin, begin + block).digest()
            self.keys.append(key.hex())

    def __len__(self) -> int:
        return self._length

    def key(self, length: int) -> str:
        """The key of the last block of a prefix of at least one input."""
        block, rest = divmod(length, self._block)
        if not rest:
            return self.keys[block - 1]
        return self._digest(self._before(block), length - rest, length).hexdigest()

    def ends(self, block: int) -> list[tuple[int, str]]:
        """The prefixes that end in a block, the longest first: length and key. None ends within a
        group, which is computed in one batch."""
        first = block * self._block
        last = min(first + self._block, self._length)
        digest, found = self._digest(self._before(block), first, first), list[tuple[int, str]]()
        for begin, end in pairwise(range(first, last + 1)):
            digest.update(self._data[self._ends[begin] : self._ends[end]])
            if self.may_end(end):
                found.append((end, digest.hexdigest()))
        return found[::-1]

    def may_end(self, length: int) -> bool:
        """Whether a prefix of that length splits no group."""
        return length not in self._within

    def blocks(self) -> Iterator[int]:
        """The numbers of its blocks, the last one first."""
        return reversed(range(-(-self._length // self._block)))

    def _before(self, block: int) -> bytes:
        return bytes.fromhex(self.keys[block - 1]) if block else self._start

    def _digest(self, key: bytes, begin: int, end: int) -> hashlib.blake2b:
        data = self._data[self._ends[begin] : self._ends[end]]
        return hashlib.blake2b(key + data, digest_size=_KEY)


def _encoded(number: int, table: InputTable) -> bytes:
    """An input as bytes, none of which begins as another one: its token, or −1 and a digest."""
    if number >= 0:
        return number.to_bytes(4, "little")
    return b"\xff\xff\xff\xff" + table.digest(number)

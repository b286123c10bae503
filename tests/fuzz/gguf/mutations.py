"""Changes to GGUF documents that know what they change."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from random import Random

from ggmodel.gguf_file import DType
from tests.fuzz.gguf.document import ALIGNMENT, ARRAY, CODES, STRING, Document, Entry, Pair, string

Change = Callable[[Random, Document], None]

_ARCHITECTURES = (
    b"llama gemma2 gemma3 llama4 mllama qwen2 qwen3 qwen3moe phi3 olmo2 gpt-oss bert clip x"
).split()
_FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-38, 1e30, 2e38, math.inf, -math.inf, math.nan, 0.5, 1e4]
_SIZES = [0, 1, 2, 3, 31, 32, 33, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32, 2**61, 2**63, 2**64 - 1]
_TYPE_NUMBERS = [*map(int, DType), 4, 5, 31, 36, 43, 2**31, 2**32 - 1]


def mutate(random: Random, document: Document, changes: tuple[Change, ...], times: int = 3) -> None:
    """Changes a document in one to `times` ways."""
    for _ in range(random.choice([1, 1, 1, *range(1, times + 1)])):
        random.choice(changes)(random, document)


# metadata


def value(random: Random, document: Document) -> None:
    """A value is at an extreme, nearly the same, or of another type."""
    if document.pairs:
        i = random.randrange(len(document.pairs))
        key, kind, old = document.pairs[i]
        if random.random() < 0.15:
            kind = random.choice([*CODES, STRING, ARRAY])
            old = b""
        document.pairs[i] = Pair(key, kind, _value(random, kind, old))


def _value(random: Random, kind: int, old: bytes) -> bytes:
    if kind == ARRAY:
        return _array(random, old)
    if kind == STRING:
        return string(_text(random, old[8:]))
    return _number(random, CODES[kind], old)


def _number(random: Random, code: str, old: bytes) -> bytes:
    size = struct.calcsize(code)
    if code in "fd":
        before = struct.unpack("<" + code, old)[0] if len(old) == size else 1.0
        near = [before * 2, -before, before * 1e3, before / 1e3, before + 1]
        choices = [*_FLOATS, *(x for x in near if abs(x) < 3e38)]
        return struct.pack("<" + code, random.choice(choices))
    bits = 8 * size
    least, most = (0, 2**bits - 1) if code.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    before = int.from_bytes(old, "little") if len(old) == size else 1
    near = [before + 1, before - 1, before * 2, before // 2, before * 1000, before + 32]
    new = random.choice([*near, *near, least, most, 0, 1, 2, 3, most // 2, 2**16, 2**31 - 1])
    return struct.pack("<" + code, min(max(new, least), most))


def _text(random: Random, old: bytes) -> bytes:
    kind = random.randrange(6)
    if kind == 0:
        return b""
    if kind == 1:
        return random.choice(_ARCHITECTURES)
    if kind == 2:
        return random.randbytes(random.choice([1, 9, 300]))
    if kind == 3:
        return old * random.choice([2, 50])
    if kind == 4:
        return "é\0\u202e\U0001f600{{x}}".encode() + old
    return old[: random.randrange(len(old) + 1)]


def _array(random: Random, old: bytes) -> bytes:
    """Another number of items, an item of its own, nested, or of another type."""
    kind = random.randrange(6)
    if len(old) < 12 or kind == 0:
        return struct.pack("<IQ", random.choice([*CODES, STRING]), 0)
    item, count = struct.unpack_from("<IQ", old)
    if kind == 1:
        count = random.choice([count + 1, count - 1, 0, 1, *_SIZES]) % 2**64
        return struct.pack("<IQ", item, count) + old[12:]
    if kind == 2:
        item = random.choice([*CODES, STRING, ARRAY, 13, 2**32 - 1])
        return struct.pack("<IQ", item, count) + old[12:]
    if kind == 3:
        levels = random.choice([1, 7, 8, 40])
        return struct.pack("<IQ", ARRAY, 1) * levels + old
    if item in CODES and count:
        return _items(random, CODES[item], count, old[12:])
    if item == STRING and count and kind == 4:  # the same strings, one more or one changed
        return struct.pack("<IQ", STRING, count + 1) + old[12:] + string(_text(random, b"token"))
    raw = bytearray(old)
    raw[random.randrange(12, len(raw)) if len(raw) > 12 else 0] ^= 1 << random.randrange(8)
    return bytes(raw)


def _items(random: Random, code: str, count: int, body: bytes) -> bytes:
    """Numbers with one of them changed, or fewer, or more."""
    size = struct.calcsize(code)
    number = next(n for n, c in CODES.items() if c == code)
    at = random.randrange(count) * size
    kind = random.randrange(3)
    if kind == 0:
        body = body[:at] + _number(random, code, body[at : at + size]) + body[at + size :]
    elif kind == 1:
        count, body = at // size, body[:at]
    else:
        more = random.choice([1, 5, count])
        count, body = count + more, body + body[at : at + size] * more
    return struct.pack("<IQ", number, count) + body


def lose_key(random: Random, document: Document) -> None:
    if document.pairs:
        del document.pairs[random.randrange(len(document.pairs))]


def repeat_key(random: Random, document: Document) -> None:
    if document.pairs:
        document.pairs.append(random.choice(document.pairs))


def rename_key(random: Random, document: Document) -> None:
    if document.pairs:
        i = random.randrange(len(document.pairs))
        names = [random.choice(document.pairs).key, b"", b"general.alignment", b"split.count"]
        names += [b"\xff", b"k" * 70000, document.pairs[i].key + b"x"]
        document.pairs[i] = document.pairs[i]._replace(key=random.choice(names))


def swap_values(random: Random, document: Document) -> None:
    if document.pairs:
        i, j = (random.randrange(len(document.pairs)) for _ in range(2))
        a, b = document.pairs[i], document.pairs[j]
        document.pairs[i], document.pairs[j] = a._replace(key=b.key), b._replace(key=a.key)


def alignment(random: Random, document: Document) -> None:
    number = random.choice([0, 1, 8, 16, 31, 48, 64, 4096, 2**31, 2**32 - 1])
    document.pairs.append(Pair(b"general.alignment", 4, struct.pack("<I", number)))


# tensors


def _change(random: Random, document: Document, change: Callable[[Entry], Entry]) -> None:
    if document.entries:
        i = random.randrange(len(document.entries))
        document.entries[i] = change(document.entries[i])


def shape(random: Random, document: Document) -> None:
    def change(e: Entry) -> Entry:
        dims = list(e.shape) or [1]
        i, kind = random.randrange(len(dims)), random.randrange(6)
        if kind == 0:
            dims[i] = random.choice(_SIZES)
        elif kind == 1:
            dims[i] = max(0, dims[i] + random.choice([-1, 1, 32, -32]))
        elif kind == 2:
            dims.reverse()
        elif kind == 3:
            dims += [random.choice([1, 1, 2])] * random.choice([1, 3, 30])
        elif kind == 4:
            dims.pop(i)
        else:
            dims[i] *= random.choice([2, 3, 1000])
        return e._replace(shape=tuple(dims))

    _change(random, document, change)


def kind(random: Random, document: Document) -> None:
    _change(random, document, lambda e: e._replace(kind=random.choice(_TYPE_NUMBERS)))


def offset(random: Random, document: Document) -> None:
    def change(e: Entry) -> Entry:
        steps = [ALIGNMENT, -ALIGNMENT, 1, 8, 2**62, -e.offset]
        other = random.choice(document.entries).offset
        at = random.choice([e.offset + random.choice(steps), other, random.choice(_SIZES)])
        return e._replace(offset=at)

    _change(random, document, change)


def rename_tensor(random: Random, document: Document) -> None:
    def change(e: Entry) -> Entry:
        old = e.name
        names = [random.choice(document.entries).name, b"", old + b"x", b"\xc3", b"t" * 65]
        names += [old.replace(b"blk.0", b"blk.1"), old.replace(b"blk.1", b"blk.9999999999")]
        names += [old.replace(b".weight", b".bias"), old.replace(b"attn", b"ffn")]
        return e._replace(name=random.choice(names))

    _change(random, document, change)


def lose_tensor(random: Random, document: Document) -> None:
    if document.entries:
        del document.entries[random.randrange(len(document.entries))]


def repeat_tensor(random: Random, document: Document) -> None:
    if document.entries:
        document.entries.append(random.choice(document.entries))


def swap_tensors(random: Random, document: Document) -> None:
    if document.entries:
        i, j = (random.randrange(len(document.entries)) for _ in range(2))
        a, b = document.entries[i], document.entries[j]
        document.entries[i], document.entries[j] = a._replace(name=b.name), b._replace(name=a.name)


def numbers(random: Random, document: Document) -> None:
    """Weights that are no numbers, or too large."""

    def change(e: Entry) -> Entry:
        data = bytearray(e.data)
        for _ in range(random.choice([1, 4, len(data) // 4])):
            if len(data) >= 4:
                at = random.randrange(len(data) // 4) * 4
                data[at : at + 4] = struct.pack("<f", random.choice([*_FLOATS[:9], math.nan]))
        return e._replace(data=bytes(data))

    _change(random, document, change)


# the header


def counts(random: Random, document: Document) -> None:
    tensors, keys = len(document.entries), len(document.pairs)
    wrong = random.choice([tensors + 1, tensors - 1, keys, 2**63, *_SIZES])
    document.counts = (wrong, None) if random.random() < 0.5 else (None, wrong)


def version(random: Random, document: Document) -> None:
    document.version = random.choice([0, 1, 2, 2, 4, 3 << 24, 2**32 - 1])
    if random.random() < 0.2:
        document.magic = random.choice([b"FUGG", b"lmgg", b"vers", b"GGU\0"])


def size(random: Random, document: Document) -> None:
    document.size = max(0, random.choice([0, document.size - 1, document.size // 2, 2**20]))


# Most such files can be read, so that what makes a model of them is tried.
MEANING: tuple[Change, ...] = (
    value, value, value, value, value, lose_key, rename_key, swap_values,
    shape, kind, rename_tensor, lose_tensor, repeat_tensor, swap_tensors, numbers, numbers, numbers,
)  # fmt: skip
ANY: tuple[Change, ...] = (
    *MEANING[3:-3], repeat_key, alignment, offset, offset, shape, counts, version, size
)  # fmt: skip

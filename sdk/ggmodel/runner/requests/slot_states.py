"""Saved states: tokens and memory of a slot as bytes, which a later process goes on from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ...errors import Busy, ConfigError, FormatError, KvCacheFull, Unsupported
from ...gguf_file import TensorSource
from ...model.cache import Saved
from ..engine.engine import Engine
from ..engine.prefix_files import packed, unpacked
from ..engine.saved import SavedPrefix
from ..engine.sequences import Sequence as Slot

_NAME = "state"  # in the digest of the bytes
_SAMPLE = 4096  # bytes of each tensor
_KEY = 20  # bytes


@dataclass(frozen=True)
class SlotStates:
    """The states of an engine's slots.

    Args:
        source: of its model.
    """

    engine: Engine
    source: TensorSource

    def save(self, number: int | None = None) -> tuple[int, list[memoryview]]:
        """The tokens that a slot holds, and all that it holds as bytes, to be joined.

        Args:
            number: of the slot; None is the one used last.

        Raises:
            ConfigError: there is no such slot. Busy: it serves a request.
            Unsupported: it holds nothing that can be saved.
        """
        tokens, saved = self.engine.call(lambda: self._copy(number))
        counts = np.array([len(part) for part in saved.parts if part is not None], np.int32)
        arrays = [array for part in saved.parts for array in part or ()]
        data = packed(_NAME, [self._model(), np.array(tokens, np.int32), counts, *arrays])
        return len(tokens), data

    def load(self, data: bytes, number: int | None = None, name: str = "this") -> int:
        """Has a slot hold what was saved, in place of what it held; the number of its tokens.

        Args:
            name: of the data, for messages.

        Raises:
            FormatError: the bytes are damaged, or no state. ConfigError: it is that of another
                model or of other options, or there is no such slot. Busy: it serves a request.
            KvCacheFull: it does not fit.
        """
        tokens, saved = self._read(data, name)
        self.engine.call(lambda: self._place(number, tokens, saved))
        return len(tokens)

    def erase(self, number: int | None = None) -> int:
        """Has a slot forget all that it holds; the number of its tokens.

        Raises:
            ConfigError: there is no such slot. Busy: it serves a request.
        """

        def erase() -> int:
            slot = self._slot(number)
            held = len(slot.tokens)
            slot.wipe()
            return held

        return self.engine.call(erase)

    # in the engine's thread

    def _slot(self, number: int | None) -> Slot:
        slots = self.engine.sequences.all
        if number is None:
            number = max(slots, key=lambda one: one.worth[1]).number
        if not 0 <= number < len(slots):
            raise ConfigError(f"there is no slot {number}; the model has {len(slots)} (parallel)")
        if not slots[number].free:
            raise Busy(f"slot {number} serves a request; wait for its end")
        return slots[number]

    def _copy(self, number: int | None) -> tuple[list[int], Saved]:
        slot = self._slot(number)
        reasons = {
            "it holds nothing": not slot.tokens,
            "it holds a picture or another item: a prefix store keeps those": any(
                token < 0 for token in slot.tokens
            ),
            "its context was shifted": slot.exact < len(slot.tokens),
            "it was computed with adapters or patches": slot.variant is not None,
        }
        for reason, applies in reasons.items():
            if applies:
                raise Unsupported(f"slot {slot.number} cannot be saved: {reason}")
        with self.engine.sequences.change() as cache:
            saved = cache.save(slot.number)
        if saved is None or not saved.complete:
            raise Unsupported(
                f"slot {slot.number} cannot be saved: its values lie by position without flash "
                "attention; load the model with flash_attention='on'"
            )
        return list(slot.tokens), saved

    def _place(self, number: int | None, tokens: list[int], saved: Saved) -> None:
        slot = self._slot(number)
        slot.save()
        slot.restore(SavedPrefix(tokens, saved, None, len(tokens)))
        if len(slot.tokens) != len(tokens):
            raise KvCacheFull(
                f"a state of {len(tokens)} tokens does not fit; erase other slots, or load the "
                "model with a larger context_length or parallel"
            )
        self.engine.sequences.note_use(slot)

    # bytes

    def _read(self, data: bytes, name: str) -> tuple[list[int], Saved]:
        arrays = unpacked(_NAME, data)
        if arrays is None or len(arrays) < 3:
            raise FormatError(f"{name} is no saved state of ggmodel, or it is damaged")
        model, ids, counts, *rest = arrays
        if model.tobytes() != self._model().tobytes():
            raise ConfigError(
                f"{name} is the state of another model, or of another kv_type; load the model that "
                "it was saved from, with the same options"
            )
        tokens, ends = ids.tolist(), np.cumsum(counts).tolist()
        fits = len(tokens) <= self.engine.context_length
        if not fits or not all(0 <= token < self.engine.vocabulary for token in tokens):
            raise ConfigError(
                f"{name} has {len(tokens)} tokens, and the context holds "
                f"{self.engine.context_length}; load the model with a larger context_length"
            )
        parts = [rest[end - count : end] for count, end in zip(counts.tolist(), ends, strict=True)]
        return tokens, Saved(len(tokens), parts)

    def _model(self) -> np.ndarray:
        """A digest of the index, of a sample of each tensor, and of the options, uint8 [20]."""
        digest = hashlib.blake2b(self.engine.kv_type.name.encode(), digest_size=_KEY)
        for name, info in self.source.tensors.items():
            digest.update(f"{name} {info.shape} {info.dtype.name}\n".encode(errors="replace"))
            digest.update(self.source.data(name)[:_SAMPLE])
        return np.frombuffer(digest.digest(), np.uint8)

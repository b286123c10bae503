"""Receipts: the origin of an answer, so that anybody can compute its bits again.

A model that was loaded with `deterministic=True` gives one with each answer to a prompt of tokens.
To replay it is to compute the logits of the same tokens anew, and to compare their sums.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from ... import __version__
from ...errors import ConfigError
from ...gguf_file import TensorSource
from ...storage import write_text
from ..sampling import Sampler

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..engine.probes import Probe

_FORMAT = 1
_MOST = 1 << 28  # bytes of a receipt


@dataclass(frozen=True)
class Receipt:
    """The origin of an answer.

    Attributes:
        format: of receipts, 1.
        name: the file's.
        model: SHA-256 over metadata and tensors, hexadecimal.
        library: versions and digests of what computed: ggmodel, ggml, the compiled kernels, the
            instructions in use, the C library.
        options: those of loading and of the request that change logits.
        sampler: numbers of the sampler; without a seed its draws are not repeated.
        prompt, tokens: ids that went in and came out.
        sums: of the bits of all logits that each token was chosen from, hexadecimal.
    """

    format: int
    name: str
    model: str
    library: dict[str, Any]
    options: dict[str, Any]
    sampler: dict[str, Any]
    prompt: list[int]
    tokens: list[int]
    sums: list[str]

    def save(self, path: str | Path) -> None:
        """Writes it as JSON."""
        write_text(Path(path), json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> Receipt:
        """Reads what `save` wrote.

        Raises:
            ConfigError: it is no receipt of this format.
        """
        file = Path(path)
        try:
            if file.stat().st_size > _MOST:
                raise ConfigError(f"{file} is too large for a receipt")
            values = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} is no receipt: {error}") from None
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or values.keys() != names or values["format"] != _FORMAT:
            raise ConfigError(
                f"{file} is no receipt of this version of ggmodel, which has format {_FORMAT}"
            )
        receipt = cls(**values)
        receipt._check(file)
        return receipt

    def _check(self, file: Path) -> None:
        for name in ("prompt", "tokens"):
            ids = getattr(self, name)
            if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
                raise ConfigError(f"{file}: {name} is no list of token ids")
        texts = isinstance(self.sums, list) and all(isinstance(s, str) for s in self.sums)
        if not texts or len(self.sums) != len(self.tokens) or not self.prompt:
            raise ConfigError(f"{file}: there is one sum a token, and a prompt")
        for name in ("library", "options", "sampler"):
            if not isinstance(getattr(self, name), dict):
                raise ConfigError(f"{file}: {name} is no object")


@dataclass(frozen=True)
class Replay:
    """The outcome of a replay.

    Attributes:
        first: the number of the first token whose logits have other bits; None if all are equal.
        drawn: the number of the first token that the sampler draws otherwise; None if there is
            none, and where the sampler had no seed.
        differences: what the receipt says of the model and the library, and what is here:
            (name, receipt, here).
    """

    first: int | None
    drawn: int | None
    differences: tuple[tuple[str, Any, Any], ...]

    @property
    def same(self) -> bool:
        """Whether all bits are equal."""
        return self.first is None and self.drawn is None


def sum_of(logits: np.ndarray) -> str:
    """A sum of the bits of logits, float32 [vocabulary], hexadecimal: a checksum, no digest."""
    even = len(logits) // 2 * 2
    total = int(logits[:even].view(np.uint64).sum(dtype=np.uint64))
    if even < len(logits):
        total += int(logits[even:].view(np.uint32)[0])
    return f"{total % (1 << 64):016x}"


_digests: WeakKeyDictionary[TensorSource, str] = WeakKeyDictionary()


def digest_of(source: TensorSource) -> str:
    """SHA-256 over metadata and tensors of a source, whatever files they lie in; computed once."""
    if source not in _digests:
        digest = hashlib.sha256()
        for key in sorted(source.metadata):
            value = source.metadata[key]
            plain = (
                list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else value
            )
            digest.update(f"{key}={plain!r}\n".encode("utf-8", "surrogateescape"))
        for name in sorted(source.tensors):
            info = source.tensors[name]
            digest.update(
                f"{name} {info.shape} {info.dtype.name}\n".encode("utf-8", "surrogateescape")
            )
            digest.update(memoryview(source.data(name)).cast("B"))
        source.check_unchanged()
        _digests[source] = digest.hexdigest()
    return _digests[source]


def library() -> dict[str, Any]:
    """Versions and digests of the code that computes in this process."""
    from ...ml.ggml import attention, products
    from ...native import describe, ffi, lib

    ggml = describe()
    kernels = ffi.string(lib.ggmodel_ordered_library()).decode(errors="replace")
    return {
        "ggmodel": __version__,
        "ggml": f"{ggml['version']} {ggml['commit']}",
        "binding": _file_digest(ggml["module"]),
        "kernels": _file_digest(kernels) if kernels else "",  # loaded for deterministic models
        "instructions": [int(products.instructions), int(attention.instructions)],
        "machine": platform.machine(),
        "c": " ".join(platform.libc_ver()).strip() or platform.platform(),
    }


def _file_digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class Proof:
    """Notes what one request is computed from; in the engine's thread.

    Args:
        options: of the request, those that change logits.
        probe: what it captures and changes in the model; None for nothing.
    """

    def __init__(
        self,
        engine: Engine,
        sampler: Sampler,
        prompt: np.ndarray,
        options: dict[str, Any],
        probe: Probe | None,
    ):
        self._engine, self._sampler, self._prompt = engine, sampler, prompt
        self._patched = probe is not None and bool(probe.patches)
        self._options, self.sums = options, list[str]()

    @classmethod
    def of(cls, engine: Engine, *given: Any) -> Proof | None:
        """The proof of a request; None unless the model is deterministic."""
        return cls(engine, *given) if engine.backend.params.deterministic else None

    def add(self, logits: np.ndarray) -> None:
        """Takes the logits that the next token was chosen from."""
        self.sums.append(sum_of(logits))

    def receipt(self, tokens: Sequence[int]) -> Receipt | None:
        """The receipt; None for a prompt with pictures or other items, and for a patched model."""
        if self._patched or (self._prompt < 0).any():
            return None
        engine, source = self._engine, self._engine.backend.source
        loading = {
            "kv_type": engine.kv_type.name.lower(),
            "context_length": engine.context_length,
        }
        numbers = {
            name: value
            for name, value in vars(self._sampler).items()
            if isinstance(value, (int, float)) and not name.startswith("_")
        }
        numbers["repeatable"] = type(self._sampler) is Sampler and not self._sampler.logit_bias
        numbers["repeatable"] &= not self._options.get("grammar", False)
        numbers["repeatable"] &= self._sampler.seed != -1 or self._sampler.temperature == 0
        return Receipt(
            _FORMAT,
            source.name,
            digest_of(source),
            library(),
            loading | self._options,
            numbers,
            self._prompt.tolist(),
            list(tokens),
            list(self.sums),
        )


class Forced(Sampler):
    """Takes the tokens of a receipt, and notes where its own draw is another.

    Attributes:
        drawn: the number of the first such token; None if there is none.
    """

    def __init__(self, receipt: Receipt):
        numbers = dict(receipt.sampler)
        self._repeats = bool(numbers.pop("repeatable", False))
        super().__init__(**numbers) if self._repeats else super().__init__(temperature=0)
        self._tokens, self._next = receipt.tokens, 0
        self.drawn: int | None = None

    def draw(self, logits: np.ndarray, random: np.random.Generator) -> int:
        token = self._tokens[self._next]
        if self._repeats and super().draw(logits, random) != token and self.drawn is None:
            self.drawn = self._next
        self._next += 1
        return token


def differences(receipt: Receipt, source: TensorSource) -> Iterator[tuple[str, Any, Any]]:
    """Names with what a receipt says of model and library, and what is here, where they differ."""
    if receipt.model != (here := digest_of(source)):
        yield "model", receipt.model, here
    now = library()
    for name in sorted({*receipt.library, *now}):
        if receipt.library.get(name) != now.get(name):
            yield name, receipt.library.get(name), now.get(name)

"""Adapters in files: LoRA in llama.cpp's GGUF layout, checked against the model that it changes.

The change of a tensor NAME is in NAME.lora_a and NAME.lora_b, and for DoRA, which llama.cpp lacks,
in NAME.lora_magnitude. A Hugging Face folder is read as such a file (`convert.peft`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ...errors import ConfigError, FormatError, Unsupported
from ...gguf_file import DType, TensorInfo, TensorSource, open_gguf
from ...gguf_file.types import LARGEST
from ...ml.tensor import to_float32
from ..engine.adapters import PRODUCT, ROWS, LowRank

A, B, MAGNITUDE = ".lora_a", ".lora_b", ".lora_magnitude"
ALPHA = "adapter.lora.alpha"
TASK, PROMPT = "adapter.lora.task_name", "adapter.lora.prompt_prefix"
TABLES = ("token_types.weight", "position_embd.weight")
"""Embeddings whose rows are looked up, though A and B lie in files as those of products do: in
llama.cpp's the embedding of tokens alone has them the other way round."""
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"

AdapterPaths = str | os.PathLike[str] | Iterable[Any] | Mapping[Any, float] | None


def open_adapter(path: str | os.PathLike[str], model: Any) -> TensorSource:
    """The GGUF file of an adapter.

    Args:
        model: the architecture with its tensors, which a folder's names are looked up in.

    Raises:
        FormatError: there is no such file, or it is none of GGUF.
    """
    return open_gguf(path)


def strengths_of(adapters: AdapterPaths) -> dict[str, float]:
    """Adapters as options name them, each with its strength: one, several, or a mapping.

    Raises:
        ConfigError: they are named otherwise, or a strength is no number, or too large for float32.
    """
    if adapters is None:
        return {}
    if isinstance(adapters, (str, os.PathLike)):
        adapters = [adapters]
    if not isinstance(adapters, Iterable):
        raise ConfigError(
            f"adapters is {adapters!r:.80}; it must be a name or a path, a list of them, or a "
            "mapping to strengths"
        )
    pairs = adapters.items() if isinstance(adapters, Mapping) else ((one, 1.0) for one in adapters)
    strengths: dict[str, float] = {}
    for name, strength in pairs:
        if not isinstance(name, (str, os.PathLike)):
            raise ConfigError(f"an adapter is {name!r:.80}; it must be a name or a path")
        number = isinstance(strength, (int, float)) and not isinstance(strength, bool)
        if not number or not abs(strength) <= LARGEST:
            raise ConfigError(
                f"the strength of {name} is {strength!r:.80}; it must be a number of float32"
            )
        strengths[os.fspath(name)] = float(strength)
    return strengths


def changes_of(adapter: TensorSource, base: TensorSource) -> dict[tuple[str, str], LowRank]:
    """The changes of a model's weights, by the weight's name and its use.

    Raises:
        FormatError: the file is no adapter of this model; names the tensor and the shapes.
        Unsupported: it changes something else than matrices, or is switched on by tokens.
    """
    alpha = _checked(adapter, base)
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name in adapter.tensors:
        weight, suffix = next(
            ((name.removesuffix(s), s) for s in (A, B, MAGNITUDE) if name.endswith(s)), (name, "")
        )
        if not suffix:
            raise Unsupported(
                f"{adapter.name} changes {name!r:.100}, and matrices alone can be changed, by "
                f"tensors NAME{A} and NAME{B}"
            )
        parts.setdefault(weight, {})[suffix] = values_of(adapter, name)
    changes: dict[tuple[str, str], LowRank] = {}
    for weight, arrays in parts.items():
        if weight not in base.tensors or not {A, B} <= arrays.keys():
            raise FormatError(
                f"{adapter.name} changes {weight!r:.100}, which {base.name} lacks, or by half: it "
                "is an adapter of another model, or damaged"
            )
        use = _use(adapter, base.tensors[weight], arrays)
        b = arrays[B]
        scale = alpha / b.shape[-1] if alpha else 1.0
        if use == PRODUCT and weight in TABLES:
            use, arrays, b = ROWS, {A: b}, arrays[A].T
        scaled = (b.astype(np.float64) * scale).astype(np.float32)
        changes[weight, use] = LowRank(arrays[A], scaled, arrays.get(MAGNITUDE))
    return changes


def _checked(adapter: TensorSource, base: TensorSource) -> float:
    """The adapter's alpha, once its metadata fit the model; 0 for a scale of 1."""
    keys = adapter.metadata
    if (keys.get("general.type"), keys.get("adapter.type")) != ("adapter", "lora"):
        raise FormatError(f"{adapter.name} is no LoRA adapter; give one, or the model by itself")
    kind, name = (s.metadata.get("general.architecture") for s in (adapter, base))
    if kind != name:
        raise FormatError(f"{adapter.name} is an adapter of {kind!r:.80}, and the model {name!r}")
    if "adapter.alora.invocation_tokens" in keys:
        raise Unsupported(f"{adapter.name} is switched on by tokens, which is unsupported")
    alpha = keys.get(ALPHA, 0.0)
    if not isinstance(alpha, (int, float, np.floating)) or not np.isfinite(alpha):
        raise FormatError(f"{adapter.name}: {ALPHA} is {alpha!r:.80}; it must be a number")
    return float(alpha)


def _use(adapter: TensorSource, base: TensorInfo, arrays: Mapping[str, np.ndarray]) -> str:
    """The use of a weight that matrices of these shapes change."""
    w, a, b = base.shape[::-1], arrays[A].shape, arrays[B].shape
    fault = (
        f"{adapter.name}: A {list(a[::-1])} and B {list(b[::-1])} of {base.name!r:.100} do not fit "
        f"{list(base.shape)}: it is an adapter of another model"
    )
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise FormatError(f"{adapter.name}: the change of {base.name!r:.100} holds NaN or infinity")
    fits_rows = len(w) == len(b) == 2 and a == (w[0], b[1]) and b[0] == w[1]
    magnitude = arrays.get(MAGNITUDE)
    if fits_rows and (a[1], b) != (w[1], (w[0], a[0])):  # that fits as a product, too
        _refuse_lengths(adapter, base, magnitude)
        return ROWS
    *experts, rows, width = w if len(w) > 1 else (0, *w)
    *more, rank = b
    if len(w) not in (2, 3) or a != (*experts, rank, width) or [*more] != [*experts, rows]:
        raise FormatError(fault)
    if base.name in TABLES:
        _refuse_lengths(adapter, base, magnitude)
    if magnitude is not None and (len(w) != 2 or magnitude.shape != (rows,)):
        raise FormatError(f"{adapter.name}: {list(magnitude.shape)} magnitudes; {fault}")
    return PRODUCT


def _refuse_lengths(adapter: TensorSource, base: TensorInfo, magnitude: np.ndarray | None) -> None:
    if magnitude is not None:
        raise Unsupported(f"{adapter.name}: DoRA of the embedding {base.name!r:.100}")


def values_of(source: TensorSource, name: str) -> np.ndarray:
    """A tensor as float32, in numpy's order."""
    info = source.info(name)
    raw = np.frombuffer(source.data(name), info.dtype.numpy or np.uint8)
    return to_float32(raw, info.dtype, info.shape)


class MergedSource(TensorSource):
    """A model whose weights have an adapter's changes in them. Such a weight is F32 where it was
    F32 or BF16, else F16. Where one tensor is embedding and head, and one of both is changed, the
    head becomes a tensor of its own. Closing closes both.

    Args:
        base: the model.
        adapter: in llama.cpp's layout.
        strength: of the changes.
        headless: the model has no head, which could be the embedding.

    Raises:
        FormatError, Unsupported: as `changes_of`.
    """

    def __init__(
        self,
        base: TensorSource,
        adapter: TensorSource,
        strength: float = 1.0,
        *,
        headless: bool = False,
    ):
        self._base, self._adapter, self._strength = base, adapter, strength
        self.name = f"{base.name} + {adapter.name}"
        self.files: tuple[Path, ...] = (*base.files, *adapter.files)
        self.metadata = base.metadata
        self._changes: dict[str, tuple[str, str, LowRank]] = {}  # name → the base's, use, change
        tensors, self._tied = dict(base.tensors), not headless and _HEAD not in base.tensors
        # The head may have been taken off the embedding by an adapter that is merged already.
        self._split = isinstance(base, MergedSource) and base._split
        for (weight, use), change in changes_of(adapter, base).items():
            if weight == _EMBEDDING and self._tied:
                self._split = True
                tensors[_HEAD] = replace(base.tensors[_EMBEDDING], name=_HEAD)
            head = weight == _EMBEDDING and use == PRODUCT and self._split
            name = _HEAD if head else weight
            self._changes[name] = weight if self._tied else name, use, change
            tensors[name] = self._merged(tensors[name])
        self.tensors = MappingProxyType(tensors)
        self.unread, self.unread_keys = base.unread, base.unread_keys

    def _merged(self, info: TensorInfo) -> TensorInfo:
        plain = info.dtype in (DType.F32, DType.BF16)
        dtype = DType.F32 if plain else DType.F16
        nbytes = dtype.row_size(info.shape[0]) * int(np.prod(info.shape[1:]))
        return TensorInfo(info.name, info.shape, dtype, nbytes, len(self._base.files), 0)

    def data(self, name: str) -> memoryview:
        info = self.info(name)
        if name not in self._changes:
            return self._base.data(_EMBEDDING if name == _HEAD and self._tied else name)
        weight, use, change = self._changes[name]
        merged = change.merged(values_of(self._base, weight), use, self._strength)
        with np.errstate(over="ignore"):
            weights = merged.astype(info.dtype.numpy)
        if not np.isfinite(weights).all():
            raise FormatError(f"{self.name}: {name!r:.100} is infinite with the adapter")
        return weights.reshape(-1).view(np.uint8).data.toreadonly()

    def mapped(self, file: int) -> memoryview | None:
        return self._base.mapped(file) if file < len(self._base.files) else None

    def release(self, name: str) -> None:
        self._base.release(_EMBEDDING if name == _HEAD and self._tied else name)

    def check_unchanged(self, files: Iterable[int] | None = None) -> None:
        shift = len(self._base.files)
        numbers = range(len(self.files)) if files is None else [*files]
        self._base.check_unchanged([n for n in numbers if n < shift])
        self._adapter.check_unchanged([n - shift for n in numbers if n >= shift])

    def close(self) -> None:
        self._base.close()
        self._adapter.close()

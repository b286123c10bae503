"""Sources of a model: a file, its projector (mmproj) and LoRA adapter, or a checkpoint's folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...chat.template import KEY
from ...errors import ConfigError, Error, FormatError, Unsupported
from ...gguf_file import DType, TensorInfo, TensorSource, open_gguf
from ...gguf_file.values import KeyValues
from ...ml.tensor import to_float32
from ...model.loader import fits
from ...model.module import of_tower
from ...resources import closed_on_error
from .resolved import PATH, ResolvedModel

if TYPE_CHECKING:
    import numpy as np

_A, _B = ".lora_a", ".lora_b"
_ALPHA = "adapter.lora.alpha"


class AdaptedSource(TensorSource):
    """A model whose weights are W + alpha / rank · B·A where an adapter has A and B, as llama.cpp
    defines it (llama_adapter_lora_weight). Such a weight is F32 where W is F32 or BF16, else F16.
    Closing closes both.

    Args:
        base: the model.
        adapter: a GGUF file of the type "lora".

    Raises:
        FormatError: the file is no adapter of this model; names the tensor.
        Unsupported: it changes something else than matrices of layers.
    """

    def __init__(self, base: TensorSource, adapter: TensorSource):
        self._base, self._adapter = base, adapter
        self._alpha = _checked(base, adapter)
        self._changed = [n.removesuffix(_A) for n in adapter.tensors if n.endswith(_A)]
        for name in adapter.tensors:
            if not name.endswith((_A, _B)):
                raise Unsupported(
                    f"{adapter.name} changes {name!r:.100}, and matrices alone can be"
                )
        for name in self._changed:
            _check_shapes(base, adapter, name)
        if 2 * len(self._changed) != len(adapter.tensors):
            raise FormatError(f"{adapter.name} has halves of pairs A and B; pull the model again")
        self.name = f"{base.name} + {adapter.name}"
        self.files: tuple[Path, ...] = (*base.files, *adapter.files)
        self.metadata = base.metadata
        merged = {name: self._merged(base.tensors[name]) for name in self._changed}
        self.tensors = MappingProxyType({**base.tensors, **merged})
        self.unread, self.unread_keys = base.unread, base.unread_keys

    def _merged(self, info: TensorInfo) -> TensorInfo:
        plain = info.dtype in (DType.F32, DType.BF16)
        dtype = DType.F32 if plain else DType.F16
        nbytes = dtype.row_size(info.shape[0]) * info.shape[1]
        return TensorInfo(info.name, info.shape, dtype, nbytes, len(self._base.files), 0)

    def data(self, name: str) -> memoryview:
        info = self.info(name)
        if name not in self._changed:
            return self._base.data(name)
        import numpy as np

        a, b = (_values(self._adapter, name + half) for half in (_A, _B))
        scale = self._alpha / b.shape[1] if self._alpha else 1.0
        merged = _values(self._base, name) + np.float32(scale) * (b @ a)
        with np.errstate(over="ignore"):
            weights = merged.astype(info.dtype.numpy)
        if not np.isfinite(weights).all():
            raise FormatError(f"{self.name}: {name!r:.100} is infinite with the adapter")
        return memoryview(weights.reshape(-1).view(np.uint8)).toreadonly()

    def mapped(self, file: int) -> memoryview | None:
        return self._base.mapped(file) if file < len(self._base.files) else None

    def release(self, name: str) -> None:
        self._base.release(name)

    def check_unchanged(self, files: Iterable[int] | None = None) -> None:
        shift = len(self._base.files)
        numbers = range(len(self.files)) if files is None else [*files]
        self._base.check_unchanged([n for n in numbers if n < shift])
        self._adapter.check_unchanged([n - shift for n in numbers if n >= shift])

    def close(self) -> None:
        self._base.close()
        self._adapter.close()


def adapted(base: TensorSource, adapters: Iterable[Path]) -> TensorSource:
    """A model with its adapters, one after the other.

    Raises:
        FormatError, Unsupported: as for `AdaptedSource`.
    """
    for path in adapters:
        with closed_on_error(base):
            adapter = open_gguf(path)
            with closed_on_error(adapter):
                base = AdaptedSource(base, adapter)
    return base


def _checked(base: TensorSource, adapter: TensorSource) -> float:
    """The adapter's alpha, once its metadata fit the model."""
    keys = adapter.metadata
    if (keys.get("general.type"), keys.get("adapter.type")) != ("adapter", "lora"):
        raise FormatError(f"{adapter.name} is no LoRA adapter; pull the model again")
    kind, name = (s.metadata.get("general.architecture") for s in (adapter, base))
    if kind != name:
        raise FormatError(f"{adapter.name} is an adapter of {kind!r:.80}, and the model {name!r}")
    if "adapter.alora.invocation_tokens" in keys:
        raise Unsupported(f"{adapter.name} is switched on by tokens, which is unsupported")
    alpha = keys.get(_ALPHA, 0.0)
    if not isinstance(alpha, (int, float)):
        raise FormatError(f"{adapter.name}: {_ALPHA} is {alpha!r:.80}; it must be a number")
    return float(alpha)


def _check_shapes(base: TensorSource, adapter: TensorSource, name: str) -> None:
    if name not in base.tensors or name + _B not in adapter.tensors:
        raise FormatError(
            f"{adapter.name} changes {name!r:.100}, which the model lacks, or by half"
        )
    w, a, b = (s.tensors[n].shape for s, n in _three(base, adapter, name))
    if len(w) != 2 or name == "token_embd.weight":
        raise Unsupported(
            f"{adapter.name} changes {name!r:.100}, and matrices of layers alone can be"
        )
    if a != (w[0], b[0]) or b != (a[-1], w[1]):
        raise FormatError(
            f"{adapter.name}: A {list(a)} and B {list(b)} of {name!r:.100} do not fit {list(w)}"
        )


def _three(
    base: TensorSource, adapter: TensorSource, name: str
) -> tuple[tuple[TensorSource, str], ...]:
    return (base, name), (adapter, name + _A), (adapter, name + _B)


def _values(source: TensorSource, name: str) -> np.ndarray:
    import numpy as np

    info = source.info(name)
    raw = np.frombuffer(source.data(name), info.dtype.numpy or np.uint8)
    return to_float32(raw, info.dtype, info.shape)


Source = str | os.PathLike[str] | TensorSource

_ENCODERS = ("vision", "audio")


def open_source(
    source: Source,
    mmproj: str | Path | None = None,
    models: str | Path | None = None,
    type: str | None = None,
) -> TensorSource:
    """An open source as it is, or a GGUF file with its projector and adapters.

    Args:
        mmproj: the projector; None takes one that lies beside the file and fits, "" none.
        models: a folder with architectures, looked in first.
        type: None; checkpoints alone are converted while they are read.

    Raises:
        ConfigError: a projector for an open source, or a type.
        FormatError: a file is not what it says.
    """
    if type is not None:
        raise ConfigError(
            "a type goes with the folder of a Hugging Face model; `ggmodel quantize IN OUT TYPE` "
            "writes a GGUF file with other types"
        )
    if isinstance(source, TensorSource):
        if mmproj:
            raise ConfigError(
                "mmproj goes with the path of a model; join open ones with "
                "ggmodel.gguf_file.JoinedSource(model, projector)"
            )
        return source
    parts = source.parts if isinstance(source, ResolvedModel) else ()
    if mmproj:
        return _as_stored(open_gguf(source, mmproj, parts), source)
    opened = open_gguf(source, parts=parts)
    with closed_on_error(opened):
        projector = None if mmproj == "" else _beside(opened, source, models)
    if projector is None:
        return _as_stored(opened, source)
    opened.close()
    return _as_stored(open_gguf(source, projector, parts), source)


def _as_stored(opened: TensorSource, source: str | os.PathLike[str]) -> TensorSource:
    """The source with the chat template of its store, and its adapters."""
    if not isinstance(source, ResolvedModel):
        return opened
    if source.template:
        opened.metadata = MappingProxyType({**opened.metadata, KEY: source.template})
    return adapted(opened, source.adapters) if source.adapters else opened


def _beside(
    source: TensorSource, path: str | os.PathLike[str], models: str | Path | None
) -> Path | None:
    """A projector that fits: the one of a resolved model; else of those beside the model the one
    whose name has most in common with the model's, then the smallest."""
    name = source.metadata.get("general.architecture")
    if any(map(of_tower, source.tensors)) or not isinstance(name, str):
        return None
    candidates = [*_candidates(source)]
    if isinstance(path, ResolvedModel) and path.store != PATH:
        candidates = [*filter(None, [path.mmproj])]
    width, own = source.metadata.get(f"{name}.embedding_length"), source.files[0].name
    text = KeyValues(source.metadata, source.name)
    fitting = [p for p in candidates if _fits(p, text, width, models)]
    fitting.sort(key=lambda p: (-_in_common(p.name, own), p.stat().st_size, p.name))
    return fitting[0] if fitting else None


def _candidates(source: TensorSource) -> Iterator[Path]:
    with suppress(OSError):
        for path in source.files[0].absolute().parent.iterdir():
            name = path.name.lower()
            if "mmproj" in name and name.endswith(".gguf") and path.is_file():
                yield path


def _fits(path: Path, text: KeyValues, width: object, models: str | Path | None) -> bool:
    """Whether a file is a projector to that width, and of a type that goes with the text."""
    try:
        with open_gguf(path) as projector:
            keys = projector.metadata
            widths = {keys.get(f"clip.{kind}.projection_dim", width) for kind in _ENCODERS}
            is_one = keys.get("general.architecture") == "clip" and widths == {width}
            return is_one and fits(text, keys, models)
    except Error:  # of the text's: loading reports it
        return False


def _in_common(projector: str, model: str) -> int:
    """How many letters the two names share at their beginning, "mmproj-" left out."""
    bare = projector.lower().removeprefix("mmproj").lstrip("-_.")
    return len(os.path.commonprefix([bare, model.lower()]))  # noqa: RUF071 (letters are meant)

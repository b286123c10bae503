"""`CheckpointSource`: a Hugging Face folder as a model to load or to write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from ..errors import ConfigError, LoadError, Unsupported
from ..gguf_file import DType, TensorInfo, TensorSource
from ..gguf_file.source import encode_value
from ..model import Model, find, find_hf
from ..model.module import of_tower
from ..model.operations import Computed, Indices, Stack
from ..model.walk import LONGEST
from .behind import Behind
from .checkpoint import Checkpoint
from .declaration import PlannedTensor, plan
from .from_hf import normalize, read_config, read_preparation, value_of_entry, with_preparation
from .imatrix import ImportanceMatrix
from .keys import Watched, listed_classes, recorded, unread_keys, with_defaults
from .metadata import clip_metadata, describe, text_metadata
from .scales import check_quantisation, is_mxfp4
from .tensor_types import Candidate, Recipe, choose, plain_type, recipe_of
from .write import info

Contents = Literal["all", "text", "vision"]

# safetensors' type of numbers → type in GGUF where none is asked for. Integers are no weights.
_PLAIN = {"F64": DType.F32, "F32": DType.F32, "F16": DType.F16, "BF16": DType.BF16}
_TOKENIZERS = (
    *("tokenizer.json", "tekken.json", "tokenizer.model", "spiece.model", "source.spm"),
    *("tiktoken.model", "*.tiktoken", "vocab.txt"),
)
_RAW = {DType.F32: "F32", DType.F16: "F16", DType.BF16: "BF16"}


@dataclass(frozen=True)
class _Made:
    """A tensor of the source.

    Attributes:
        shape: in numpy's order.
        blocks: the type of quantised blocks, where the tensor's are the checkpoint's own.
        same: the checkpoint's tensor with the same bytes, if there is one.
    """

    entry: PlannedTensor
    shape: tuple[int, ...]
    blocks: DType | None = None
    same: str | None = None


class CheckpointSource(TensorSource):
    """A checkpoint through the declaration of its architecture. A tensor is computed when it is
    asked for and not kept; a tensor with the right bytes in the file is mapped.

    Args:
        recipe: the types of tensors; None keeps those of the checkpoint.
        importance: for types below four bits.
        contents: "text" and "vision" are the two files of llama.cpp's layout.
        pre: the name of the pre-tokenizer, where it cannot be determined.
        served: the class registered for the checkpoint, if it is stored as another architecture.

    Attributes:
        architecture: the model class.
        raw: config.json, and the documents beside it as `with_preparation` gives them.
        report: how the checkpoint fits the declaration.
        typed: the metadata without the vocabulary. Values stored as other types than u32 and f32
            are numpy's.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        architecture: type[Model],
        recipe: Recipe | None = None,
        contents: Contents = "all",
        pre: str | None = None,
        importance: ImportanceMatrix | None = None,
        served: type[Model] | None = None,
    ):
        check_quantisation(checkpoint.config, checkpoint.folder)
        self.served = served or architecture
        self.checkpoint, self.architecture, self.contents = checkpoint, architecture, contents
        self.pre, self._importance = pre, importance
        self.name = str(checkpoint.folder)
        self.files = (*checkpoint.files, checkpoint.folder / "config.json")
        reference = recorded(checkpoint.config)
        documents = read_preparation(checkpoint.folder)
        self.raw, self._prepared = with_preparation({**checkpoint.config, **documents})
        raw = self.raw
        hf = with_defaults(architecture, raw, normalize(raw), reference)
        self.behind = Behind(checkpoint, architecture.architecture)
        if self.behind.pooling is not None:
            hf["pooling_type"] = self.behind.pooling
        self.hf = Watched({**hf, "tensors:": checkpoint.arrays})
        _check_layers(checkpoint, self.hf)
        metadata, self.config = read_config(architecture, self.hf)
        self._computed: dict[str, np.ndarray] = {}
        self._latest: tuple[str, np.ndarray] | None = None  # see `rows`
        self._made = self._plan()
        metadata = {**metadata, **self.behind.keys(metadata["general.architecture"])}
        self.unread_keys = self.unread_of(reference)
        self.report.unread_keys += self.unread_keys.values()
        if contents != "all":
            text = architecture.text_of(checkpoint.config)
            metadata = (
                text_metadata(metadata, text)
                if contents == "text"
                else clip_metadata(architecture, self.config, metadata, text)
            )
        dtypes = self._types(recipe, metadata)
        self.tensors = MappingProxyType({n: self._info(n, d) for n, d in dtypes.items()})
        infos = self.tensors.values()
        kind = "mmproj" if contents == "vision" else "model"
        self.typed = describe(checkpoint.folder, kind, metadata, infos, recipe)
        if importance is not None:
            self.typed |= importance.metadata()
        # Without any tokenizer a model still takes token ids.
        tokenized = any(any(checkpoint.folder.glob(name)) for name in _TOKENIZERS)
        self.metadata: Mapping[str, Any] = _Metadata(
            self.typed, lambda: self.vocabulary if tokenized else {}
        )

    def unread_of(self, reference: Mapping[str, Any] | None) -> dict[str, str]:
        """The keys of its config.json and of the files beside it that a reference reads and the
        architecture does not; see `unread_keys`."""
        both = {**(reference or {}), **self._prepared}
        return unread_keys(self.served, self.raw, self.hf, both)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        type: str | None = None,
        models: str | Path | None = None,
        contents: Contents = "all",
        pre: str | None = None,
        *,
        imatrix: str | Path | None = None,
        program: str | None = None,
    ) -> CheckpointSource:
        """Opens a folder.

        Args:
            type: of the tensors, as `ggmodel convert --type` takes it.
            models: a folder with architectures, looked in first.
            contents, pre: see the class.
            imatrix: the file of an importance matrix.
            program: see `Model.stored_as`.

        Raises:
            FormatError: a file is missing, or not what it says.
            ArchitectureError: nothing serves the `architectures` of its config.
            ConfigError: a hyperparameter is missing or wrong, or there is no such type.
            LoadError: it lacks tensors that the architecture needs.
            Unsupported: its quantisation cannot be read.
        """
        recipe = None if type is None else recipe_of(type)
        importance = None if imatrix is None else ImportanceMatrix.read(imatrix)
        checkpoint = Checkpoint.open(folder)
        try:
            served = find_hf(listed_classes(checkpoint.config), models)
            name = served.stored_as(checkpoint.config, program)
            architecture = served if name == served.architecture else find(name, models)
            return cls(checkpoint, architecture, recipe, contents, pre, importance, served)
        except BaseException:
            checkpoint.close()
            raise

    @cached_property
    def vocabulary(self) -> dict[str, Any]:
        """The metadata `tokenizer.*`; none in a file of vision tensors.

        Raises:
            TokenizerError: the folder has no vocabulary, or its kind is unsupported.
        """
        if self.contents == "vision":
            return {}
        embedding = self.tensors.get("token_embd.weight")
        rows = None if embedding is None else embedding.shape[1]
        return self.behind.with_templates(self._read_vocabulary(rows))

    def _read_vocabulary(self, rows: int | None) -> dict[str, Any]:
        from .vocabulary import vocabulary

        return vocabulary(self.checkpoint.folder, self.hf.config, self.pre, rows)

    def data(self, name: str) -> memoryview:
        made = self._made[self.info(name).name]
        if made.same is not None:
            return self.checkpoint.raw(made.same)
        values = self._values(made)
        if made.blocks is not None:
            return values.reshape(-1).data.cast("B").toreadonly()
        from .quantize import encode

        t = self.tensors[name]
        if isinstance(made.entry.op, Indices):
            return values.astype(np.int32).reshape(-1).view(np.uint8).data.toreadonly()
        weights = None if self._importance is None else self._importance.of(name, t.shape)
        return encode(values, t.dtype, name, weights).data.toreadonly()

    def keeps_blocks(self, name: str) -> bool:
        """Whether a tensor's blocks are the checkpoint's own, so that none of its numbers is
        rounded."""
        return self._made[self.info(name).name].blocks is not None

    def computes(self, name: str) -> bool:
        """Whether a tensor follows from the config alone."""
        return isinstance(self._made[self.info(name).name].entry.join, Computed)

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows of a tensor before it is rounded, float32 [stop - start, dim 0], contiguous. Those
        that an operation makes are computed with the whole tensor, the latest of which is kept."""
        made = self._made[self.info(name).name]
        entry, width = made.entry, made.shape[-1] if made.shape else 1
        if entry.join is None and entry.op is None:
            part = self.checkpoint.rows(entry.sources[0], start, stop)
            return np.ascontiguousarray(part, np.float32)
        if self._latest is None or self._latest[0] != name:
            self._latest = None  # two of the largest would be too many
            values = self._values(made)
            if made.blocks is not None:
                from .quantize import decode

                values = decode(values, made.blocks, prod(made.shape))
            self._latest = name, values
        return self._latest[1].reshape(-1, width)[start:stop]

    def mapped(self, file: int) -> memoryview | None:
        return self.checkpoint.mapped(file) if file < len(self.checkpoint.files) else None

    def release(self, name: str) -> None:
        for source in self._made[name].entry.sources:
            self.checkpoint.release(source)

    def check_unchanged(self, files: Iterable[int] | None = None) -> None:
        self.checkpoint.check_unchanged(files)

    def close(self) -> None:
        self.checkpoint.close()

    def _values(self, made: _Made) -> np.ndarray:
        """A tensor before it is rounded: float32, or the bytes of its blocks."""
        entry = made.entry
        if entry.name in self._computed:
            return self._computed[entry.name]
        try:
            packed = made.blocks is not None and self._is_mxfp4(entry)
            read = self.checkpoint.mxfp4 if packed else self.checkpoint.array
            value = value_of_entry(entry, self.config, self.hf, read)
        except (ValueError, IndexError, TypeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise LoadError(f"{entry.name} cannot be made of {_listed(entry)}: {error}") from error
        assert value is not None
        if made.blocks is not None:
            return np.ascontiguousarray(value)
        if value.shape != made.shape:
            raise LoadError(
                f"{entry.name} of {_listed(entry)} should be {list(made.shape)}, but is "
                f"{list(value.shape)}; its operation must say how it changes shapes (shape)"
            )
        return np.ascontiguousarray(value, np.float32)

    def _plan(self) -> dict[str, _Made]:
        """The tensors in the order of the checkpoint, by the last of their sources."""
        names = {name: i for i, name in enumerate(self.checkpoint.tensors)}
        fit = plan(self.architecture, self.config, names, self.contents != "all")
        self.report, entries = fit.report, fit.entries
        tied = bool(self.hf.get("tie_word_embeddings"))
        self.behind.plan(entries, self.report, tied, lambda: self._read_vocabulary(None))
        replace(self.report, unused=[]).check()
        self.unread = {n: self.report.nearest.get(n, "") for n in self.report.unused}
        entries.sort(key=lambda e: max((names[s] for s in e.sources), default=-1))
        made: dict[str, _Made] = {}
        for entry in entries:
            included = self.contents == "all" or of_tower(entry.name) == (self.contents == "vision")
            shape = self._shape(entry) if included else None
            if shape is not None:
                blocks = DType.MXFP4 if self._is_mxfp4(entry) else entry.join and entry.join.dtype
                made[entry.name] = _Made(entry, shape, blocks)
        if self.contents == "vision" and not made:
            raise Unsupported(f"{self.name} has no vision tensors; leave out --mmproj")
        return made

    def _shape(self, entry: PlannedTensor) -> tuple[int, ...] | None:
        """The shape of the tensor of an entry, in numpy's order; None if there is no tensor."""
        if isinstance(entry.join, Computed):
            value = value_of_entry(entry, self.config, self.hf, self.checkpoint.array)
            if value is None:
                return None
            self._computed[entry.name] = np.ascontiguousarray(value, np.float32)
            return value.shape
        shapes = [self.checkpoint.stored(s).shape for s in entry.sources]
        shape = shapes[0] if entry.join is None else entry.join.shape(shapes, self.config)
        shape = shape if entry.op is None else entry.op.shape(shape, self.config)
        if len(shape) > 4 or 0 in shape:
            raise LoadError(f"{entry.name} of {_listed(entry)} is {list(shape)}; 1 to 4 dims > 0")
        return shape

    def _types(self, recipe: Recipe | None, metadata: Mapping[str, Any]) -> dict[str, DType]:
        """The type of each tensor, in their order."""
        plain: dict[str, Candidate] = {}
        for name, made in self._made.items():
            shape = made.shape[::-1] or (1,)
            only = DType.I32 if isinstance(made.entry.op, Indices) else made.blocks
            if only is not None:
                plain[name] = Candidate(name, shape, only)
                continue
            matrices = self._stored_as(made.entry)
            if recipe is not None and not recipe.dtype.is_quantized:
                matrices = recipe.dtype
            apart = self.contents == "vision"
            dtype = plain_type(name, made.entry.sources, shape, matrices, apart)
            plain[name] = Candidate(name, shape, dtype)
        if recipe is None or not recipe.dtype.is_quantized:
            return {name: c.dtype for name, c in plain.items()}
        tensors = [c for c in plain.values() if c.dtype in _RAW]
        chosen = choose(recipe, metadata, tensors, self._importance and self._importance.entries)
        return {name: chosen.get(name, c.dtype) for name, c in plain.items()}

    def _is_mxfp4(self, entry: PlannedTensor) -> bool:
        """Whether its sources are MXFP4 blocks, which are stacked at most."""
        plain = entry.op is None and isinstance(entry.join, Stack | None)
        sources = [self.checkpoint.stored(source) for source in entry.sources]
        return plain and bool(sources) and all(is_mxfp4(t) for t in sources)

    def _stored_as(self, entry: PlannedTensor) -> DType:
        """The type of its first source's numbers; BF16 of those with scales."""
        types = [DType.F32]
        for t in reversed([self.checkpoint.stored(source) for source in entry.sources]):
            if t.scales is None and t.dtype not in _PLAIN:
                raise t.unsupported()
            types.append(_PLAIN[t.dtype] if t.scales is None else DType.BF16)
        return types[-1]

    def _info(self, name: str, dtype: DType) -> TensorInfo:
        made = self._made[name]
        index_entry = replace(
            info(name, made.shape[::-1] or (1,), dtype), file=len(self.checkpoint.files)
        )
        entry = made.entry
        if entry.join is None and entry.op is None:
            stored = self.checkpoint.stored(entry.sources[0])
            if stored.dtype == _RAW.get(dtype):
                self._made[name] = replace(made, same=stored.name)
                return replace(index_entry, file=stored.file, offset=stored.offset)
        return index_entry


class _Metadata(Mapping[str, Any]):
    """Metadata as readers give it; the vocabulary is read on first use."""

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Callable[[], Mapping[str, Any]]):
        self._known = {k: encode_value(k, v) for k, v in metadata.items()}
        self._vocabulary = vocabulary
        self._whole: dict[str, Any] | None = None
        self._lock = threading.Lock()

    def _all(self) -> dict[str, Any]:
        with self._lock:
            if self._whole is None:
                read = {k: encode_value(k, v) for k, v in self._vocabulary().items()}
                self._whole = {**self._known, **read}
            return self._whole

    def __getitem__(self, key: str) -> Any:
        return (self._all() if key.startswith("tokenizer.") else self._known)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def _listed(entry: PlannedTensor) -> str:
    shown = ", ".join(entry.sources[:2])
    return shown + (f" … ({len(entry.sources)} tensors)" if len(entry.sources) > 2 else "")


def _check_layers(checkpoint: Checkpoint, hf: Mapping[str, Any]) -> None:
    """Bounds the work for hyperparameters that are made layer by layer."""
    layers, most = hf.get("num_hidden_layers"), max(len(checkpoint.tensors), LONGEST)
    if isinstance(layers, int) and layers > most:
        raise ConfigError(
            f"{checkpoint.folder / 'config.json'}: num_hidden_layers is {layers!r:.40}, but there "
            f"are {len(checkpoint.tensors)} tensors; the files do not belong together"
        )

"""`Checkpoint`: a Hugging Face folder, opened; its tensors mapped and read when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ..bounds import limits
from ..errors import FormatError, LoadError, Unsupported
from ..gguf_file.buffer import Buffer, quote
from ..reading import parse_json, read_json, too_large
from ..resources import Closing
from .scales import mxfp4_of, rows_of, with_scales

# safetensors' name of a dtype → bytes of an element, and numpy's name where arrays are given of it.
_DTYPES: dict[str, tuple[int, str | None]] = {
    "F64": (8, "<f8"),
    "F32": (4, "<f4"),
    "F16": (2, "<f2"),
    "BF16": (2, "<u2"),
    "I64": (8, "<i8"),
    "I32": (4, "<i4"),
    "I16": (2, "<i2"),
    "I8": (1, "i1"),
    "U64": (8, "<u8"),
    "U32": (4, "<u4"),
    "U16": (2, "<u2"),
    "U8": (1, "u1"),
    "BOOL": (1, "?"),
    "F8_E4M3": (1, None),
    "F8_E5M2": (1, None),
    "F8_E8M0": (1, None),
}
_WHOLE = "model.safetensors"
# Modules of sentence-transformers with tensors; files of further heads beside the model's, as
# BGE-M3 has them, whose pickles (.pt) are not read.
LAYERS, HEADS = ("Dense", "LayerNorm"), ("sparse_linear", "colbert_linear")
_INDEX = "model.safetensors.index.json"
_MISTRAL = "consolidated*.safetensors"
_PARAMETRIZED = ".parametrizations.weight.original"  # a weight that torch computes others from
_IN_MISTRALS_FORM = (
    "in Mistral's own form (params.json, consolidated.safetensors), whose names of tensors are "
    f"unsupported; get config.json and {_WHOLE}, or {_INDEX} and its files, which most of their "
    "models have too, or a GGUF file"
)


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a checkpoint.

    Attributes:
        shape: in numpy's order; () for a single number. It counts numbers, where two are a byte.
        dtype: in safetensors' names: "BF16", "F32", "U8".
        file: index into `files` of the checkpoint.
        offset: byte in that file where its data starts.
        scales: the tensor by whose numbers these are multiplied, if there is one.
        block: rows and columns that have one scale.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: int
    offset: int
    nbytes: int
    scales: FileTensor | None = None
    block: tuple[int, int] = (1, 1)

    def unsupported(self) -> Unsupported:
        """The error that it is no tensor of weights."""
        eight_bits = _DTYPES[self.dtype][1] is None
        reason = (
            "whose scales are missing or named otherwise"
            if eight_bits
            else "which is unsupported for weights"
        )
        return Unsupported(
            f"{self.name} is {self.dtype}, {reason}; take a checkpoint of this model in BF16, F16 "
            "or F32"
        )


class Checkpoint(Closing):
    """A folder with config.json and safetensors files; a context manager that closes itself.

    Files are hostile until proven otherwise: headers are checked against the file's size on
    opening. Tensors are read on first use.

    Attributes:
        config: config.json.
        files: the files with tensors, sorted by name.
        tensors: name to `FileTensor`, in the order of the files and their headers. Tensors of a
            sentence-transformers module have its folder in front: "2_Dense.linear.weight". A weight
            NAME.parametrizations.weight.original is called NAME.weight. Scales are not among them:
            their weight has them.
    """

    def __init__(self, folder: Path, config: dict[str, Any], buffers: list[Buffer]):
        self.folder, self.config, self._buffers = folder, config, buffers
        self.files: tuple[Path, ...] = tuple(Path(b.name) for b in buffers)
        tensors: dict[str, FileTensor] = {}
        for i, buffer in enumerate(buffers):
            prefix = _prefix(folder, Path(buffer.name))
            for t in _read_header(buffer, i, prefix):
                if t.name in tensors:
                    other = buffers[tensors[t.name].file].name
                    raise FormatError(f"{buffer.name}: tensor {quote(t.name)} is also in {other}")
                tensors[t.name] = t
        self._file_of = {name: t.file for name, t in tensors.items()}
        self.tensors: Mapping[str, FileTensor] = MappingProxyType(with_scales(config, tensors))

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        """Opens a folder.

        Raises:
            FormatError: it has no config.json or no safetensors, or a file is missing or damaged;
                names the file and the next step.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise FormatError(f"{folder} is no folder; give one with config.json and safetensors")
        if not (folder / "config.json").exists():
            if any(folder.glob(_MISTRAL)):
                raise FormatError(f"{folder} is {_IN_MISTRALS_FORM}")
            files = sorted(folder.glob("*.gguf"))
            hint = f"give a file in it, such as {files[0]}" if files else "download that file too"
            raise FormatError(
                f"{folder} is a directory without config.json, so no Hugging Face model; {hint}"
            )
        config = read_json(folder / "config.json")
        index, names = _file_names(folder)
        with ExitStack() as opened:
            buffers = (_opened(folder, name, _INDEX if index else None) for name in names)
            checkpoint = cls(folder, config, [opened.enter_context(closing(b)) for b in buffers])
            checkpoint._check_index(index or {})
            opened.pop_all()
        return checkpoint

    def _check_index(self, index: Mapping[str, str]) -> None:
        for name, file in index.items():
            at = self._file_of.get(_plain(name))
            if at is None or self.files[at].name != file:
                where = "not there" if at is None else f"in {self.files[at]}"
                raise FormatError(
                    f"{self.folder / _INDEX} says that {quote(name)} is in {file}, but it is "
                    f"{where}; the files do not belong together: download all of them again"
                )

    def stored(self, name: str) -> FileTensor:
        """The description of a tensor.

        Raises:
            LoadError: there is no such tensor.
        """
        if name not in self.tensors:
            raise LoadError(f"{self.folder} has no tensor {quote(name)}")
        return self.tensors[name]

    def raw(self, name: str) -> memoryview:
        """The bytes of a tensor, read-only and not copied."""
        return self._bytes(self.stored(name))

    def array(self, name: str) -> np.ndarray:
        """A tensor in numpy's order, not copied. BF16, which numpy lacks, and numbers with scales
        become float32.

        Raises:
            LoadError: there is no such tensor.
            Unsupported: its type needs scales, and it has none.
        """
        t = self.stored(name)
        if t.scales is not None:
            return self.rows(name, 0, prod(t.shape[:-1])).reshape(t.shape)
        return _numbers(np.frombuffer(self.raw(name), _dtype(t)).reshape(t.shape), t.dtype)

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows [stop - start, last dim] of a tensor, as `array` gives them; no others are read."""
        t = self.stored(name)
        if t.scales is not None:
            return rows_of(t, self.raw(name), self._bytes(t.scales), start, stop)
        width = t.shape[-1] if t.shape else 1
        values = np.frombuffer(self.raw(name), _dtype(t)).reshape(-1, width)
        return _numbers(values[start:stop], t.dtype)

    def mxfp4(self, name: str) -> np.ndarray:
        """The bytes of the MXFP4 blocks that a tensor is (`is_mxfp4`)."""
        t = self.stored(name)
        assert t.scales is not None
        return mxfp4_of(t, self.raw(name), self._bytes(t.scales))

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """Name → the tensor as `array` gives it, read when it is asked for."""
        return _Arrays(self)

    def mapped(self, file: int) -> memoryview:
        """The bytes of file number `file`."""
        return self._buffers[file].view

    def release(self, name: str) -> None:
        """Gives back the memory of a tensor; it is read again on the next use."""
        t = self.stored(name)
        for part in (t, t.scales):
            if part is not None:
                self._buffers[part.file].release(part.offset, part.nbytes)
                self._buffers[part.file].check()

    def check_unchanged(self, files: Iterable[int] | None = None) -> None:
        """Raises FormatError if one of the files has changed since it was opened; None is all.
        Numbers beyond them are passed over."""
        count = len(self._buffers)
        for file in range(count) if files is None else files:
            if file < count:
                self._buffers[file].check()

    def close(self) -> None:
        """Closes the files; arrays taken before stay valid."""
        for buffer in self._buffers:
            buffer.close()

    def _bytes(self, t: FileTensor) -> memoryview:
        return self._buffers[t.file].view[t.offset : t.offset + t.nbytes]


def _dtype(t: FileTensor) -> str:
    """numpy's name of a tensor's type; raises Unsupported if its type needs scales."""
    dtype = _DTYPES[t.dtype][1]
    if dtype is None:
        raise t.unsupported()
    return dtype


def _numbers(values: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers as they are; of BF16, which numpy lacks, as float32."""
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else values


class _Arrays(Mapping[str, np.ndarray]):
    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._checkpoint.tensors:
            raise KeyError(name)
        return self._checkpoint.array(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint.tensors)

    def __len__(self) -> int:
        return len(self._checkpoint.tensors)


def _file_names(folder: Path) -> tuple[dict[str, str] | None, list[str]]:
    """The index (tensor → file) if there is one, and the files with tensors, sorted."""
    index = None
    if (folder / _WHOLE).exists():
        names = [_WHOLE]
    elif (folder / _INDEX).exists():
        index = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise FormatError(f"{folder / _INDEX} has no weight_map; download it again")
        names = sorted({str(v) for v in index.values()})
        for name in names:
            # No folders: an index must not lead out of its own.
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise FormatError(
                    f"{folder / _INDEX} names the file {quote(name)}; only names of .safetensors "
                    "files in the same folder are allowed"
                )
    else:
        raise FormatError(_without_tensors(folder))
    return index, _module_files(folder) + names


def _without_tensors(folder: Path) -> str:
    if any(folder.glob(_MISTRAL)):
        return f"{folder} has tensors {_IN_MISTRALS_FORM}"
    if any(folder.glob("*.safetensors")):
        return (
            f"{folder} has neither {_WHOLE} nor {_INDEX}, only files named otherwise; "
            "download the index too"
        )
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        return (
            f"{folder} has its tensors as pickles (.bin, .pt), which run code when they are read; "
            "save the model as safetensors with transformers: model.save_pretrained(FOLDER)"
        )
    return f"{folder} has no {_WHOLE}; download the files with the tensors too"


def _module_files(folder: Path) -> list[str]:
    """Files of the layers that sentence-transformers puts behind a model, and of further heads."""
    heads = [f"{name}.safetensors" for name in HEADS]
    found = [name for name in heads if (folder / name).is_file()]
    if not (folder / "modules.json").is_file():
        return found
    paths = [path for kind in LAYERS for path in folder.glob(f"*_{kind}/{_WHOLE}")]
    return sorted(f"{path.parent.name}/{_WHOLE}" for path in paths) + found


def _prefix(folder: Path, file: Path) -> str:
    """The name in front of those of a file's tensors: that of a module's folder or of a head."""
    if file.parent != folder:
        return f"{file.parent.name}."
    return f"{file.stem}." if file.stem in HEADS else ""


def _plain(name: str) -> str:
    """The name of a tensor without torch's parametrization of it."""
    return f"{name.removesuffix(_PARAMETRIZED)}.weight" if name.endswith(_PARAMETRIZED) else name


def tasks_of(folder: Path) -> list[str]:
    """The tasks that a checkpoint has an adapter each for within its tensors, as
    jina-embeddings-v3 does; none of other folders.

    Raises:
        FormatError: its config.json is damaged.
    """
    file = folder / "config.json"
    tasks = read_json(file).get("lora_adaptations") if file.is_file() else None
    if not isinstance(tasks, list | None) or not all(isinstance(t, str) for t in tasks or ()):
        raise FormatError(f"{file}: lora_adaptations should be a list of names; get it again")
    return tasks or []


def _opened(folder: Path, name: str, index: str | None) -> Buffer:
    try:
        return Buffer.open(folder / name)
    except FileNotFoundError as error:
        if index is None:
            raise
        raise type(error)(
            f"{folder / name} does not exist, but {index} names it; download all files of the model"
        ) from None


def _read_header(buffer: Buffer, file: int, prefix: str) -> list[FileTensor]:
    """The tensors of a file, checked.

    Layout (documentation of safetensors): length of the header (u64), header in JSON, data. Faults
    of an entry are reported here, by its name; gaps and overlaps by safetensors.
    """
    length = buffer.u64(0, "the length of the header")
    buffer.need(8, length, "the header")
    if length > limits.text_file_bytes:
        raise buffer.error(8, too_large("the header", f"{length:,} bytes", "text_file_bytes"))
    header = parse_json(buffer.read(8, length), f"{buffer.name}: the header")
    start, tensors = 8 + length, []
    for name, entry in header.items():
        if name != "__metadata__":
            tensors.append(_entry(buffer, file, start, prefix, _plain(name), entry))
    try:
        with safe_open(buffer.name, "np"):
            return tensors
    except SafetensorError as error:
        raise buffer.error(8, f"no valid safetensors ({error}); download it again") from None


def _entry(buffer: Buffer, file: int, start: int, prefix: str, name: str, entry: Any) -> FileTensor:
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (entry.get(k) for k in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _sizes(shape) or not _sizes(offsets, 2):
        raise buffer.error(8, f"the header describes the tensor {quote(name)} wrongly")
    if dtype not in _DTYPES:
        raise buffer.error(
            8,
            f"tensor {quote(name)} has the unknown type {quote(dtype)}; known are "
            f"{', '.join(_DTYPES)}",
        )
    begin, end = offsets
    nbytes = prod(shape) * _DTYPES[dtype][0]
    if nbytes != end - begin:
        raise buffer.error(
            8, f"tensor {quote(name)}: {shape} of {dtype} takes {nbytes} bytes, not {end - begin}"
        )
    buffer.need(start + begin, nbytes, f"tensor {quote(name)}")
    return FileTensor(prefix + name, tuple(shape), dtype, file, start + begin, nbytes)


def _sizes(values: Any, count: int | None = None) -> bool:
    """Whether it is a list of `count` natural numbers of a plausible size."""
    return (
        isinstance(values, list)
        and len(values) <= 8
        and (count is None or len(values) == count)
        and all(type(v) is int and 0 <= v < 1 << 48 for v in values)
    )

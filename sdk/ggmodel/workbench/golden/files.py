"""Golden files: the results of transformers for tiny models, without their weights.

A folder of goldens is named after its architecture. It holds the configurations in `cases.py` and
the results of each in `CASE.npz`, or `embeddings/CASE.npz` for models without logits. Needs only
numpy, and safetensors for `checkpoint`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, FormatError
from ...gguf_file import DType
from ...model.source_code import author_code
from ...storage import atomic_write, naming
from ..routers import Router, from_arrays, to_arrays
from . import weights as rule
from .weights import Array, Types, narrowed, rounded

GREEDY = 12  # tokens in a greedy continuation
SOURCE_IDS = 64
JSON = ("config", "saved_config", "versions", "tensors")  # and types
ARRAYS = ("prompt", "logits", "logits_f16", "logits_q8_0", "greedy", "greedy_margins")
OF_A_PROMPT = ("ids", "logits", "greedy", "greedy_margins")

Weight = Callable[[str, tuple[int, ...]], Array]


class Cases:
    """The configurations of an architecture: `cases.py` of its folder.

    Attributes:
        configs: case → config.json.
        embeddings: case → (config.json, {name: shape} of layers behind it, lengths of texts).
        bounds: case → the NMSE that a model must stay below, if not `EXACT`.
        unseen: hyperparameter or tensor, or a pattern of them → why no case can see its value.
        module: the imported file; `ggmodel.workbench.golden.reference` lists its names.

    Raises:
        ConfigError: the file is missing, or its CASES are missing or of the wrong type.
        ArchitectureError: it cannot be imported; names the line.
    """

    def __init__(self, folder: Path):
        self.folder, self.module = folder, _imported(folder.resolve() / "cases.py")
        self.configs: Mapping[str, dict[str, Any]] = self._by_case("CASES", dict)
        self.embeddings: Mapping[str, Any] = self._by_case("EMBEDDINGS", tuple)
        self.bounds: Mapping[str, float] = self._by_case("BOUNDS", float)
        self.unseen: Mapping[str, str] = self._by_case("UNSEEN", str)
        if not (self.configs or self.embeddings):
            raise ConfigError(
                f"{folder / 'cases.py'} has no configurations: write CASES = {{name: config.json}}"
            )

    def _by_case(self, name: str, kind: type) -> Mapping[str, Any]:
        table = getattr(self.module, name, {})
        pairs = table.items() if isinstance(table, Mapping) else [(None, None)]
        for case, value in pairs:
            # The case names its file.
            if not (isinstance(case, str) and Path(case).name == case and isinstance(value, kind)):
                raise ConfigError(
                    f"{self.folder / 'cases.py'}: {name} = {table!r:.60}: write a dictionary of "
                    f"cases, each a {kind.__name__}"
                )
        return table

    @property
    def names(self) -> list[str]:
        """All cases."""
        return [*self.configs, *self.embeddings]

    def path(self, case: str) -> Path:
        """The golden file of a case."""
        return self.folder / ("" if case in self.configs else "embeddings") / f"{case}.npz"

    def load(self, case: str) -> Golden | Embeddings:
        """The golden of a case; raises as `Golden.load` does."""
        kind = Golden if case in self.configs else Embeddings
        return kind.load(self.path(case))

    def ways(self, config: Mapping[str, Any]) -> Any:
        """The ways of pooling whose results a vector concatenates."""
        ways = getattr(self.module, "POOLING", None)
        return ways(config) if callable(ways) else ways or (None,)

    @property
    def weight(self) -> Weight:
        """The rule for weights of Hugging Face tensors: the module's or the common one."""
        return getattr(self.module, "weight", rule.weight)

    def weights(self, tensors: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """The checkpoint with tensors of these names and shapes."""
        return {name: self.weight(name, shape) for name, shape in tensors.items()}


@functools.cache
def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(
            f"there is no {path}: a folder of goldens is named after its architecture and has its "
            "configurations in cases.py; `ggmodel new NAME` begins one"
        )
    digest = hashlib.blake2s(str(path).encode(), digest_size=6).hexdigest()
    spec = importlib.util.spec_from_file_location(f"ggmodel_cases_{digest}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with author_code("the configurations cannot be imported", str(path)):
        spec.loader.exec_module(module)
    return module


@dataclass
class Picture:
    """An image, or an item of another kind, as the reference's processor returns it; its values are
    derived from its name.

    Attributes:
        shape: of the values, such as [tiles, 3, height, width].
        data: further outputs of the processor (JSON), such as `aspect_ratio_id`.
        rows: [rows, width], the result of the encoder and the projector.
        kind: see `Model.modalities`; "source" is the text that an encoder reads.
    """

    name: str
    shape: tuple[int, ...]
    data: dict[str, Any] = field(default_factory=dict)
    rows: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    kind: str = "image"

    @property
    def pixels(self) -> Array:
        """The values, in (-1, 1); of a source ids of tokens below `SOURCE_IDS`."""
        values = rule.uniform(f"picture {self.name}", self.shape)
        return np.floor(np.abs(values) * SOURCE_IDS) if self.kind == "source" else values


@dataclass
class Prompt:
    """A prompt with images, and its continuation.

    Attributes:
        parts: lists of token ids, and names of images.
        ids: [n] for transformers, with placeholders and the tokens around an image.
        logits: [n, vocab] for every position, float32 on CPU, eager attention.
        greedy, greedy_margins, routers: as in `Golden`.
    """

    parts: list[list[int] | str]
    ids: NDArray[np.int32]
    logits: Array
    greedy: NDArray[np.int32]
    greedy_margins: Array
    routers: list[Router] = field(default_factory=list)


@dataclass
class _Results:
    """The results of transformers for one tiny model.

    Attributes:
        folder: of the file, named after the architecture.
        config: config.json as transformers read it, in the old spelling (`rope_theta`).
        saved_config: config.json as that transformers writes it: `rope_parameters`, all defaults.
        versions: torch, transformers and numpy of the run.
        tensors: names and numpy shapes of the checkpoint on disk, sorted, without a tied head; for
            embedding models with the layers behind the model.
        types: the tensors that a Q8_0 file rounds, and the type of each in it. Files that do not
            say so were made when all `lossy` tensors were Q8_0.
    """

    folder: Path
    config: dict[str, Any]
    saved_config: dict[str, Any]
    versions: dict[str, str]
    tensors: dict[str, tuple[int, ...]]
    types: Types

    @property
    def architecture(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    def weights(self, dtype: DType = DType.F32) -> dict[str, Array]:
        """The checkpoint, rounded as a file of `dtype` rounds it."""
        exact = Cases(self.folder).weights(self.tensors)
        return {n: rounded(x, narrowed(self.types.get(n), dtype)) for n, x in exact.items()}

    def described(self, *more: str) -> dict[str, Any]:
        """Attributes for JSON, types among them."""
        attributes = {name: getattr(self, name) for name in (*JSON, *more)}
        return attributes | {"types": {name: dtype.name for name, dtype in self.types.items()}}


@dataclass
class Golden(_Results):
    """The results for a model with logits.

    Attributes:
        prompt: [n] token ids.
        logits: [n, vocab] for every position of the prompt, float32 on CPU, eager attention.
        logits_f16: the same with weights rounded to F16 (activations stay float32).
        logits_q8_0: the same with weights rounded to Q8_0 (activations stay float32).
        greedy: at most GREEDY ids that follow the prompt; the same for F32, F16 and Q8_0 weights.
        greedy_margins: as many, top logit minus the second, the smallest of the three runs.
        routers: the choices of experts for the prompt and what follows it, with weights in F32; the
            runs with other weights were given them. None in files whose prompts were chosen so that
            no router is near a tie.
        pictures: the images and other items of its prompts, by name; empty for models of text.
        prompts: prompts with images, by name.
        changes: path in config.json, such as "text_config.rms_norm_eps" → another value, with which
            the reference computed again; see `ggmodel.workbench.golden.changes`.
        changed: [changes, n], its last logits of the prompts that are compared then.
    """

    prompt: NDArray[np.int32]
    logits: Array
    logits_f16: Array
    logits_q8_0: Array
    greedy: NDArray[np.int32]
    greedy_margins: Array
    routers: list[Router] = field(default_factory=list)
    pictures: dict[str, Picture] = field(default_factory=dict)
    prompts: dict[str, Prompt] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    changed: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    @classmethod
    def load(cls, path: Path) -> Golden:
        """Reads `FOLDER/CASE.npz`.

        Raises:
            FormatError: it is missing or damaged; says how to make it.
        """
        with _reading(path) as file:
            values = _texts(file, JSON) | {name: file[name] for name in ARRAYS}
            listed = _texts(file, ["pictures"])["pictures"] if "pictures" in file else {}
            pictures = {
                name: Picture(name, tuple(shape), data, file[f"pictures.{name}.rows"], *kind)
                for name, (shape, data, *kind) in listed.items()
            }
            layouts = _texts(file, ["prompts"])["prompts"] if "prompts" in file else {}
            prompts = {
                name: Prompt(
                    parts,
                    *(file[f"prompts.{name}.{key}"] for key in OF_A_PROMPT),
                    routers=from_arrays(file, f"prompts.{name}."),
                )
                for name, parts in layouts.items()
            }
            values["routers"] = from_arrays(file)
            if "changes" in file:
                values |= _texts(file, ["changes"]) | {"changed": file["changed"]}
        return cls(path.parent, **values, pictures=pictures, prompts=prompts)

    def save(self, case: str) -> Path:
        """Writes `FOLDER/CASE.npz`."""
        texts = self.described("changes")
        if self.prompts:
            texts["pictures"] = {
                name: (p.shape, p.data) if p.kind == "image" else (p.shape, p.data, p.kind)
                for name, p in self.pictures.items()
            }
            texts["prompts"] = {name: prompt.parts for name, prompt in self.prompts.items()}
        return _saved(self.folder / f"{case}.npz", _encoded(texts) | self.arrays())

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, by their names in the file."""
        arrays = {name: getattr(self, name) for name in (*ARRAYS, "changed")}
        arrays |= to_arrays(self.routers)
        for name, prompt in self.prompts.items():
            arrays |= {f"prompts.{name}.{key}": getattr(prompt, key) for key in OF_A_PROMPT}
            arrays |= to_arrays(prompt.routers, f"prompts.{name}.")
        return arrays | {f"pictures.{name}.rows": p.rows for name, p in self.pictures.items()}


@dataclass
class Embeddings(_Results):
    """The vectors of texts, for an embedding model.

    Attributes:
        texts: token ids.
        vectors: [texts, width], not normalized; float32 on CPU, eager attention.
    """

    texts: list[list[int]]
    vectors: Array

    @classmethod
    def load(cls, path: Path) -> Embeddings:
        """Reads `FOLDER/embeddings/CASE.npz`; raises as `Golden.load` does."""
        with _reading(path) as file:
            return cls(path.parents[1], **_texts(file, (*JSON, "texts")), vectors=file["vectors"])

    def save(self, case: str) -> Path:
        """Writes `FOLDER/embeddings/CASE.npz`."""
        values = _encoded(self.described("texts"))
        target = self.folder / "embeddings" / f"{case}.npz"
        target.parent.mkdir(exist_ok=True)
        return _saved(target, values | self.arrays())

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays, by their names in the file."""
        return {"vectors": self.vectors}


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise FormatError(f"there is no {path}; `ggmodel golden --update` makes it, with torch")
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            yield file
    except Exception as error:  # numpy raises whatever a broken file leads it to
        raise FormatError(f"{path} is no golden file: {error}; make it again") from error


def _texts(file: Any, names: Iterable[str]) -> dict[str, Any]:
    values = {name: json.loads(str(file[name])) for name in names}
    if "tensors" in values:
        shapes = values["tensors"] = {n: tuple(shape) for n, shape in values["tensors"].items()}
        kinds = {n: DType.Q8_0.name for n, shape in shapes.items() if lossy(n, shape)}
        if "types" in file:
            kinds = json.loads(str(file["types"]))
        values["types"] = {name: DType[kind] for name, kind in kinds.items()}
    return values


def _encoded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.array(json.dumps(value)) for name, value in values.items()}


def _saved(path: Path, values: Mapping[str, Any]) -> Path:
    with atomic_write(path) as file:
        np.savez_compressed(file, **values)
    return path


def cases(folder: Path, kind: str = "") -> list[str]:
    """The names of the golden files in a folder; kind: "embeddings"."""
    return sorted(file.stem for file in (folder / kind).glob("[!.]*.npz"))


def lossy(name: str, shape: tuple[int, ...]) -> bool:
    """Whether F16 and Q8_0 files round this tensor, for goldens without `types`: matrices, except
    routers and biases of experts.

    llama.cpp keeps routers (`ffn_gate_inp`) in F32, too: a rounded router may choose other experts.
    The vision tower and its projector stay F32.
    """
    exact = (".gate.weight", ".router.weight", "_bias")
    sees = "vision" in name or "multi_modal_projector" in name
    return len(shape) >= 2 and not name.endswith(exact) and not sees


def checkpoint(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
    """Writes a Hugging Face checkpoint: config.json and model.safetensors.

    Raises:
        ConfigError: the folder holds another checkpoint.
        WriteError: it cannot be written.
    """
    from safetensors.numpy import save

    text, file = json.dumps(config, indent=2) + "\n", folder / "config.json"
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if file.exists() and file.read_text() != text:
            raise ConfigError(f"{folder} holds another checkpoint; remove it, or name a new folder")
    data = save(dict(weights), metadata={"format": "pt"})
    # The configuration, which makes a checkpoint of the folder, comes last.
    with atomic_write(file) as last, atomic_write(folder / "model.safetensors") as first:
        first.write(data)
        last.write(text.encode())

"""The golden files `tests/golden/<arch>/<case>.npz`: one place that knows their format.

Needs numpy, and safetensors for `checkpoint`; never torch. `generate.py` writes them, tests read
them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.golden import weights

HERE = Path(__file__).parent
GREEDY = 12  # tokens in the greedy continuation
JSON = ("config", "saved_config", "versions", "tensors")
ARRAYS = ("prompt", "logits", "logits_f16", "logits_q8_0", "greedy", "greedy_margins")
OF_A_PROMPT = ("ids", "logits", "greedy", "greedy_margins")

Weight = Callable[[str, tuple[int, ...]], NDArray[np.float32]]


@dataclass
class Picture:
    """An image as the reference's processor would hand it on; its values come from its name."""

    name: str
    shape: tuple[int, int, int, int]
    """Of the pixels: [tiles, 3, height, width]."""
    data: dict[str, Any] = field(default_factory=dict)
    """What else the processor says of it (JSON), such as `aspect_ratio_id`."""
    rows: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """[rows, width] that the vision tower and the projector make of it."""

    @property
    def pixels(self) -> NDArray[np.float32]:
        """[tiles, 3, height, width] in (-1, 1)."""
        return weights.uniform(f"picture {self.name}", self.shape)


@dataclass
class Prompt:
    """A prompt with images in it, and what follows it."""

    parts: list[list[int] | str]
    """Token ids, or the name of an image, in turn."""
    ids: NDArray[np.int32]
    """[n] token ids as transformers takes them: with placeholders and what surrounds an image."""
    logits: NDArray[np.float32]
    """[n, vocab] for every position, float32 on CPU, eager attention."""
    greedy: NDArray[np.int32]
    """As `Golden.greedy`."""
    greedy_margins: NDArray[np.float32]
    """As `Golden.greedy_margins`."""


@dataclass
class Golden:
    """What transformers computed for one tiny model."""

    arch: str
    """The folder it is in."""

    config: dict[str, Any]
    """config.json as transformers read it, in the old spelling (`rope_theta`, `rope_scaling`)."""
    saved_config: dict[str, Any]
    """config.json as that transformers writes it: `rope_parameters`, and all defaults filled in."""
    versions: dict[str, str]
    """torch, transformers and numpy of the run."""
    tensors: dict[str, tuple[int, ...]]
    """Names and numpy shapes of the checkpoint on disk, sorted; without a tied head, as on disk."""
    prompt: NDArray[np.int32]
    """[n] token ids."""
    logits: NDArray[np.float32]
    """[n, vocab] for every position of the prompt, float32 on CPU, eager attention."""
    logits_f16: NDArray[np.float32]
    """The same when `lossy` tensors were rounded to F16 first (activations stay float32)."""
    logits_q8_0: NDArray[np.float32]
    """The same when `lossy` tensors went through Q8_0 first (activations stay float32)."""
    greedy: NDArray[np.int32]
    """[GREEDY] ids that follow the prompt; the same for F32, F16 and Q8_0 weights."""
    greedy_margins: NDArray[np.float32]
    """[GREEDY] top logit minus the second, the smallest of the three runs."""

    pictures: dict[str, Picture] = field(default_factory=dict)
    """The images of its prompts, by name; empty for models of text."""
    prompts: dict[str, Prompt] = field(default_factory=dict)
    """Prompts with images, by name."""

    @classmethod
    def load(cls, arch: str, case: str) -> "Golden":
        with np.load(path(arch, case), allow_pickle=False) as file:
            values = {name: json.loads(str(file[name])) for name in JSON}
            values |= {name: file[name] for name in ARRAYS}
            seen = json.loads(str(file["pictures"])) if "pictures" in file else {}
            pictures = {
                name: Picture(name, tuple(shape), data, file[f"pictures.{name}.rows"])
                for name, (shape, data) in seen.items()
            }
            asked = json.loads(str(file["prompts"])) if "prompts" in file else {}
            prompts = {
                name: Prompt(parts, *(file[f"prompts.{name}.{key}"] for key in OF_A_PROMPT))
                for name, parts in asked.items()
            }
        values["tensors"] = {name: tuple(shape) for name, shape in values["tensors"].items()}
        return cls(arch, **values, pictures=pictures, prompts=prompts)

    def save(self, case: str) -> None:
        values: dict[str, Any]
        values = {name: np.array(json.dumps(getattr(self, name))) for name in JSON}
        values |= {name: getattr(self, name) for name in ARRAYS}
        if self.prompts:
            pictures = {name: (p.shape, p.data) for name, p in self.pictures.items()}
            values["pictures"] = np.array(json.dumps(pictures))
            for name, picture in self.pictures.items():
                values[f"pictures.{name}.rows"] = picture.rows
            parts = {name: prompt.parts for name, prompt in self.prompts.items()}
            values["prompts"] = np.array(json.dumps(parts))
            for name, prompt in self.prompts.items():
                for key in OF_A_PROMPT:
                    values[f"prompts.{name}.{key}"] = getattr(prompt, key)
        np.savez_compressed(path(self.arch, case), **values)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        weight = weight_of(self.arch)
        return {name: weight(name, shape) for name, shape in self.tensors.items()}


@dataclass
class Embeddings:
    """What transformers and the layers behind it made of texts, for one tiny embedding model."""

    arch: str
    config: dict[str, Any]
    saved_config: dict[str, Any]
    versions: dict[str, str]
    tensors: dict[str, tuple[int, ...]]
    """As in `Golden`, and those of the layers behind the model."""
    texts: list[list[int]]
    """Token ids."""
    vectors: NDArray[np.float32]
    """[texts, width], not normalised; float32 on CPU, eager attention."""

    @classmethod
    def load(cls, arch: str, case: str) -> "Embeddings":
        with np.load(path(arch, case, "embeddings"), allow_pickle=False) as file:
            values = {name: json.loads(str(file[name])) for name in (*JSON, "texts")}
            values["tensors"] = {name: tuple(shape) for name, shape in values["tensors"].items()}
            return cls(arch, **values, vectors=file["vectors"])

    def save(self, case: str) -> None:
        values: dict[str, Any]
        values = {name: np.array(json.dumps(getattr(self, name))) for name in (*JSON, "texts")}
        target = path(self.arch, case, "embeddings")
        target.parent.mkdir(exist_ok=True)
        np.savez_compressed(target, **values, vectors=self.vectors)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        weight = weight_of(self.arch)
        return {name: weight(name, shape) for name, shape in self.tensors.items()}


def weight_of(arch: str) -> Weight:
    """What makes an architecture's weights: `weight` of its `cases.py`, or the common rule."""
    return getattr(import_module(f"tests.golden.{arch}.cases"), "weight", weights.weight)


def path(arch: str, case: str, kind: str = "") -> Path:
    return HERE / arch / kind / f"{case}.npz"


def cases(arch: str, kind: str = "") -> list[str]:
    """The names of the committed files of an architecture; kind: "embeddings"."""
    return sorted(file.stem for file in (HERE / arch / kind).glob("*.npz"))


def lossy(name: str, shape: tuple[int, ...]) -> bool:
    """Whether F16 and Q8_0 files hold this tensor in that type: matrices, but not an expert router.

    That is llama.cpp's habit too (`ffn_gate_inp` stays F32): a rounded router may choose other
    experts. What sees (the vision tower, its projector) stays F32 here.
    """
    exact = (".gate.weight", ".router.weight")
    sees = "vision" in name or "multi_modal_projector" in name
    return len(shape) >= 2 and not name.endswith(exact) and not sees


def checkpoint(
    folder: Path, config: dict[str, Any], weights: dict[str, NDArray[np.float32]]
) -> None:
    """Write a Hugging Face checkpoint: config.json and model.safetensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

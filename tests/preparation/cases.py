"""The models that prepare pictures and sounds, each with its processor in transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ggmodel.audio import Audio
from ggmodel.convert.from_hf import normalize, read_config, with_preparation
from ggmodel.gguf_file.values import KeyValues
from ggmodel.model import Model, Prepared, config_class, find
from tests.audio.sounds import RATE, tones
from tests.golden.files import load_golden
from tests.image.noise import noise

GOLDENS = Path(__file__).with_name("goldens.npz")
# Wider than high, higher than wide, a square, narrower than a row of patches.
PICTURES = ((61, 37), (30, 71), (33, 33), (5, 40), (100, 9))
SECONDS = (0.1, 0.37)
SAMPLED = 128  # numbers of a result that are kept
# The processors resize with Pillow, most models as torchvision does, whose weights are rounded in
# another way: one level of 255 (1.00001 measured; idefics3, as Pillow, 2e-5). Spectra are float32.
LEVEL, SPECTRUM = 1.01, 1e-6


@dataclass(frozen=True)
class Case:
    """A golden's model and the processor that goes with it.

    Attributes:
        processor: a class of transformers.
        options: of the processor, its preprocessor_config.json.
        data: what the processor's inputs say of the model's data.
        kind: of the item.
    """

    arch: str
    golden: str
    processor: str
    options: dict[str, Any] = field(default_factory=dict)
    data: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda inputs: {}
    kind: str = "image"


def _grid(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"image_grid_thw": np.ravel(inputs["image_grid_thw"]).tolist()}


def _tiles(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"grid": [inputs["rows"][0][0], inputs["cols"][0][0]]}


def _ratio(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"aspect_ratio_id": int(inputs["aspect_ratio_ids"][0, 0])}


_UNLIKE = {"image_mean": [0.5, 0.45, 0.4], "image_std": [0.27, 0.26, 0.28]}
_PATCHES = {"patch_size": 4, "merge_size": 2}
_QWEN = {
    **_PATCHES,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 512, "longest_edge": 3072},
}


def _square(side: int) -> dict[str, Any]:
    return {"size": {"height": side, "width": side}, **_UNLIKE}


CASES = {
    "gemma3": Case("gemma3", "images", "Gemma3ImageProcessorPil", _square(24)),
    "gemma3n": Case(
        "gemma3n",
        "images",
        "SiglipImageProcessorPil",
        {**_square(32), "do_normalize": False, "resample": 2},
    ),
    "gemma4": Case(
        "gemma4",
        "images",
        "Gemma4ImageProcessorPil",
        {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70},
    ),
    "mllama": Case(
        "mllama",
        "images",
        "MllamaImageProcessorPil",
        {**_square(12), "max_image_tiles": 4},
        _ratio,
    ),
    "qwen2vl": Case("qwen2vl", "qwen2", "Qwen2VLImageProcessorPil", _QWEN, _grid),
    "qwen2.5vl": Case("qwen2vl", "qwen25", "Qwen2VLImageProcessorPil", _QWEN, _grid),
    "qwen3vl": Case("qwen3vl", "images", "Qwen2VLImageProcessorPil", {**_QWEN, **_UNLIKE}),
    "qwen35": Case("qwen3vl", "qwen35", "Qwen2VLImageProcessorPil", {**_QWEN, **_UNLIKE}),
    "idefics3": Case(
        "idefics3",
        "tiles",
        "Idefics3ImageProcessorPil",
        {"max_image_size": {"longest_edge": 26}, "size": {"longest_edge": 60}, **_UNLIKE},
        _tiles,
    ),
    "smolvlm": Case(
        "idefics3",
        "smolvlm",
        "SmolVLMImageProcessorPil",
        {"max_image_size": {"longest_edge": 27}, "size": {"longest_edge": 108}, **_UNLIKE},
        _tiles,
    ),
    "internvl": Case(
        "internvl",
        "qwen3",
        "GotOcr2ImageProcessorPil",
        {**_square(16), "crop_to_patches": True, "max_patches": 12},
    ),
    "mistral3": Case(
        "mistral3",
        "images",
        "PixtralImageProcessorPil",
        {"size": {"longest_edge": 48}, "patch_size": 8, **_UNLIKE},
    ),
    "pixtral": Case(
        "mistral3",
        "pixtral",
        "PixtralImageProcessorPil",
        {"size": {"longest_edge": 48}, "patch_size": 4, **_UNLIKE},
    ),
    "paddleocr": Case(
        "paddleocr",
        "pages",
        "PaddleOCRVLImageProcessorPil",
        {
            **_PATCHES,
            "temporal_patch_size": 1,
            "size": {"shortest_edge": 576, "longest_edge": 4096},
            **_UNLIKE,
        },
    ),
    "glm_ocr": Case(
        "glm_ocr",
        "published",
        "Glm46VImageProcessorPil",
        {
            **_PATCHES,
            "temporal_patch_size": 2,
            "size": {"shortest_edge": 1152, "longest_edge": 8192},
            **_UNLIKE,
        },
    ),
    "gemma3n-sounds": Case("gemma3n", "sounds", "Gemma3nAudioFeatureExtractor", kind="audio"),
    "gemma4-sounds": Case("gemma4", "sounds", "Gemma4AudioFeatureExtractor", kind="audio"),
    "whisper": Case("whisper", "published", "WhisperFeatureExtractor", kind="audio"),
    "qwen2audio": Case("qwen2audio", "published", "WhisperFeatureExtractor", kind="audio"),
    "qwen3asr": Case("qwen3asr", "published", "Qwen3ASRFeatureExtractor", kind="audio"),
    "voxtral": Case("voxtral", "published", "WhisperFeatureExtractor", kind="audio"),
}


def recorded() -> dict[str, Any]:
    """The processors' results for the items."""
    with np.load(GOLDENS, allow_pickle=False) as file:
        return dict(file)


def check_preparation(golden: Mapping[str, Any], name: str, model: Model) -> None:
    """Compares what a model makes of the items with the records: shapes, data, and some numbers.

    Raises:
        AssertionError: they differ.
    """
    kind, theirs = CASES[name].kind, json.loads(str(golden["shapes"]))[name]
    given = items(kind)
    prepare = model.modalities()[kind].prepare
    ours = [prepare(item) for item in given + (blank() if kind == "image" else [])]
    values = [without_padding(one) for one in ours]
    shapes = [
        [list(v.shape), {key: json.loads(json.dumps(one.data[key])) for key in data}]
        for v, one, (_, data) in zip(values, ours, theirs, strict=True)
    ]
    assert shapes == theirs
    samples = np.stack([sampled(v) for v in values[: len(given)]])
    np.testing.assert_allclose(samples, golden[name], rtol=0, atol=bound_of(model, kind))


def bound_of(model: Model, kind: str) -> float:
    """How far a number may be from the processor's."""
    if kind != "image":
        return SPECTRUM
    return LEVEL / 255 / float(np.min(getattr(model.config, "image_std", 1.0)))


def model_of(name: str, without: str = "", models: Path | None = None) -> Model:
    """The golden's model without tensors, which preparation does not need.

    Args:
        without: a key that the GGUF file lacks, behind the architecture's name.
        models: a folder of architectures, searched first.
    """
    case = CASES[name]
    architecture = find(case.arch, models)
    config = dict(load_golden(case.arch, case.golden).config)
    if case.options:
        # Mistral 3's processor stretches to squares of patches that the model merges.
        patch = {"patch_size": 4} if case.arch == "mistral3" else {}
        config["preprocessor:"] = {**case.options, **patch}
    given, _ = with_preparation(config)
    metadata, hyperparameters = read_config(architecture, normalize(given))
    if without:
        metadata.pop(f"{architecture.architecture}.{without}", None)
        kind: Any = config_class(architecture)
        hyperparameters = kind.read(KeyValues(metadata, name))
    hyperparameters.loaded_context = hyperparameters.context
    return architecture(hyperparameters)


def items(kind: str) -> list[Any]:
    """Few pictures of noise or sounds, whose numbers are compared."""
    if kind == "audio":
        faint = np.concatenate([np.zeros(800, np.float32), 1e-4 * tones(0.3)])  # shows the floor
        return [Audio(sound, RATE) for sound in (*map(tones, SECONDS), faint.astype(np.float32))]
    return [noise(*size) for size in PICTURES]


def blank() -> list[Image.Image]:
    """Pictures of many sizes, of which those of the results are compared."""
    random = np.random.default_rng(11)
    sizes = np.exp(random.uniform(np.log(4), np.log(150), (60, 2))).astype(int)
    return [Image.new("RGB", (int(w), int(h))) for w, h in sizes]


def without_padding(prepared: Prepared) -> np.ndarray:
    """The values without tiles of zeros at the end."""
    values = prepared.values
    while len(values) > 1 and values.ndim == 4 and not values[-1].any():
        values = values[:-1]
    return values


def sampled(values: np.ndarray) -> np.ndarray:
    """Numbers from all over the result; 7919 is a prime."""
    return values.reshape(-1)[np.arange(SAMPLED) * 7919 % values.size]

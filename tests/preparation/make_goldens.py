"""Writes goldens.npz: what the processors of transformers make of the items of cases.py.

    pip install torch==2.13.0 transformers==5.23.0 pillow
    PYTHONPATH=sdk:. python -m tests.preparation.make_goldens

These are the processors on Pillow, which need no torchvision; Llama 4 has none, and is in
tests/image/goldens.npz. Spectra of Whisper are computed in float64, as in tests/audio.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import transformers

from ggmodel.audio import Audio
from tests.preparation.cases import CASES, GOLDENS, Case, blank, items, model_of, sampled
from tests.preparation.cases import without_padding as used

_PIL = "ImageProcessorPil"


def processor_of(case: Case) -> Any:
    if not case.processor.endswith("Pil"):
        return getattr(transformers, case.processor)
    of = {
        "Gemma3": "gemma3",
        "Gemma4": "gemma4",
        "Glm46V": "glm46v",
        "GotOcr2": "got_ocr2",
        "Idefics3": "idefics3",
        "Mllama": "mllama",
        "PaddleOCRVL": "paddleocr_vl",
        "Pixtral": "pixtral",
        "Qwen2VL": "qwen2_vl",
        "Siglip": "siglip",
        "SmolVLM": "smolvlm",
    }[case.processor.removesuffix(_PIL)]
    modules = getattr(transformers.models, of)
    return getattr(getattr(modules, f"image_processing_pil_{of}"), case.processor)


def spectrum(name: str, h: Any, sound: Audio) -> tuple[np.ndarray, dict[str, Any]]:
    if name.startswith("gemma"):
        heard = processor_of(CASES[name])(feature_size=h.mels)([sound.samples])
        return heard["input_features"][0][heard["input_features_mask"][0]], {}
    extractor = processor_of(CASES[name])(feature_size=h.mels)
    whisper = transformers.WhisperFeatureExtractor
    extractor._torch_extract_fbank_features = partial(whisper._np_extract_fbank_features, extractor)
    extractor.n_samples = h.frames * 160
    options: dict[str, Any] = {"sampling_rate": sound.rate, "return_tensors": "np"}
    if name == "voxtral":  # as transformers' processor, which needs mistral-common
        options |= {"padding": True, "truncation": False, "pad_to_multiple_of": h.frames * 160}
        whole = extractor(sound.samples, **options)["input_features"][0]
        return np.stack(np.split(whole, whole.shape[1] // h.frames, axis=1)), {}
    if name == "qwen3asr":  # as transformers' processor
        heard = extractor(sound.samples, **options, padding=True, return_attention_mask=True)
        inputs = {"input_features": heard["input_features"]}
        inputs["input_features_mask"] = heard["attention_mask"]
        made = model_of(name).reference_item("audio", inputs, {})
        return made.values, {"frames": made.data["frames"]}
    heard = extractor(sound.samples, **options, return_attention_mask=True)
    data = {"frames": int(heard["attention_mask"].sum())} if name == "qwen2audio" else {}
    return heard["input_features"][0], data


def processed(name: str, item: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """The processor's values of an item in the model's layout, and the data that go with them."""
    case, model = CASES[name], model_of(name)
    if case.kind == "audio":
        return spectrum(name, model.config, item)
    extra = {"return_row_col_info": True} if case.arch == "idefics3" else {}
    inputs = processor_of(case)(**case.options)([item], return_tensors="np", **extra)
    own = model.preprocess(item)
    return used(model.reference_item("image", inputs, own.data)), case.data(inputs)


def main() -> None:
    made: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for name, case in CASES.items():
        results = [processed(name, item) for item in items(case.kind)]
        made[name] = np.stack([sampled(values) for values, _ in results]).astype(np.float32)
        sizes = [processed(name, item) for item in blank()] if case.kind == "image" else []
        told[name] = [[values.shape, data] for values, data in results + sizes]
        print(name, [values.shape for values, _ in results])
    np.savez_compressed(GOLDENS, shapes=json.dumps(told), **made)
    print(GOLDENS, GOLDENS.stat().st_size, "bytes")


if __name__ == "__main__":
    main()

"""Makes the files of `preparation` with the processors of transformers.

Needs what `reference` needs, and torchvision for pictures.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from ...convert.from_hf import read_preparation
from .files import Cases
from .preparation import RATE, Item, Preparation, picture, samples

# Tokens around an item: ids of plain text in every case.
BEFORE, AFTER = [1, 21, 34], [40, 33, 27]
_PARTS = ("image_processor", "feature_extractor")


def tokenizer(special: Mapping[str, int], vocabulary: int, **named: str) -> Any:
    """A tokenizer of the golden's ids: "w5" is 5, texts of `SPECIAL` are theirs.

    Args:
        named: attributes that a processor asks for, such as `image_token`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(vocabulary) if i not in special.values()}
    made = Tokenizer(models.WordLevel({**words, **special}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(list(special))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="w0", extra_special_tokens=named
    )


def prepared(cases: Cases, name: str, model: Any) -> Preparation:
    """The files of a case as transformers prepares them.

    Args:
        model: of transformers, in float32.
    """
    module, config = cases.module, cases.configs[name]
    vocabulary = config.get("text_config", config)["vocab_size"]
    named = getattr(module, "NAMED", {})
    words = tokenizer(getattr(module, "SPECIAL", {}), vocabulary, **named)
    processor = module.processor(transformers, config, words)
    items = {}
    for title, (text, *size) in module.FILES[name].items():
        kind = "image" if len(size) == 2 else "audio"
        items[title] = _item(module, processor, model, text, kind, size)
    parts = [getattr(processor, name, None) for name in _PARTS]
    classes = [type(part).__name__ for part in (processor, *parts) if part is not None]
    versions = {m.__name__: m.__version__ for m in (transformers, torch)}
    if any(item.kind == "image" for item in items.values()):
        import torchvision

        versions["torchvision"] = torchvision.__version__
    with tempfile.TemporaryDirectory() as folder:
        processor.save_pretrained(folder)
        documents = read_preparation(Path(folder))
    return Preparation(documents, classes, versions, items)


def _item(module: Any, processor: Any, model: Any, text: str, kind: str, size: list[int]) -> Item:
    before = getattr(module, "BEFORE", BEFORE)
    words = [" ".join(f"w{i}" for i in ids) for ids in (before, AFTER)]
    keywords = _pictured(size) if kind == "image" else _heard(size)
    made = getattr(module, "processed", _processed)(processor, f" {text} ".join(words), keywords)
    made = {k: v.float() if v.is_floating_point() else v for k, v in made.items()}
    ids = made["input_ids"] if "input_ids" in made else made["decoder_input_ids"]
    with torch.no_grad():
        logits = model(**made, use_cache=False).logits[0, -1]
    kept = {k: v for k, v in made.items() if k not in ("attention_mask", "input_ids")}
    inputs = {k: v.numpy() for k, v in kept.items()}
    return Item(kind, size, before, AFTER, inputs, ids[0].numpy(), logits.numpy())


def _processed(processor: Any, text: str, keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(processor(text=[text], **keywords, return_tensors="pt"))


def _pictured(size: list[int]) -> dict[str, Any]:
    from PIL import Image

    return {"images": [Image.open(io.BytesIO(picture(*size)))]}


def _heard(size: list[int]) -> dict[str, Any]:
    waveform = samples(*size).astype(np.float32) / (1 << 15)
    return {"audio": [waveform], "sampling_rate": RATE}
